// Package cache answers list requests from memory: it keeps rows, and applies every commit
// to them (package cache/replica), so that a page which the rows cover equals the database
// without a query.
//
//	Hit ──► entry ── current ─────────────────────────────────────► response
//	          │ its list has changed since
//	          ▼
//	        replica ── covers the page ──► cut ──► entry ─────────► response
//	Forward   │ rows are missing
//	          ▼  one flight per key and node; all other requests wait for it
//	        redis ── rows that another node read ──┐
//	          │ none                               ▼
//	          ▼                                  merge ──► cut ───► response
//	        fill ── rows of a statement ───────────┘
//	          │ failed
//	          ▼
//	        the newest stale entry, marked; else the error
//
//	log ──► Beat ──► replica: at each heartbeat all rows move to the next snapshot
//
// An entry is a finished page, in ristretto. A flight outlives the request that began it: it
// has its own deadline, and Close waits for it.
package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// Options configure a Cache. All durations but Bound are required.
type Options struct {
	Memory      int64                 // budget in bytes
	Redis       redis.UniversalClient // nil = no second tier
	Followed    *changefeed.Followed  // the followed database; nil = it is never known
	TTL         time.Duration         // how long an entry is fresh where changes are not followed
	Bound       time.Duration         // no entry served as fresh omits a commit older than this; 0 = changes are not followed
	MaxStale    time.Duration         // how long a stale entry may be served if the origin fails
	FillTimeout time.Duration         // how long a fill may take
	Clock       *boottime.Clock       // measures the age of entries and proofs; nil = one of the cache's own

	CommitApplied func(lag time.Duration) // is told how long after a commit it was applied; nil = nobody is
}

// ErrFillTimeout: the fill did not end in time, and there was no stale entry.
var ErrFillTimeout = errors.New("no page in time")

// ErrNotStored: no tier has the entry, and the caller did not want a read from the origin.
var ErrNotStored = errors.New("the page is not stored")

// ErrWrongServer: another server than the followed primary answered.
var ErrWrongServer = errors.New("not the server whose changes are followed")

var (
	errPaused = errors.New("the last fill failed moments ago")
	errClosed = fmt.Errorf("cache closed: %w", context.Canceled)
	errPanic  = errors.New("panic in a fill")
)

// Source says where an entry was found.
type Source uint8

// The sources.
const (
	Memory Source = iota
	Redis
	Origin
)

func (s Source) String() string { return [...]string{"memory", "redis", "origin"}[s] }

// Result is an entry and how it was found.
type Result struct {
	Entry     *Entry
	Age       time.Duration // since the entry was last known to equal the database
	Source    Source
	HadStale  bool   // there was an entry, but it was stale
	Bypassed  bool   // the request bypassed the tiers
	ByTTL     bool   // changes are not followed: the entry is fresh by its age alone
	Collapsed bool   // another request's flight found the entry
	Missed    string // why the page was not in memory; empty = it was
	Err       error  // why a stale entry is served; nil for a fresh one

	Times *Times // of the flight, also of a failed one; nil = there was no flight

	slot *slot         // of a hit: Served stores it in Redis from time to time
	at   time.Duration // of a hit: when it was judged
}

// Cache is the two tiers, and the single-flight in front of them.
type Cache struct {
	options   Options
	clock     *boottime.Clock
	memory    *memory
	redis     *redisTier         // nil = none
	flights   singleflight.Group // look-ups, by the page's key; see lookup.await
	replica   *replica.Replica
	followed  following
	following atomic.Bool // changes, and not the age of entries, decide what is fresh

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed, and orders enter's running.Add before Close's Wait
	closed  bool
	running sync.WaitGroup // calls, flights, and asynchronous calls to Redis
	async   chan struct{}  // one element for each asynchronous call to Redis

	fills, fillErrors, cuts, wrongServers atomic.Uint64
}

