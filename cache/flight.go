package cache

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"listedge/stream"
)

// A flight is one look-up of a page that is not fresh in memory: in Redis,
// then at another node that may be reading it, then at the origin. All who ask
// for the page meanwhile wait for the same flight.

// bypassEvery is how often a page is read anew for requests that bypass the
// caches; those in between share what the last one brought. Where changes are
// followed it is as long as answers are shared anyway.
func (c *Cache) bypassEvery() time.Duration {
	if c.follow != nil {
		return c.follow.bound / shareFactor
	}
	return 100 * time.Millisecond
}

// Bypass returns a page that was read from the database after it was asked
// for, or less than bypassEvery before.
func (c *Cache) Bypass(key []byte, pair stream.Pair, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := time.Now()
	if held := c.memory.get(key); held != nil {
		if p := held.page.Load(); arrived.Sub(p.Proof) < c.bypassEvery() {
			return Result{Page: p, Age: c.age(p, arrived), Source: Memory, ByAge: !c.follow.on()}, nil
		}
	}
	until := arrived.Add(c.options.FillTimeout)
	owned := bytes.Clone(key)
	for {
		// Collapsed apart from look-ups that the caches may answer.
		r, err := c.await(string(key)+" bypass", owned, nil, until, nil, func() (Result, error) {
			ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
			defer cancel()
			return c.read(ctx, owned, pair, nil, Origin, Fill{Primary: fill.Primary, Compress: fill.Compress})
		})
		if err == nil && arrived.Sub(r.Page.Proof) > c.bypassEvery() {
			continue // a flight that had begun too early
		}
		r.Bypassed = true
		return r, err
	}
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
	arrived := time.Now()
	until := arrived.Add(patience)
	owned := bytes.Clone(key) // which a flight may outlive the caller with
	for {
		l := &lookUp{cache: c, key: owned, pair: pair, fill: fill}
		r, err := c.await(string(key), owned, held, until, l.near, l.far)
		if err == nil && r.Err == nil && r.Collapsed && r.Page.begun.Before(arrived) && c.judge(r.Page, time.Now()) != fresh {
			continue // read before this request came, by a slow flight, and too old by now
		}
		return r, err
	}
}

// await is one flight's worth of waiting, until then at the most.
func (c *Cache) await(name string, key []byte, held *Page, until time.Time, near func() (Result, bool), far func() (Result, error)) (Result, error) {
	flight, leads := c.flights.board(name)
	if leads {
		c.lead(flight, near, far)
	}
	if !flight.wait(until) {
		if h := c.memory.get(key); h != nil { // one wait in vain is enough
			c.pause(h)
		}
		return c.standIn(held, Memory, ErrFillTimeout)
	}
	r := flight.r
	if flight.err != nil {
		r, err := c.standIn(held, Memory, flight.err)
		r.Times = flight.r.Times
		return r, err
	}
	r.Collapsed = !leads
	r.HadStale = r.HadStale || held != nil
	r.Age = c.age(r.Page, time.Now())
	r.ByAge = !c.follow.on()
	return r, nil
}

// lead looks for the page near at hand, which does not take long; what may, is
// done behind the caller, who has not the patience for all of it. near is nil
// where nothing near will do.
func (c *Cache) lead(f *flight, near func() (Result, bool), far func() (Result, error)) {
	flying := false
	defer func() {
		if !flying {
			c.flights.land(f)
		}
	}()
	if near != nil {
		if r, ok := near(); ok {
			f.r, f.err = r, nil
			return
		}
	}
	if !c.enter() {
		f.err = errClosed
		return
	}
	flying = true
	go func() {
		defer c.running.Done()
		f.r, f.err = far()
		c.flights.land(f)
	}()
}

// pause has the holder's page, while it is stale, served at once for a while.
func (c *Cache) pause(h *holder) {
	h.pausedUntil.Store(int64(time.Since(c.start) + fillPause))
}

// lookUp is the way of one page that is not fresh in memory: first near, then
// far.
type lookUp struct {
	cache *Cache
	key   []byte
	pair  stream.Pair
	fill  Fill

	held   *Page // the newest stale page so far, which may stand in; nil = none
	source Source
	began  time.Time // when Redis was asked first
}

// near looks in memory once more, for another flight may have landed since its
// caller did, and then in Redis.
func (l *lookUp) near() (Result, bool) {
	c := l.cache
	r, ok := c.recall(c.memory.get(l.key))
	if ok {
		return r, true
	}
	l.held, l.source, l.began = r.Page, Memory, time.Now()
	p := c.fromRedis(c.ctx, l.key, l.pair, true)
	if p == nil {
		return Result{}, false
	}
	switch c.judge(p, time.Now()) {
	case fresh:
		return l.foundInRedis(p), true
	case stale:
		if l.held == nil || p.Proof.After(l.held.Proof) {
			l.held, l.source = p, Redis
		}
	}
	return Result{}, false
}

// far waits for another node that may be reading the page, and then asks the
// origin.
func (l *lookUp) far() (Result, error) {
	c := l.cache
	ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
	defer cancel()
	if p := c.fromFleet(ctx, l.key, l.pair); p != nil {
		return l.foundInRedis(p), nil
	}
	var asked Span
	if c.redis != nil {
		asked = since(l.began)
	}
	r, err := c.read(ctx, l.key, l.pair, l.held, l.source, l.fill)
	r.Times.Redis = asked
	came := err == nil && r.Err == nil
	if c.follow.on() && !(came && (r.Page.stands() || c.ahead.again(l.key, l.pair, r.Page, l.fill))) {
		c.release(l.key) // storing a page that stands does so itself
	}
	return r, err
}

