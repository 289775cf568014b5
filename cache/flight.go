package cache

import (
	"bytes"
	"context"
	"time"

	"listedge/internal/changefeed"
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
func (c *Cache) Bypass(key []byte, pair changefeed.List, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := time.Now()
	if held := c.memory.get(key); held != nil {
		if p := held.page.Load(); c.options.Clock.Between(p.Proof, arrived) < c.bypassEvery() {
			return Result{Entry: p, Age: c.age(p, arrived), Source: Memory, Local: true, ByTTL: !c.follow.on()}, nil
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
		if err == nil && arrived.Sub(r.Entry.Proof) > c.bypassEvery() {
			continue // a flight that had begun too early
		}
		r.Bypassed = true
		return r, err
	}
}

// Stored returns the key's page if memory or Redis has one that may be served,
// else ErrNotStored. It never asks the origin.
func (c *Cache) Stored(key []byte, pair changefeed.List) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	l := &lookUp{cache: c, key: bytes.Clone(key), pair: pair}
	r, err := c.flights.do(string(key)+" stored", func() (Result, error) {
		if r, ok := l.near(); ok {
			return r, nil
		}
		return Result{Local: c.redis == nil}, ErrNotStored
	})
	if err == nil {
		r.Age, r.ByTTL = c.age(r.Entry, time.Now()), !c.follow.on()
	}
	return r, err
}

// join joins the key's flight, or begins it, and waits for what it brings.
// held is the stale page the caller could be given instead, or nil.
func (c *Cache) join(key []byte, pair changefeed.List, held *Entry, fill Fill) (Result, error) {
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
		if err == nil && r.Err == nil && r.Collapsed && r.Entry.begun.Before(arrived) && c.judge(r.Entry, time.Now()) != fresh {
			continue // read before this request came, by a slow flight, and too old by now
		}
		return r, err
	}
}

// await is one flight's worth of waiting, until then at the most.
func (c *Cache) await(name string, key []byte, held *Entry, until time.Time, near func() (Result, bool), far func() (Result, error)) (Result, error) {
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
	r.Age = c.age(r.Entry, time.Now())
	r.ByTTL = !c.follow.on()
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
