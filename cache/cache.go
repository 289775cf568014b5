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
	"golang.org/x/sync/singleflight"
)

// Options configure a Cache. All durations are required.
type Options struct {
	Memory      int64                 // budget in bytes
	Redis       redis.UniversalClient // nil = no second tier
	TTL         time.Duration         // how long a page counts as fresh
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
	Collapsed bool  // another request's flight brought the page
	Err       error // why a stale page is served; nil for a fresh one
}

// Fill reads the page from the origin: its body, up to the request id, and the
// next page's cursor.
type Fill func(ctx context.Context) (body []byte, next string, err error)

// Cache is the two tiers and the collapsing in front of them.
type Cache struct {
	options Options
	memory  *memory
	redis   *redisTier // nil = none
	flights singleflight.Group
	start   time.Time

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	mu      sync.Mutex // guards closed against a Forward that is about to fly
	closed  bool
	running sync.WaitGroup // flights and stores
	stores  chan struct{}  // one place per store to Redis under way

	fills, fillErrors atomic.Uint64
}

const (
	// stalePatience is how long a request that could be answered with a stale
	// page waits for a fresh one.
	stalePatience = time.Second
	// fillPause is how long a page whose fill failed is served stale before
	// the origin is asked for it again.
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
	return c, nil
}

// Close lets flights end, until ctx does, and then cuts them off.
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
	c.memory.close()
	return err
}

// Hit returns the key's page if it is in memory and may be served at once. It
// takes no lock, allocates nothing, and does not keep key.
func (c *Cache) Hit(key []byte, now time.Time) (Result, bool) {
	held := c.memory.get(key)
	if held == nil {
		return Result{}, false
	}
	page := held.page.Load()
	age := max(0, now.Sub(page.Proof))
	if judge(age, c.options.TTL, c.options.MaxStale) != fresh {
		return Result{}, false
	}
	return Result{Page: page, Age: age, Source: Memory}, true
}

// Forward returns the page of a key that Hit did not have. It does not keep
// key. The error is the fill's own, or ErrFillTimeout.
func (c *Cache) Forward(key []byte, fill Fill) (Result, error) {
	held := c.memory.get(key)
	if held == nil {
		return c.join(key, nil, fill)
	}
	page, now := held.page.Load(), time.Now()
	age := now.Sub(page.Proof)
	switch judge(age, c.options.TTL, c.options.MaxStale) {
	case fresh: // brought by another request in the meantime
		return Result{Page: page, Age: max(0, age), Source: Memory}, nil
	case expired:
		page = nil
	case stale:
		if int64(now.Sub(c.start)) < held.pausedUntil.Load() {
			return Result{Page: page, Age: age, Source: Memory, HadStale: true, Err: errPaused}, nil
		}
	}
	return c.join(key, page, fill)
}

var errPaused = errors.New("the last fill failed moments ago")

// join joins the key's flight, or begins it, and waits for what it brings.
// held is the stale page the caller could be given instead, or nil.
func (c *Cache) join(key []byte, held *Page, fill Fill) (Result, error) {
	name := string(key)
	var led atomic.Bool
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return Result{}, fmt.Errorf("cache closed: %w", context.Canceled)
	}
	c.running.Add(1) // held until this caller stops waiting, so a flight never outlives Close
	c.mu.Unlock()
	landed := c.flights.DoChan(name, func() (any, error) {
		led.Store(true)
		c.running.Add(1)
		defer c.running.Done()
		return c.fly([]byte(name), held, fill)
	})
	defer c.running.Done()

	patience := c.options.FillTimeout + redisBudget
	if held != nil {
		patience = min(patience, stalePatience)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case l := <-landed:
		if l.Err != nil {
			return Result{}, l.Err
		}
		r := l.Val.(Result)
		r.Collapsed = !led.Load()
		r.HadStale = r.HadStale || held != nil
		r.Age = max(0, time.Since(r.Page.Proof))
		return r, nil
	case <-timer.C:
		if held != nil {
			return Result{Page: held, Age: time.Since(held.Proof), Source: Memory, HadStale: true, Err: ErrFillTimeout}, nil
		}
		return Result{}, ErrFillTimeout
	}
}

// fly looks in Redis and then asks the origin.
func (c *Cache) fly(key []byte, held *Page, fill Fill) (Result, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
	defer cancel()
	if c.redis != nil {
		now := time.Now()
		if p := c.redis.get(ctx, key, now); p != nil {
			switch judge(now.Sub(p.Proof), c.options.TTL, c.options.MaxStale) {
			case fresh:
				c.memory.put(key, p, c.remaining(p))
				return Result{Page: p, Source: Redis}, nil
			case stale:
				if held == nil || p.Proof.After(held.Proof) {
					held = p
				}
			}
		}
	}
	began := time.Now()
	c.fills.Add(1)
	body, next, err := fill(ctx)
	if err != nil {
		c.fillErrors.Add(1)
		if held == nil {
			return Result{}, err
		}
		source := Memory
		if kept := c.memory.put(key, held, c.remaining(held)); kept != nil {
			kept.pausedUntil.Store(int64(time.Since(c.start) + fillPause))
		}
		return Result{Page: held, Source: source, HadStale: true, Err: err}, nil
	}
	p := NewPage(body, next, began)
	c.memory.put(key, p, c.remaining(p))
	c.store(key, p)
	return Result{Page: p, Source: Origin, HadStale: held != nil}, nil
}

// remaining is how long a page may still be served in any way.
func (c *Cache) remaining(p *Page) time.Duration {
	return max(c.options.TTL+c.options.MaxStale-time.Since(p.Proof), time.Millisecond)
}

// store sends the page to Redis, for which nobody waits; too many at once are
// dropped, for Redis is then the bottleneck and a page is worth little.
func (c *Cache) store(key []byte, p *Page) {
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
		c.redis.set(c.ctx, key, p, c.options.TTL+c.options.MaxStale)
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
	return s
}