func (l *lookUp) foundInRedis(p *Page) Result {
	l.cache.memory.put(l.key, p, l.cache.remaining(p))
	return Result{Page: p, Source: Redis, Times: &Times{Redis: since(l.began)}}
}

// whole is near and far in one.
func (l *lookUp) whole() (Result, error) {
	if r, ok := l.near(); ok {
		return r, nil
	}
	return l.far()
}

// fromRedis returns the key's page in Redis, if it has one, as it stands to
// the changes known here. How old a page is that stands, its node knows better
// than Redis; one that does not is asked for again, with its age, where a stale
// page is of use.
func (c *Cache) fromRedis(ctx context.Context, key []byte, pair stream.Pair, useStale bool) *Page {
	if c.redis == nil {
		return nil
	}
	trusted := c.follow.on() && c.follow.trusted(time.Now())
	if trusted {
		p := c.redis.get(ctx, key)
		if p == nil || c.follow.adopt(p, pair) {
			return p
		}
		if !useStale {
			return nil
		}
	}
	p := c.redis.getAged(ctx, key)
	if p != nil && trusted {
		c.follow.adopt(p, pair) // it may have been replaced
	}
	return p
}

// fleetWaits is how long a node waits, time after time, for the page that
// another one is reading; then it asks the database itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet has one node of all that miss a page at once read it. It returns
// the page that another one read, or nil for the one that is to.
func (c *Cache) fromFleet(ctx context.Context, key []byte, pair stream.Pair) *Page {
	if c.redis == nil || !c.follow.on() {
		return nil
	}
	mine := c.redis.claim(ctx, key)
	for _, wait := range fleetWaits {
		// Whose turn it is looks once more, too: the one before may just have ended.
		if p := c.fromRedis(ctx, key, pair, false); p != nil && c.judge(p, time.Now()) == fresh {
			if mine {
				c.release(key)
			}
			return p
		}
		if mine {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
	return nil
}

// read asks the origin, a standby first, and keeps the page if it may be. The
// result has times, also with an error.
func (c *Cache) read(ctx context.Context, key []byte, pair stream.Pair, held *Page, source Source, fill Fill) (r Result, err error) {
	c.fills.Add(1)
	times := &Times{Fill: Span{Began: time.Now()}}
	defer func() {
		times.Fill = since(times.Fill.Began)
		r.Times = times
	}()
	if held != nil {
		_, wanted := held.isDeflated()
		fill.Compress = fill.Compress || wanted
	}
	if p := c.fromStandby(ctx, pair, fill, times); p != nil {
		c.keep(key, pair, p, fill)
		return Result{Page: p, Source: Origin, HadStale: held != nil}, nil
	}
	began := c.follow.begin()
	filled, err := ask(func() (Filled, error) { return fill.Primary(ctx, c.follow.run()) })
	times.Query = filled.Query
	if err != nil {
		c.fillErrors.Add(1)
		r, err := c.standIn(held, source, err)
		if err == nil {
			c.pause(c.memory.put(key, held, c.remaining(held)))
		}
		return r, err
	}
	p := fill.page(&filled, began.at)
	if !c.follow.on() || c.follow.accept(began, p, pair, &filled) == kept {
		c.keep(key, pair, p, fill)
	} else {
		c.memory.put(key, p, c.remaining(p)) // shared for a moment
	}
	return Result{Page: p, Source: Origin, HadStale: held != nil}, nil
}

// fromStandby returns the page as a standby has it, if there is one that shows
// all that is known here. Where it does not, what it lacks cannot be told, and
// nobody is shown it.
func (c *Cache) fromStandby(ctx context.Context, pair stream.Pair, fill Fill, times *Times) *Page {
	if fill.Standby == nil || !c.follow.on() {
		return nil
	}
	server, lsn, ok := c.follow.needed(pair)
	if !ok {
		return nil
	}
	began := c.follow.begin()
	filled, err := ask(func() (Filled, error) { return fill.Standby(ctx, server, lsn) })
	times.Query = filled.Query
	if err != nil {
		return nil // the origin counts it
	}
	p := fill.page(&filled, began.at)
	if c.follow.accept(began, p, pair, &filled) != kept {
		return nil
	}
	return p
}

// keep puts a page that stands into both tiers, and remembers it for reading
// ahead when it is asked for so often that the next change should not be a
// reader's to wait for.
func (c *Cache) keep(key []byte, pair stream.Pair, p *Page, fill Fill) {
	h := c.memory.put(key, p, c.remaining(p))
	c.store(key, p)
	if p.stands() { // a page of the time when changes could not be followed does not, even if they can now
		c.ahead.remember(h, pair, p, fill)
	}
}

// page makes a page of what was read.
func (f Fill) page(filled *Filled, proof time.Time) *Page {
	p := NewPage(filled.Body, filled.Next, proof)
	if f.Compress {
		p.Deflate()
	}
	return p
}

// ask is fill, whose panic is an error: in a flight nobody would catch it, and
// it would end the process.
func ask(fill func() (Filled, error)) (f Filled, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return fill()
}

// remaining is how long a page may still be served in any way.
func (c *Cache) remaining(p *Page) time.Duration {
	return max(c.options.TTL+c.options.MaxStale-time.Since(p.Proof), time.Millisecond)
}
