package cache

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"time"
)

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
	missed, old, wait := c.missed(s), r.Entry, c.options.FillTimeout+redisBudget
	if old != nil && c.remaining(old) > staleWait {
		wait = min(wait, staleWait)
	}
	l, arrived := &lookup{Cache: c, key: bytes.Clone(key), fill: fill}, c.clock.Now()
	r, err := l.await(string(l.key), old, wait, l.find, func(e *Entry) bool { return e.ReadAt < arrived && c.judge(e, c.clock.Now()) != fresh })
	if r.Source != Memory || r.Err != nil { // else the rows had it, or another request found it
		r.Missed = missed
	}
	return r, err
}

// missed returns Result.Missed: why the slot's entry, or a missing slot, is no hit.
func (c *Cache) missed(s *slot) string {
	switch {
	case c.following.Load() && !c.followed.trusted(c.clock.Now()):
		return "unproven"
	case s == nil:
		return "not-held"
	}
	return "stale" // by its age, or because the replica has not all of its rows any more
}

// Bypass returns an entry that equalled the database less than shareTime before the request
// arrived, or later: from memory, else read from the primary.
func (c *Cache) Bypass(key []byte, fill Fill) (Result, error) {
	if !c.enter() {
		return Result{}, errClosed
	}
	defer c.running.Done()
	arrived := c.clock.Now()
	tooOld := func(e *Entry) bool { return arrived-e.Proof >= c.followed.shareTime() }
	if s := c.memory.get(key); s != nil {
		if e := s.entry.Load(); !tooOld(e) {
			return c.memoryResult(e, arrived), nil
		}
	}
	fill.Standby = nil
	l := &lookup{Cache: c, key: bytes.Clone(key), fill: fill}
	// The flight has another name than that of Forward, which the tiers may answer.
	r, err := l.await(string(key)+" bypass", nil, c.options.FillTimeout, l.fillAnew, tooOld)
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

// await waits for the result of the flight of that name. Of concurrent requests the first
// runs the look-up, and the others get the same result. One of them looks again if the result
// of a slow flight is too old for it. If there is no result in time, or an error, await serves
// old, the stale entry.
func (l *lookup) await(name string, old *Entry, wait time.Duration, look func() (Result, error), tooOld func(*Entry) bool) (Result, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		first := false
		landed := l.flights.DoChan(name, func() (any, error) {
			first = true
			if !l.enter() { // a flight may outlive its requests
				return Result{}, errClosed
			}
			defer l.running.Done()
			return protect(look)
		})
		select {
		case is := <-landed:
			r, err := is.Val.(Result), is.Err
			r.Collapsed = !first
			if err != nil {
				stale, err := l.serveStale(old, err)
				stale.Times = r.Times
				return stale, err
			}
			if r.Collapsed && r.Err == nil && tooOld(r.Entry) {
				continue
			}
			r.Age, r.ByTTL = l.age(r.Entry, l.clock.Now()), !l.following.Load()
			return r, nil
		case <-timer.C:
			if s := l.memory.get(l.key); s != nil { // so that the next request does not wait as long
				l.pause(s)
			}
			return l.serveStale(old, ErrFillTimeout)
		}
	}
}

// protect turns a panic of call into an error. In a goroutine without a recover a panic
// would end the process.
func protect[T any](call func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return call()
}
