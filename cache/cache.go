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
// waits for it. Package cache/freshness decides which entries are fresh.
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
	Followed    *changefeed.Followed  // the followed database; nil = it is never known
	TTL         time.Duration         // how long an entry is fresh where changes are not followed
	Bound       time.Duration         // no entry served as fresh omits a commit older than this; 0 = changes are not followed
	MaxStale    time.Duration         // how long a stale entry may be served if the origin fails
	FillTimeout time.Duration         // how long a fill may take
	Clock       *boottime.Clock       // measures the age of entries and proofs; nil = one of the cache's own
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
	Local     bool  // the flight, or the request without one, used neither Redis nor the origin
	HadStale  bool  // there was an entry, but it was stale
	Bypassed  bool  // the request bypassed the tiers
	ByTTL     bool  // changes are not followed: the entry is fresh by its age alone
	Joined    bool  // the entry was joined from other entries in memory
	Collapsed bool  // another request's flight found the entry
	Err       error // why a stale entry is served; nil for a fresh one

	// Invalidation is why the stale entry, which is served or was replaced, is not
	// current any more; nil = there was none, or the reason is not known.
	Invalidation *freshness.Invalidation

	Times *Times // of the flight, also of a failed one; nil = there was no flight

	slot *slot // CountRequest counts the request here; nil = it was counted
}

// replaces notes the stale entry that the result replaces; nil = there was none.
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
	following atomic.Bool // changes, and not the age of entries, decide what is fresh
	refresher *refresher
	joiner    joiner

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed, and orders enter's running.Add before Close's Wait
	closed  bool
	running sync.WaitGroup // calls, flights, and asynchronous calls to Redis
	async   chan struct{}  // one element for each asynchronous call to Redis

	fills, fillErrors atomic.Uint64
	admissions        [freshness.Admissions]atomic.Uint64
	lag               histogram.Histogram
}

const (
	// staleWait is how long a request that could be served a stale entry waits for
	// a fresh one.
	staleWait = time.Second
	// fillPause is how long a stale entry is served at once after its fill failed or
	// took longer than staleWait. Then a request waits for a fill again.
	fillPause = time.Second
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
	r := c.memoryResult(e, at)
	r.slot = s
	return r, true
}

// CountRequest counts a request that is answered with a result of Hit. Entries that are
// requested often are refreshed ahead. The caller does not count a request that the
// limiter refuses.
func (r *Result) CountRequest() {
	if r.slot != nil {
		r.slot.requests.Add(1)
	}
}

// memoryResult is the result for an entry that was found in memory.
func (c *Cache) memoryResult(e *Entry, now time.Duration) Result {
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

// life is how long an entry may be served, fresh or stale, after it equalled the database.
func (c *Cache) life() time.Duration { return c.options.TTL + c.options.MaxStale }

// remaining is how much of its life an entry has left.
func (c *Cache) remaining(e *Entry) time.Duration {
	return max(c.life()-(c.clock.Now()-e.Proof), time.Millisecond)
}

// checkMemory judges the entry in memory. If ok is true, the result is served: the entry
// is fresh, or it is stale and its fills are paused. Otherwise the result has the stale
// entry that may be served if the fill fails, or no entry.
func (c *Cache) checkMemory(s *slot) (r Result, ok bool) {
	if s == nil {
		return Result{}, false
	}
	e, now := s.entry.Load(), c.clock.Now()
	switch c.judge(e, now) {
	case freshness.Fresh: // found by another request meanwhile
		return c.memoryResult(e, now), true
	case freshness.Stale:
		r = c.memoryResult(e, now)
		r.HadStale, r.ByTTL, r.Err, r.Invalidation = true, false, errPaused, e.Invalidation()
		return r, int64(now) < s.pausedUntil.Load()
	}
	return Result{}, false
}

// serveStale returns the stale entry as the result, with err as the reason. It returns
// err itself if there is no stale entry or the entry has expired.
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

// pause pauses fills of the slot's entry for fillPause: requests get the stale entry at
// once.
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

// bypassInterval is the shortest time between two reads of an entry for requests that
// bypass the tiers. Requests in between share the last answer. If changes are
// followed, it is the time for which answers that are not admitted are shared.
func (c *Cache) bypassInterval() time.Duration {
	if c.options.Bound > 0 {
		return c.tracker.ShareTime()
	}
	return 100 * time.Millisecond
}

// Bypass returns an entry that was read from the primary after the request
// arrived, or less than bypassInterval before.
func (c *Cache) Bypass(key []byte, list changefeed.List, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := time.Now()
	at := c.clock.At(arrived)
	if s := c.memory.get(key); s != nil {
		if e := s.entry.Load(); at-e.Proof < c.bypassInterval() {
			return c.memoryResult(e, at), nil
		}
	}
	key, fill.Standby = bytes.Clone(key), nil
	for {
		l := &lookup{Cache: c, key: key, list: list, fill: fill}
		// The flight has another name than that of Forward, which the tiers may answer.
		r, err := c.await(string(key)+" bypass", key, nil, arrived.Add(c.options.FillTimeout), l.fillAnew)
		if err == nil && at-r.Entry.Proof > c.bypassInterval() {
			continue // the flight began too long before the request
		}
		r.Bypassed = true
		return r, err
	}
}

// Stored returns the key's entry if memory or Redis has a fresh one, else ErrNotStored.
// It never reads from the origin. With a place, the entry may be joined from others in
// memory; nil = it is not joined.
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
