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
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"listedge/stream"
)

// Options configure a Cache. All durations are required.
type Options struct {
	Memory      int64                 // budget in bytes
	Redis       redis.UniversalClient // nil = no second tier
	TTL         time.Duration         // how long a page counts as fresh where changes are not followed
	Follow      *Follow               // how changes are followed; nil = they are not
	MaxStale    time.Duration         // how long after that it may stand in for a failing origin
	FillTimeout time.Duration         // how long a fill may take
}

// ErrFillTimeout: the fill did not end in time, and there was no stale page.
var ErrFillTimeout = errors.New("no page in time")

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
	Page      *Page
	Age       time.Duration // since the page was last known to equal the database
	Source    Source
	HadStale  bool  // there was a page, too old to be served
	Bypassed  bool  // the caches were not asked
	ByAge     bool  // changes are not followed: the page is fresh by its age alone
	Collapsed bool  // another request's flight brought the page
	Err       error // why a stale page is served; nil for a fresh one
}

// Filled is a page as the origin has it.
type Filled struct {
	Body     []byte // up to the request id; the cache keeps it
	Next     string // the next page's cursor
	Snapshot string // pg_current_snapshot() of the statement that read it
}

// Fill reads a page from the origin. It ends soon after ctx does.
type Fill func(ctx context.Context) (Filled, error)

