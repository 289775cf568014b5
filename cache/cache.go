// Package cache stores responses to list requests in memory and in Redis, and
// serves them as long as they equal the database.
//
//	Hit ──► memory ── fresh ────────────────────────────────────► response
//	Forward    │ not fresh
//	           ▼  one flight per key and node; all other requests wait for it
//	        single-flight ──► join ── of fresh entries in memory ► response
//	                            │ not covered
//	                            ▼
//	                          redis ── fresh ──► memory ─────────► response
//	                            │ not fresh
//	                            ▼
//	                          fill ── entry ──► memory, redis ───► response
//	                            │ failed
//	                            ▼
//	                          the newest stale entry, marked; else the error
//
// A flight outlives the request that began it: it has its own deadline, and Close
// waits for it. What is fresh is decided by cache/freshness.
package cache

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache/freshness"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/histogram"
)

// Options configure a Cache. All durations but Bound are required.
type Options struct {
	Memory      int64                 // budget in bytes
	Redis       redis.UniversalClient // nil = no second tier
	Followed    *changefeed.Followed  // the database, as far as it is known; nil = it never is
	TTL         time.Duration         // how long an entry is fresh where changes are not followed
	Bound       time.Duration         // no entry served as fresh omits a commit older than this; 0 = changes are not followed
	MaxStale    time.Duration         // how long after that it may be served if the origin fails
	FillTimeout time.Duration         // how long a fill may take
	Clock       *boottime.Clock       // measures the age of entries and proofs; nil = one of the cache's own
}

// ErrFillTimeout: the fill did not end in time, and there was no stale entry.
var ErrFillTimeout = errors.New("no page in time")

// ErrNotStored: no tier has the entry, and the origin was not to be asked.
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
	Local     bool  // neither Redis nor the origin was asked, by this request or the flight it waited for
	HadStale  bool  // there was an entry, too old to be served
	Bypassed  bool  // the tiers were not asked
	ByTTL     bool  // changes are not followed: the entry is fresh by its age alone
	Joined    bool  // of entries in memory
	Collapsed bool  // another request's flight found the entry
	Err       error // why a stale entry is served; nil for a fresh one

	// Invalidation is why the entry that is stale, or that this one replaced, is not
	// current any more; nil = there was none, or it is not known.
	Invalidation *freshness.Invalidation

	Times *Times // of the flight, also of one that failed; nil = there was none

	slot *slot // whose requests CountRequest counts; nil = they were counted
}

// replaces notes that there was an entry, too old to be served, or nil.
func (r *Result) replaces(stale *Entry) {
	if stale != nil {
		r.HadStale = true
		r.Invalidation = cmp.Or(r.Invalidation, stale.Invalidation())
	}
}

// Cache is the two tiers, and the single-flight in front of them.
type Cache struct {
	options   Options
	clock     *boottime.Clock
	memory    *memory
	redis     *redisTier // nil = none
	flights   flights
	tracker   *freshness.Tracker
	following atomic.Bool // entries are judged by changes, and not by their age
	refresher *refresher
	joiner    joiner

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed against a call that is about to be counted
	closed  bool
	running sync.WaitGroup // calls, flights, and asynchronous calls to Redis
	async   chan struct{}  // one element for each of the latter

	fills, fillErrors atomic.Uint64
	admissions        [freshness.Admissions]atomic.Uint64
	lag               histogram.Histogram
}

const (
	// staleWait is how long a request that could be served a stale entry waits for
	// a fresh one.
	staleWait = time.Second
	// fillPause is how long an entry whose fill failed, or was waited for in vain,
	// is served stale before another request waits for it.
	fillPause = time.Second
	// maxAsync bounds asynchronous calls to Redis. Entries beyond it are not stored
	// there: Redis is then the bottleneck, and one entry is worth little.
	maxAsync = 64
)

// New makes an empty cache. It waits a moment for connections to Redis, so that
// these are open before the first request, and goes on without them.
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
	c := &Cache{options: o, clock: o.Clock, memory: m, async: make(chan struct{}, maxAsync),
		tracker: freshness.NewTracker(o.Bound, o.FillTimeout, o.Followed)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if o.Redis != nil {
		c.redis = newRedisTier(o.Redis, o.Followed, c.clock)
	}
	c.refresher = startRefresher(c)
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
	c.refresher.workers.Wait()
	c.memory.close()
	return err
}

// enter counts a call that Close waits for; false once Close was called.
func (c *Cache) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// Hit returns the key's entry if it is fresh in memory. It allocates nothing and
// does not keep key. Its caller calls CountRequest if it serves the result.
func (c *Cache) Hit(key []byte, now time.Time) (Result, bool) {
	s := c.memory.get(key)
	if s == nil {
		return Result{}, false
	}
	e, at := s.entry.Load(), c.clock.At(now)
	if c.judge(e, at) != freshness.Fresh {
		return Result{}, false
	}
	r := c.inMemory(e, at)
	r.slot = s
	return r, true
}

// CountRequest counts a request that is served a result of Hit: entries are refreshed
// ahead if they are often requested. A request that the limiter refuses is not counted.
func (r *Result) CountRequest() {
	if r.slot != nil {
		r.slot.requests.Add(1)
	}
}

