// Package cache keeps pages of lists as near to the client as they can be and
// as long as they may be.
//
//	Hit ──► memory ── fresh ──────────────────────────────────────────► page
//	Forward    │ not fresh
//	           ▼   one flight per key and node; all others wait for it
//	        collapse ──► redis ── fresh ──► memory ──────────────────► page
//	                       │ not fresh
//	                       ▼
//	                     fill ── page ──► memory, redis ──────────────► page
//	                       │ failed
//	                       ▼
//	                     the newest stale page, marked; else the error
//
// A flight outlives the request that began it: it has its own deadline, and
// Close waits for it.
package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// Options configure a Cache. All durations but Bound are required.
type Options struct {
	Memory      int64                 // budget in bytes
	Redis       redis.UniversalClient // nil = no second tier
	Followed    *changefeed.Followed  // what the pages are of, as far as is known; nil = it never is
	TTL         time.Duration         // how long a page counts as fresh where changes are not followed
	Bound       time.Duration         // D: no page served as fresh omits a commit older than this; 0 = changes are not followed
	MaxStale    time.Duration         // how long after that it may stand in for a failing origin
	FillTimeout time.Duration         // how long a fill may take
	Clock       *boottime.Clock       // tells the age of pages and proofs; nil = one of the cache's own
}

// ErrFillTimeout: the fill did not end in time, and there was no stale page.
var ErrFillTimeout = errors.New("no page in time")

// ErrNotStored: no tier has the page, and the origin was not to be asked.
var ErrNotStored = errors.New("the page is not stored")

// ErrWrongServer: another server than the followed primary answered.
var ErrWrongServer = errors.New("not the server whose changes are followed")

// Source says where a page came from.
type Source uint8

// The sources.
const (
	Memory Source = iota
	Redis
	Origin
)

func (s Source) String() string { return [...]string{"memory", "redis", "origin"}[s] }

// Result says which page it is and how it came about.
type Result struct {
	Entry     *Entry
	Age       time.Duration // since the page was last known to equal the database
	Source    Source
	Local     bool  // neither Redis nor the origin was asked for it, by this request or the one it waited for
	HadStale  bool  // there was a page, too old to be served
	Bypassed  bool  // the caches were not asked
	ByTTL     bool  // changes are not followed: the page is fresh by its age alone
	Collapsed bool  // another request's flight brought the page
	Err       error // why a stale page is served; nil for a fresh one

	Times *Times // of the flight, also of one that failed; nil = none has landed
}

// FillResult is a page as the origin has it.
type FillResult struct {
	Body     []byte // up to the request id; the cache keeps it
	Next     string // the next page's cursor
	Snapshot string // from the primary: pg_current_snapshot() of the statement that read it
	Run      string // and when its server was started
	Server   string // from a standby: system and timeline it follows
	LSN      uint64 // and what it had replayed before the statement began
	Query    Span   // when the server was asked, also in vain
}

// Needed is what a page of a standby must show, and what is known of its primary.
type Needed struct {
	Server  string    // the primary's system and timeline
	Run     string    // when it was started, by its own clock
	LSN     uint64    // the page shows all up to here
	Primary uint64    // where the primary's WAL ended
	At      time.Time // then, or later
}

// Fill reads a page from the origin. Its functions end soon after ctx does.
type Fill struct {
	// Primary reads it from the primary, of which is known when it was started;
	// empty = it is not. ErrWrongServer: another server answered.
	Primary func(ctx context.Context, run string) (FillResult, error)
	// Standby reads it from a standby that has replayed what is needed; any
	// error has the primary asked. nil = there is no standby.
	Standby func(ctx context.Context, n Needed) (FillResult, error)
	// Compress says that it is wanted compressed: it goes to other nodes so.
	Compress bool
}

// Cache is the two tiers and the collapsing in front of them.
type Cache struct {
	options Options
	memory  *memory
	redis   *redisTier // nil = none
	flights flights
	follow  *following // nil = changes are not followed
	ahead   *ahead
	start   time.Time

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed against a Forward that is about to fly
	closed  bool
	running sync.WaitGroup // flights and calls to Redis
	stores  chan struct{}  // one place per store to Redis under way

	fills, fillErrors atomic.Uint64
}

const (
	// stalePatience is how long a request that could be answered with a stale
	// page waits for a fresh one.
	stalePatience = time.Second
	// fillPause is how long a page whose fill failed, or was waited for in
	// vain, is served stale before anybody waits for it again.
	fillPause = time.Second
	// maxStores bounds the pages on their way to Redis; more are not stored.
	maxStores = 64
)

// New makes an empty cache. It waits a moment for connections to Redis, so that
// these are open before the first page is asked for, and goes on without.
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
	c := &Cache{options: o, memory: m, start: time.Now(), stores: make(chan struct{}, maxStores)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if o.Redis != nil {
		c.redis = newRedisTier(o.Redis, o.Followed)
	}
	c.ahead = startAhead(c)
	if o.Bound > 0 {
		c.follow = &following{tracker: newTracker(o.Bound, o.FillTimeout, o.Clock), database: o.Followed}
		c.follow.changed = c.ahead.changed
	}
	return c, nil
}

