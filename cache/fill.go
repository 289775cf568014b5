package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"listedge/internal/changefeed"
)

// read asks the origin, a standby first, and keeps the page if it may be. What
// another server than the followed primary answers is shown to nobody. The
// result has times, also with an error.
func (c *Cache) read(ctx context.Context, key []byte, pair changefeed.List, held *Entry, source Source, fill Fill) (r Result, err error) {
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
		return Result{Entry: p, Source: Origin, HadStale: held != nil}, nil
	}
	p, keep, err := c.fromPrimary(ctx, pair, fill, times)
	if err != nil {
		c.fillErrors.Add(1)
		r, err := c.standIn(held, source, err)
		if err == nil {
			c.pause(c.memory.put(key, held, c.remaining(held)))
		}
		return r, err
	}
	if keep {
		c.keep(key, pair, p, fill)
	} else {
		c.memory.put(key, p, c.remaining(p)) // shared for a moment
	}
	return Result{Entry: p, Source: Origin, HadStale: held != nil}, nil
}

// fromPrimary returns the page as the primary has it, and whether it may be kept.
func (c *Cache) fromPrimary(ctx context.Context, pair changefeed.List, fill Fill, times *Times) (p *Entry, keep bool, err error) {
	began := c.follow.begin()
	filled, err := ask(func() (FillResult, error) { return fill.Primary(ctx, c.follow.run()) })
	times.Query = filled.Query
	if err != nil {
		if errors.Is(err, ErrWrongServer) {
			c.follow.count(foreign)
		}
		return nil, false, err
	}
	p = fill.page(&filled, began.at)
	if !c.follow.on() {
		return p, true, nil
	}
	v := c.follow.accept(began, p, pair, &filled)
	if v == foreign {
		return nil, false, ErrWrongServer
	}
	return p, v == kept, nil
}

// fromStandby returns the page as a standby has it, if there is one that shows
// all that is known here. Where it does not, what it lacks cannot be told, and
// nobody is shown it.
func (c *Cache) fromStandby(ctx context.Context, pair changefeed.List, fill Fill, times *Times) *Entry {
	if fill.Standby == nil || !c.follow.on() {
		return nil
	}
	needed, ok := c.follow.needed(pair)
	if !ok {
		return nil
	}
	began := c.follow.begin()
	filled, err := ask(func() (FillResult, error) { return fill.Standby(ctx, needed) })
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
func (c *Cache) keep(key []byte, pair changefeed.List, p *Entry, fill Fill) {
	h := c.memory.put(key, p, c.remaining(p))
	c.store(key, p)
	if p.stands() { // a page of the time when changes could not be followed does not, even if they can now
		c.ahead.remember(h, pair, p, fill)
	}
}

// page makes a page of what was read.
func (f Fill) page(filled *FillResult, proof time.Time) *Entry {
	p := NewEntry(filled.Body, filled.Next)
	p.Proof, p.begun = proof, proof
	if f.Compress {
		p.Deflate()
	}
	return p
}

// ask is fill, whose panic is an error: in a flight nobody would catch it, and
// it would end the process.
func ask(fill func() (FillResult, error)) (f FillResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return fill()
}

// remaining is how long a page may still be served in any way.
func (c *Cache) remaining(p *Entry) time.Duration {
	return max(c.options.TTL+c.options.MaxStale-c.options.Clock.Since(p.Proof), time.Millisecond)
}
