package cache

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
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
	timer := time.NewTimer(c.options.FillTimeout)
	defer timer.Stop()
	owned := bytes.Clone(key)
	for {
		// Collapsed apart from look-ups that the caches may answer.
		r, err := c.await(string(key)+" bypass", owned, nil, timer.C, func() (Result, error) {
			ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
			defer cancel()
			return c.read(ctx, owned, pair, nil, Origin, Fill{Primary: fill.Primary})
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
	timer := time.NewTimer(patience)
	defer timer.Stop()
	arrived := time.Now()
	owned := bytes.Clone(key) // which a flight may outlive the caller with
	for {
		r, err := c.await(string(key), owned, held, timer.C, func() (Result, error) { return c.fly(owned, pair, fill) })
		if err == nil && r.Err == nil && r.Collapsed && r.Page.begun.Before(arrived) && c.judge(r.Page, time.Now()) != fresh {
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
		r, _ := l.Val.(Result)
		if l.Err != nil {
			times := r.Times
			r, err := c.standIn(held, Memory, l.Err)
			r.Times = times
			return r, err
		}
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
	r, ok := c.recall(c.memory.get(key))
	if ok {
		return r, nil
	}
	held, source := r.Page, Memory
	ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
	defer cancel()
	began := time.Now()
	if p := c.fromRedis(ctx, key, pair); p != nil {
		switch c.judge(p, time.Now()) {
		case fresh:
			c.memory.put(key, p, c.remaining(p))
			return Result{Page: p, Source: Redis, Times: &Times{Redis: since(began)}}, nil
		case stale:
			if held == nil || p.Proof.After(held.Proof) {
				held, source = p, Redis
			}
		}
	}
	if p := c.fromFleet(ctx, key, pair); p != nil {
		c.memory.put(key, p, c.remaining(p))
		return Result{Page: p, Source: Redis, Times: &Times{Redis: since(began)}}, nil
	}
	var asked Span
	if c.redis != nil {
		asked = since(began)
	}
	r, err := c.read(ctx, key, pair, held, source, fill)
	r.Times.Redis = asked
	came := err == nil && r.Err == nil
	if c.follow.on() && !(came && (r.Page.stands() || c.ahead.again(key, pair, r.Page, fill))) {
		c.release(key) // storing a page that stands does so itself
	}
	return r, err
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
	if c.redis == nil || !c.follow.on() {
		return nil
	}
	mine := c.redis.claim(ctx, key)
	for _, wait := range fleetWaits {
		// Whose turn it is looks once more, too: the one before may just have ended.
		if p := c.fromRedis(ctx, key, pair); p != nil && c.judge(p, time.Now()) == fresh {
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