// Listener is what has to be given the changes in the database; nil where the
// cache does not follow them. It must not be called any more once Close is.
func (c *Cache) Listener() changefeed.Listener {
	if c.follow == nil {
		return nil
	}
	return c.follow.tracker
}

// Close lets flights and stores end, until ctx does, and then cuts them off.
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
		c.redis.servers.close()
	}
	c.ahead.close()
	c.memory.close()
	return err
}

// Hit returns the key's page if it is in memory and may be served at once. The
// spot is the client's who asks. It allocates nothing and does not keep key.
func (c *Cache) Hit(s *Spot, key []byte, now time.Time) (Result, bool) {
	return c.hit(c.memory.again(s, key, now), now)
}

func (c *Cache) hit(held *holder, now time.Time) (Result, bool) {
	if held == nil {
		return Result{}, false
	}
	page := held.page.Load()
	if c.judge(page, now) != fresh {
		return Result{}, false
	}
	held.asked.Add(1)
	return Result{Entry: page, Age: c.age(page, now), Source: Memory, Local: true, ByTTL: !c.follow.on()}, true
}

// Probe finds out whether a Redis that was left alone is back, which a cache
// that has all pages in memory would never notice. To be called now and then.
func (c *Cache) Probe(ctx context.Context) {
	if c.redis != nil {
		c.redis.probe(ctx)
	}
}

// judge applies the serving rule: that of followed changes, or that of age.
func (c *Cache) judge(p *Entry, now time.Time) freshness {
	if c.follow.on() {
		if c.follow.fresh(p, now) {
			return fresh
		}
		return judge(c.age(p, now), 0, c.options.TTL+c.options.MaxStale)
	}
	return judge(c.age(p, now), c.options.TTL, c.options.MaxStale)
}

// Primary is the system and the timeline of the primary whose changes were last
// proven to be followed, empty = none ever were, and which run of it; empty = that
// is not proven now.
func (c *Cache) Primary() (server, run string) {
	if c.follow == nil {
		return "", ""
	}
	run = c.follow.run()
	c.follow.mu.Lock()
	defer c.follow.mu.Unlock()
	return c.follow.lastServer, run
}

// age is how long ago the page was last known to equal the database.
func (c *Cache) age(p *Entry, now time.Time) time.Duration {
	if c.follow.on() {
		return c.follow.age(p, now)
	}
	return max(0, c.options.Clock.Between(p.Proof, now))
}

// Forward returns the page of a key that Hit did not have; pair is what
// changes it. It does not keep key. The error is the fill's own, or
// ErrFillTimeout.
func (c *Cache) Forward(key []byte, pair changefeed.List, fill Fill) (Result, error) {
	held := c.memory.get(key)
	if held != nil {
		held.asked.Add(1)
	}
	r, ok := c.recall(held)
	if ok {
		return r, nil
	}
	return c.join(key, pair, r.Entry, fill)
}

// recall judges what memory has, if anything. If it is to be served as it is,
// ok is true; else its page is the stale one that may stand in, or nil.
func (c *Cache) recall(held *holder) (r Result, ok bool) {
	if held == nil {
		return Result{}, false
	}
	page, now := held.page.Load(), time.Now()
	age := c.age(page, now)
	switch c.judge(page, now) {
	case fresh: // brought by another request in the meantime
		return Result{Entry: page, Age: age, Source: Memory, Local: true, ByTTL: !c.follow.on()}, true
	case stale:
		paused := int64(now.Sub(c.start)) < held.pausedUntil.Load()
		return Result{Entry: page, Age: age, Source: Memory, Local: true, HadStale: true, Err: errPaused}, paused
	}
	return Result{}, false
}

// standIn serves the stale page in place of the one that why kept from coming,
// or, where there is none or its time is over, nothing.
func (c *Cache) standIn(page *Entry, from Source, why error) (Result, error) {
	if page == nil {
		return Result{}, why
	}
	now := time.Now()
	age := c.age(page, now)
	if c.judge(page, now) == expired {
		return Result{}, why
	}
	return Result{Entry: page, Age: age, Source: from, HadStale: true, Err: why}, nil
}

var (
	errPaused = errors.New("the last fill failed moments ago")
	errClosed = fmt.Errorf("cache closed: %w", context.Canceled)
	errPanic  = errors.New("panic in a fill")
)

// enter counts in what Close is to wait for; false once Close was called.
func (c *Cache) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// store sends the page to Redis.
func (c *Cache) store(key []byte, p *Entry) {
	c.later(func() { c.redis.set(c.ctx, key, p, c.options.TTL+c.options.MaxStale) })
}

// release lets another node read the page that this one claimed.
func (c *Cache) release(key []byte) {
	if c.follow.on() {
		c.later(func() { c.redis.release(c.ctx, key) })
	}
}

// later runs a call to Redis for which nobody waits; too many at once are
// dropped, for Redis is then the bottleneck and a page is worth little.
func (c *Cache) later(call func()) {
	if c.redis == nil {
		return
	}
	select {
	case c.stores <- struct{}{}:
	default:
		c.redis.dropped.Add(1)
		return
	}
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		defer func() { <-c.stores }()
		call()
	}()
}