func (c *Cache) inMemory(e *Entry, now time.Duration) Result {
	return Result{Entry: e, Age: c.age(e, now), Source: Memory, Local: true, ByTTL: !c.following.Load()}
}

// judge says how the entry may be served.
func (c *Cache) judge(e *Entry, now time.Duration) freshness.State {
	ttl, life := c.options.TTL, c.life()
	if c.following.Load() {
		if c.tracker.IsFresh(&e.Validity, now) {
			return freshness.Fresh
		}
		ttl = 0
	} else if e.joined {
		ttl = 0
	}
	return freshness.ByAge(c.age(e, now), ttl, life-ttl)
}

// age is how long ago the entry was last known to equal the database.
func (c *Cache) age(e *Entry, now time.Duration) time.Duration {
	if c.following.Load() {
		return c.tracker.Age(&e.Validity, now)
	}
	return max(0, now-e.Proof)
}

// life is how long an entry may be served in any way, after it equalled the database.
func (c *Cache) life() time.Duration { return c.options.TTL + c.options.MaxStale }

// remaining is how long an entry may still be served in any way.
func (c *Cache) remaining(e *Entry) time.Duration {
	return max(c.life()-(c.clock.Now()-e.Proof), time.Millisecond)
}

// checkMemory judges the entry in memory. If ok is true, it is served as it is; else
// the result has the stale entry that may be served if the fill fails, or none.
func (c *Cache) checkMemory(s *slot) (r Result, ok bool) {
	if s == nil {
		return Result{}, false
	}
	e, now := s.entry.Load(), c.clock.Now()
	switch c.judge(e, now) {
	case freshness.Fresh: // found by another request meanwhile
		return c.inMemory(e, now), true
	case freshness.Stale:
		r = c.inMemory(e, now)
		r.HadStale, r.ByTTL, r.Err, r.Invalidation = true, false, errPaused, e.Invalidation()
		return r, int64(now) < s.pausedUntil.Load()
	}
	return Result{}, false
}

// serveStale serves the stale entry because of err. Where there is none, or it has
// expired, it returns err.
func (c *Cache) serveStale(e *Entry, from Source, err error) (Result, error) {
	if e == nil {
		return Result{}, err
	}
	now := c.clock.Now()
	if c.judge(e, now) == freshness.Expired {
		return Result{}, err
	}
	return Result{Entry: e, Age: c.age(e, now), Source: from, HadStale: true, Err: err, Invalidation: e.Invalidation()}, nil
}

// pause has the slot's entry, while it is stale, served at once for a while.
func (c *Cache) pause(s *slot) { s.pausedUntil.Store(int64(c.clock.Now() + fillPause)) }

// Forward finds the entry of a key that Hit did not have. It does not keep key. The
// error is the fill's own, or ErrFillTimeout.
func (c *Cache) Forward(key []byte, list changefeed.List, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	s := c.memory.get(key)
	if s != nil {
		s.requests.Add(1)
	}
	r, ok := c.checkMemory(s)
	if ok {
		return r, nil
	}
	return c.collapse(bytes.Clone(key), list, r.Entry, fill)
}

// bypassEvery is how often an entry is read again for requests that bypass the
// tiers. Those in between share the last answer. Where changes are followed it is
// as long as answers are shared anyway.
func (c *Cache) bypassEvery() time.Duration {
	if c.options.Bound > 0 {
		return c.tracker.ShareTime()
	}
	return 100 * time.Millisecond
}

// Bypass returns an entry that was read from the primary after the request
// arrived, or less than bypassEvery before.
func (c *Cache) Bypass(key []byte, list changefeed.List, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := time.Now()
	at := c.clock.At(arrived)
	if s := c.memory.get(key); s != nil {
		if e := s.entry.Load(); at-e.Proof < c.bypassEvery() {
			return c.inMemory(e, at), nil
		}
	}
	key, fill.Standby = bytes.Clone(key), nil
	for {
		l := &lookup{Cache: c, key: key, list: list, fill: fill}
		// Collapsed apart from look-ups that the tiers may answer.
		r, err := c.await(string(key)+" bypass", key, nil, arrived.Add(c.options.FillTimeout), l.fillAnew)
		if err == nil && at-r.Entry.Proof > c.bypassEvery() {
			continue // a flight that had begun too early
		}
		r.Bypassed = true
		return r, err
	}
}

// Stored returns the key's entry if memory or Redis has one that is fresh, else
// ErrNotStored. It never asks the origin. The place is for joining it; nil = it is not.
func (c *Cache) Stored(key []byte, list changefeed.List, place *Place) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	l := &lookup{Cache: c, key: bytes.Clone(key), list: list, fill: Fill{Place: place}}
	for {
		r, err := c.flights.do(string(key)+" stored", func() (Result, error) {
			if r, ok := l.findStored(); ok {
				return r, nil
			}
			return Result{Local: c.redis == nil}, ErrNotStored
		})
		if err != nil {
			return r, err
		}
		now := c.clock.Now()
		if r.Err == nil && c.judge(r.Entry, now) != freshness.Fresh {
			continue // found before this request arrived, by a slow flight, and too old by now
		}
		r.Age, r.ByTTL = c.age(r.Entry, now), !c.following.Load()
		return r, nil
	}
}