const (
	// staleWait is how long a request that could be served a stale entry waits for
	// a fresh one. Its key may have waited 0.2 s before: a second in all.
	staleWait = 800 * time.Millisecond
	// fillPause is how long a stale entry is served at once after its fill failed or
	// took longer than staleWait. Then a request waits for a fill again.
	fillPause = time.Second
	// rememberedBytes bounds the changes that are remembered for what was read before them.
	rememberedBytes = 16 << 20
	// parkedBytes bounds the fills that wait for a heartbeat.
	parkedBytes = 16 << 20
	// maxLists bounds the lists of a table, because a change costs as much as its table has.
	maxLists = 256
	// maxAsync bounds asynchronous calls to Redis. Calls beyond it are dropped: Redis
	// is then the bottleneck, and storing one more entry there gains little.
	maxAsync = 64
)

// New makes an empty cache. It waits up to redisTimeout for a connection to Redis, so
// that the first request finds one open. Without a connection it returns all the same.
func New(o Options) (*Cache, error) {
	m, err := newMemory(o.Memory)
	if err != nil {
		return nil, err
	}
	if o.Followed == nil {
		o.Followed = &changefeed.Followed{}
	}
	if o.Clock == nil {
		o.Clock = boottime.New()
	}
	if o.CommitApplied == nil {
		o.CommitApplied = func(time.Duration) {}
	}
	rows := int(rowsBudget(m.budget))
	c := &Cache{options: o, clock: o.Clock, memory: m, async: make(chan struct{}, maxAsync),
		replica: replica.New(replica.Budgets{Rows: rows, Changes: rememberedBytes, Parked: parkedBytes, Lists: maxLists, Released: rows / releasedShare})}
	c.followed.bound = o.Bound
	c.ctx, c.stop = context.WithCancel(context.Background())
	if o.Redis != nil {
		c.redis = newRedisTier(o.Redis, o.Followed, c.clock)
	}
	c.SetTTLMode(false)
	return c, nil
}

// Close waits for flights and stores until ctx ends, and then cuts them off. Hit
// must not be called meanwhile or afterwards: the server ends its requests first.
func (c *Cache) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.running.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the cache: %w", ctx.Err())
	}
	c.stop()
	<-done
	if c.redis != nil {
		c.redis.close()
	}
	c.memory.close()
	return err
}

// HasRedis reports whether there is a second tier.
func (c *Cache) HasRedis() bool { return c.redis != nil }

// enter counts a call that Close waits for; false once Close was called.
func (c *Cache) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// Hit returns the key's entry if it is fresh in memory. It does not keep key, and
// allocates nothing unless a change made the page another one. Its caller calls Served if
// it serves the result.
func (c *Cache) Hit(key []byte, now time.Time) (Result, bool) {
	s := c.memory.get(key)
	if s == nil {
		return Result{}, false
	}
	at := c.clock.At(now) // mutation: a machine that sleeps does not age
	e := c.fresh(s, at)
	if e == nil {
		return Result{}, false
	}
	r := c.memoryResult(e, at)
	r.slot, r.at = s, at
	return r, true
}

// Served is called for a result of Hit that is served. From time to time it stores the page
// in Redis as it is now.
func (c *Cache) Served(r *Result) {
	s := r.slot
	if s == nil || c.redis == nil || int64(r.at) < s.storeAfter.Load() {
		return
	}
	if s.storeAfter.Store(int64(r.at + storeInterval)); c.following.Load() {
		c.storeState(r.Entry.view)
	}
}

// fresh returns the slot's entry if it is fresh, or one that is cut anew; nil = neither.
func (c *Cache) fresh(s *slot, now time.Duration) *Entry {
	e, following := s.entry.Load(), c.following.Load()
	if following && c.followed.trusted(now) && e.isCurrent() {
		e.part.Touch()
		return e
	}
	if following && e.hasRows() {
		if cut := c.cut(e.view, e, now); cut != nil {
			if cut != e {
				c.memory.replace(s, cut, c.life())
			}
			return cut
		}
	}
	if c.judge(e, now) == fresh {
		return e
	}
	return nil
}

// memoryResult is the result for an entry that was found in memory.
func (c *Cache) memoryResult(e *Entry, now time.Duration) Result {
	return Result{Entry: e, Age: c.age(e, now), Source: Memory, ByTTL: !c.following.Load()}
}

