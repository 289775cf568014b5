package cache

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// flights are the look-ups in flight, by name. Of concurrent requests for one entry the
// first runs the look-up, and the others wait for the same result.
//
// Invariants: a name has at most one flight; every flight finishes, even if its
// look-up panics; result and err do not change once done is closed.
type flights struct {
	mu     sync.Mutex
	byName map[string]*flight // guarded by mu
}

type flight struct {
	name   string
	done   chan struct{}
	result Result
	err    error
}

// enter returns the name's flight. If first is true, the caller must run it.
func (f *flights) enter(name string) (of *flight, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.byName[name]; of != nil {
		return of, false
	}
	of = &flight{name: name, done: make(chan struct{})}
	if f.byName == nil {
		f.byName = map[string]*flight{}
	}
	f.byName[name] = of
	return of, true
}

// run looks up the result of a flight. A later join gets a new flight.
func (f *flights) run(of *flight, look func() (Result, error)) {
	of.result, of.err = protect(look)
	f.mu.Lock()
	delete(f.byName, of.name)
	f.mu.Unlock()
	close(of.done)
}

// do joins the name's flight and returns its result. It runs the flight if it is the
// first to join.
func (f *flights) do(name string, look func() (Result, error)) (Result, error) {
	of, first := f.enter(name)
	if first {
		f.run(of, look)
	}
	<-of.done
	return of.result, of.err
}

// wait waits for the flight's result until that time, and reports whether there is one.
func (f *flight) wait(until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-f.done:
		return true
	case <-timer.C:
		return false
	}
}

// collapse waits for the key's flight. It begins one if there is none.
func (c *Cache) collapse(key []byte, old *Entry, fill Fill) (Result, error) {
	wait := c.options.FillTimeout + redisBudget
	if old != nil && c.remaining(old) > staleWait {
		wait = min(wait, staleWait)
	}
	arrived := time.Now()
	for at := c.clock.At(arrived); ; {
		l := &lookup{Cache: c, key: key, fill: fill}
		r, err := c.await(string(key), key, old, arrived.Add(wait), l.find)
		if err == nil && r.Err == nil && r.Collapsed && r.Entry.ReadAt < at && c.judge(r.Entry, c.clock.Now()) != fresh {
			continue // a slow flight read the entry before this request arrived, and it is not fresh any more
		}
		return r, err
	}
}

// await waits for the flight of that name until that time. If there is no result, or an
// error, it serves the stale entry.
func (c *Cache) await(name string, key []byte, old *Entry, until time.Time, look func() (Result, error)) (Result, error) {
	flight, first := c.flights.enter(name)
	if first {
		c.running.Go(func() { c.flights.run(flight, look) })
	}
	if !flight.wait(until) {
		if s := c.memory.get(key); s != nil { // so that the next request does not wait as long
			c.pause(s)
		}
		return c.serveStale(old, Memory, ErrFillTimeout)
	}
	r := flight.result
	if flight.err != nil {
		r, err := c.serveStale(old, Memory, flight.err)
		r.Times = flight.result.Times
		return r, err
	}
	r.Collapsed = !first
	r.HadStale = r.HadStale || old != nil
	r.Age, r.ByTTL = c.age(r.Entry, c.clock.Now()), !c.following.Load()
	return r, nil
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