// Cache is the two tiers and the collapsing in front of them.
type Cache struct {
	options Options
	memory  *memory
	redis   *redisTier // nil = none
	flights singleflight.Group
	follow  *following // nil = changes are not followed
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

// New makes an empty cache.
func New(o Options) (*Cache, error) {
	m, err := newMemory(o.Memory)
	if err != nil {
		return nil, err
	}
	c := &Cache{options: o, memory: m, start: time.Now(), stores: make(chan struct{}, maxStores)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if o.Redis != nil {
		c.redis = newRedisTier(o.Redis)
	}
	if o.Follow != nil {
		c.follow = startFollowing(*o.Follow, o.FillTimeout)
	}
	return c, nil
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
	c.follow.close()
	c.memory.close()
	return err
}

// Hit returns the key's page if it is in memory and may be served at once. It
// allocates nothing and does not keep key.
func (c *Cache) Hit(key []byte, now time.Time) (Result, bool) {
	held := c.memory.get(key)
	if held == nil {
		return Result{}, false
	}
	page := held.page.Load()
	if c.judge(page, now) != fresh {
		return Result{}, false
	}
	return Result{Page: page, Age: c.age(page, now), Source: Memory, ByAge: !c.follow.on()}, true
}

// bypassEvery is how often a page is read anew for requests that bypass the
// caches; those in between share what the last one brought.
const bypassEvery = 100 * time.Millisecond

// Bypass returns a page that was read from the database after it was asked
// for, or less than bypassEvery before.
func (c *Cache) Bypass(key []byte, pair stream.Pair, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := time.Now()
	if held := c.memory.get(key); held != nil {
		if p := held.page.Load(); arrived.Sub(p.Proof) < bypassEvery {
			return Result{Page: p, Age: c.age(p, arrived), Source: Memory, ByAge: !c.follow.on()}, nil
		}
	}
	timer := time.NewTimer(c.options.FillTimeout)
	defer timer.Stop()
	owned := bytes.Clone(key)
	for {
		// Collapsed apart from look-ups that the caches may answer.
		r, err := c.await(string(key)+" bypass", owned, nil, timer.C, func() (Result, error) {
			ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
			defer cancel()
			return c.read(ctx, owned, pair, nil, Origin, fill)
		})
		if err == nil && arrived.Sub(r.Page.Proof) > bypassEvery {
			continue // a flight that had begun too early
		}
		r.Bypassed = true
		return r, err
	}
}

// judge applies the serving rule: that of followed changes, or that of age.
func (c *Cache) judge(p *Page, now time.Time) freshness {
	if c.follow.on() {
		if c.follow.fresh(p, now) {
			return fresh
		}
		return judge(c.age(p, now), 0, c.options.TTL+c.options.MaxStale)
	}
	return judge(c.age(p, now), c.options.TTL, c.options.MaxStale)
}

// age is how long ago the page was last known to equal the database.
func (c *Cache) age(p *Page, now time.Time) time.Duration {
	if c.follow.on() {
		return c.follow.age(p, now)
	}
	return max(0, now.Sub(p.Proof))
}

// Forward returns the page of a key that Hit did not have; pair is what
// changes it. It does not keep key. The error is the fill's own, or
// ErrFillTimeout.
func (c *Cache) Forward(key []byte, pair stream.Pair, fill Fill) (Result, error) {
	held, ok := c.recall(key)
	if ok {
		return held, nil
	}
	return c.join(key, pair, held.Page, fill)
}

// recall looks in memory. If what it finds is to be served as it is, ok is
// true; else its page is the stale one that may stand in, or nil.
func (c *Cache) recall(key []byte) (r Result, ok bool) {
	held := c.memory.get(key)
	if held == nil {
		return Result{}, false
	}
	page, now := held.page.Load(), time.Now()
	age := c.age(page, now)
	switch c.judge(page, now) {
	case fresh: // brought by another request in the meantime
		return Result{Page: page, Age: age, Source: Memory, ByAge: !c.follow.on()}, true
	case stale:
		paused := int64(now.Sub(c.start)) < held.pausedUntil.Load()
		return Result{Page: page, Age: age, Source: Memory, HadStale: true, Err: errPaused}, paused
	}
	return Result{}, false
}

// standIn serves the stale page in place of the one that why kept from coming,
// or, where there is none or its time is over, nothing.
func (c *Cache) standIn(page *Page, from Source, why error) (Result, error) {
	if page == nil {
		return Result{}, why
	}
	now := time.Now()
	age := c.age(page, now)
	if c.judge(page, now) == expired {
		return Result{}, why
	}
	return Result{Page: page, Age: age, Source: from, HadStale: true, Err: why}, nil
}

var (
	errPaused  = errors.New("the last fill failed moments ago")
	errNoEpoch = errors.New("nobody follows changes yet")
	errClosed  = fmt.Errorf("cache closed: %w", context.Canceled)
	errPanic   = errors.New("panic in a fill")
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

// join joins the key's flight, or begins it, and waits for what it brings.
// held is the stale page the caller could be given instead, or nil.
func (c *Cache) join(key []byte, pair stream.Pair, held *Page, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	patience := c.options.FillTimeout + redisBudget
	if held != nil && c.remaining(held) > stalePatience {
		patience = min(patience, stalePatience)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	arrived := time.Now()
	owned := bytes.Clone(key) // which a flight may outlive the caller with
	for {
		r, err := c.await(string(key), owned, held, timer.C, func() (Result, error) { return c.fly(owned, pair, fill) })
		if err == nil && r.Err == nil && r.Collapsed && r.Page.Proof.Before(arrived) && c.judge(r.Page, time.Now()) != fresh {
			continue // read before this request came, by a slow flight, and too old by now
		}
		return r, err
	}
}

// await is one flight's worth of waiting.
func (c *Cache) await(name string, key []byte, held *Page, patience <-chan time.Time, flight func() (Result, error)) (Result, error) {
	var led atomic.Bool
	landed := c.flights.DoChan(name, func() (any, error) {
		if !c.enter() {
			return nil, errClosed
		}
		defer c.running.Done()
		led.Store(true)
		return flight()
	})
	select {
	case l := <-landed:
		if l.Err != nil {
			return c.standIn(held, Memory, l.Err)
		}
		r := l.Val.(Result)
		r.Collapsed = !led.Load()
		r.HadStale = r.HadStale || held != nil
		r.Age = c.age(r.Page, time.Now())
		r.ByAge = !c.follow.on()
		return r, nil
	case <-patience:
		if h := c.memory.get(key); h != nil { // one wait in vain is enough
			c.pause(h)
		}
		return c.standIn(held, Memory, ErrFillTimeout)
	}
}

// pause has the holder's page, while it is stale, served at once for a while.
func (c *Cache) pause(h *holder) {
	h.pausedUntil.Store(int64(time.Since(c.start) + fillPause))
}

// fly looks in memory once more, for another flight may have landed since its
// caller did, then in Redis, and then asks the origin.
func (c *Cache) fly(key []byte, pair stream.Pair, fill Fill) (Result, error) {
	r, ok := c.recall(key)
	if ok {
		return r, nil
	}
	held, source := r.Page, Memory
	ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
	defer cancel()
	if p := c.fromRedis(ctx, key, pair); p != nil {
		switch c.judge(p, time.Now()) {
		case fresh:
			c.memory.put(key, p, c.remaining(p))
			return Result{Page: p, Source: Redis}, nil
		case stale:
			if held == nil || p.Proof.After(held.Proof) {
				held, source = p, Redis
			}
		}
	}
	if p := c.fromFleet(ctx, key, pair); p != nil {
		c.memory.put(key, p, c.remaining(p))
		return Result{Page: p, Source: Redis}, nil
	}
	return c.read(ctx, key, pair, held, source, fill)
}

// fromRedis returns the key's page in Redis, if it has one, as it stands to
// the changes known here.
func (c *Cache) fromRedis(ctx context.Context, key []byte, pair stream.Pair) *Page {
	if c.redis == nil {
		return nil
	}
	p := c.redis.get(ctx, key)
	if p != nil && c.follow.on() && c.follow.trusted(time.Now()) {
		c.follow.adopt(p, pair)
	}
	return p
}

// fleetWaits is how long a node waits, time after time, for the page that
// another one is reading; then it asks the database itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet has one node of all that miss a page at once read it. It returns
// the page that another one read, or nil for the one that is to.
func (c *Cache) fromFleet(ctx context.Context, key []byte, pair stream.Pair) *Page {
	if c.redis == nil || !c.follow.on() || c.redis.claim(ctx, key) {
		return nil
	}
	for _, wait := range fleetWaits {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if p := c.fromRedis(ctx, key, pair); p != nil && c.judge(p, time.Now()) == fresh {
			return p
		}
	}
	return nil
}

// read asks the origin, and keeps the page if it may be.
func (c *Cache) read(ctx context.Context, key []byte, pair stream.Pair, held *Page, source Source, fill Fill) (Result, error) {
	began := c.follow.begin()
	c.fills.Add(1)
	filled, err := ask(ctx, fill)
	if err != nil {
		c.fillErrors.Add(1)
		c.release(key)
		r, err := c.standIn(held, source, err)
		if err == nil {
			c.pause(c.memory.put(key, held, c.remaining(held)))
		}
		return r, err
	}
	p, keep := NewPage(filled.Body, filled.Next, began.at), true
	if c.follow.on() {
		keep = c.follow.accept(began, p, pair, filled.Snapshot)
	}
	c.memory.put(key, p, c.remaining(p))
	if keep {
		c.store(key, p)
	} else {
		c.release(key)
	}
	return Result{Page: p, Source: Origin, HadStale: held != nil}, nil
}

// ask is fill, whose panic is an error: in a flight nobody would catch it, and
// it would end the process.
func ask(ctx context.Context, fill Fill) (f Filled, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return fill(ctx)
}

// remaining is how long a page may still be served in any way.
func (c *Cache) remaining(p *Page) time.Duration {
	return max(c.options.TTL+c.options.MaxStale-time.Since(p.Proof), time.Millisecond)
}

// store sends the page to Redis.
func (c *Cache) store(key []byte, p *Page) {
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

// Stats is a snapshot for metrics.
type Stats struct {
	Fills, FillErrors            uint64
	Evicted                      uint64
	MemoryBytes, MemoryBudget    int64
	RedisCalls, RedisFailures    uint64
	RedisCorrupt, RedisDropped   uint64
	RedisBreakerOpen, RedisInUse bool

	Mode     Mode
	ProofAge time.Duration // since the moment up to which everything is known to be applied
	Applied  uint64        // entries of the log
	Pairs    int           // whose changes are known
	Resyncs  map[string]uint64
}

// Stats returns the counts since the start and the present state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
	}
	if r := c.redis; r != nil {
		s.RedisInUse = true
		s.RedisCalls, s.RedisFailures = r.calls.Load(), r.failures.Load()
		s.RedisCorrupt, s.RedisDropped = r.corrupt.Load(), r.dropped.Load()
		s.RedisBreakerOpen = r.breaker.State().String() == "open"
	}
	s.Mode = c.Mode()
	if c.follow != nil {
		c.follow.describe(&s)
	}
	return s
}

// Mode is what the freshness of pages rests on at the moment.
func (c *Cache) Mode() Mode {
	switch {
	case !c.follow.on():
		return ModeTTL
	case c.follow.trusted(time.Now()):
		return ModeFollowed
	}
	return ModeUntrusted
}

// Silence is how long no heartbeat has been read; zero where none is followed.
func (c *Cache) Silence() time.Duration {
	if c.follow == nil {
		return 0
	}
	return c.follow.silence()
}

// CannotFollow says that changes cannot be followed, so that pages are judged
// by their age, or that they can again. A page goes from the one to the other
// as if it were new.
func (c *Cache) CannotFollow(cannot bool) {
	if c.follow != nil {
		c.follow.ttl.Store(cannot)
	}
}