// checkMemory judges the entry in memory. If ok is true, the result is served: the entry
// is fresh, or it is stale and its fills are paused. Otherwise the result has the stale
// entry that may be served if the fill fails, or no entry.
func (c *Cache) checkMemory(s *slot) (r Result, ok bool) {
	if s == nil {
		return Result{}, false
	}
	now := c.clock.Now()
	if e := c.fresh(s, now); e != nil { // found by another request meanwhile
		return c.memoryResult(e, now), true
	}
	e := s.entry.Load()
	if c.judge(e, now) == expired {
		return Result{}, false
	}
	r = c.memoryResult(e, now)
	r.HadStale, r.ByTTL, r.Err = true, false, errPaused
	return r, int64(now) < s.pausedUntil.Load()
}

// serveStale returns the stale entry as the result, with err as the reason. It returns
// err itself if there is no stale entry or the entry has expired.
func (c *Cache) serveStale(e *Entry, from Source, err error) (Result, error) {
	if e == nil {
		return Result{}, err
	}
	now := c.clock.Now()
	if c.judge(e, now) == expired {
		return Result{}, err
	}
	return Result{Entry: e, Age: c.age(e, now), Source: from, HadStale: true, Err: err}, nil
}

// pause pauses fills of the slot's entry for fillPause: requests get the stale entry at
// once.
func (c *Cache) pause(s *slot) { s.pausedUntil.Store(int64(c.clock.Now() + fillPause)) }

// Forward finds the entry of a key that Hit did not have. It does not keep key. The
// error is the fill's own, or ErrFillTimeout.
func (c *Cache) Forward(key []byte, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	s := c.memory.get(key)
	r, ok := c.checkMemory(s)
	if ok {
		return r, nil
	}
	missed := c.missed(s)
	r, err := c.collapse(bytes.Clone(key), r.Entry, fill)
	if r.Source != Memory || r.Err != nil { // else the rows had it, or another request found it
		r.Missed = missed
	}
	return r, err
}

// missed says why memory does not have the slot's page.
func (c *Cache) missed(s *slot) string {
	switch {
	case c.following.Load() && !c.followed.trusted(c.clock.Now()):
		return "unproven"
	case s == nil:
		return "not-held"
	}
	return "stale" // by its age, or because the replica has not all of its rows any more
}

// bypassInterval is the shortest time between two reads of an entry for requests that
// bypass the tiers. Requests in between share the last answer.
func (c *Cache) bypassInterval() time.Duration {
	if c.options.Bound > 0 {
		return c.followed.shareTime()
	}
	return 100 * time.Millisecond
}

// Bypass returns an entry that was read from the primary after the request
// arrived, or less than bypassInterval before.
func (c *Cache) Bypass(key []byte, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := c.clock.Now()
	if s := c.memory.get(key); s != nil {
		if e := s.entry.Load(); arrived-e.Proof < c.bypassInterval() {
			return c.memoryResult(e, arrived), nil
		}
	}
	fill.Standby = nil
	l := &lookup{Cache: c, key: bytes.Clone(key), fill: fill}
	// The flight has another name than that of Forward, which the tiers may answer.
	r, err := l.await(string(key)+" bypass", nil, c.options.FillTimeout, l.fillAnew, func(e *Entry) bool { return arrived-e.Proof > c.bypassInterval() })
	r.Bypassed = true
	return r, err
}

// Stored returns the view's entry if memory or Redis has a fresh one, else ErrNotStored.
// It never reads from the origin.
func (c *Cache) Stored(view View) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	l := &lookup{Cache: c, key: view.Key(), fill: Fill{View: view}}
	look := func() (Result, error) {
		if r, ok := l.findStored(); ok {
			return r, nil
		}
		return Result{}, ErrNotStored
	}
	return l.await(string(l.key)+" stored", nil, c.options.FillTimeout, look, func(e *Entry) bool { return c.judge(e, c.clock.Now()) != fresh })
}
