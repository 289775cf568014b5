package cache

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
)

// flights are the look-ups under way, by name. Of all requests for one entry at
// once, the first looks it up and the others wait for the same result.
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

// join returns the name's flight. If first is true, the caller must run it.
func (f *flights) join(name string) (of *flight, first bool) {
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

// run looks up the result of a flight. Whoever joins afterwards gets another flight.
func (f *flights) run(of *flight, look func() (Result, error)) {
	of.result, of.err = protect(look)
	f.mu.Lock()
	delete(f.byName, of.name)
	f.mu.Unlock()
	close(of.done)
}

// do joins the name's flight, runs it if need be, and returns its result.
func (f *flights) do(name string, look func() (Result, error)) (Result, error) {
	of, first := f.join(name)
	if first {
		f.run(of, look)
	}
	<-of.done
	return of.result, of.err
}

// has says whether the name has a flight.
func (f *flights) has(name []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byName[string(name)] != nil
}

// wait waits for the flight's result until then, and says whether it has come.
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

// collapse waits for the key's flight, which it begins if there is none.
func (c *Cache) collapse(key []byte, list changefeed.List, stale *Entry, fill Fill) (Result, error) {
	wait := c.options.FillTimeout + redisBudget
	if stale != nil && c.remaining(stale) > staleWait {
		wait = min(wait, staleWait)
	}
	arrived := time.Now()
	for at := c.clock.At(arrived); ; {
		l := &lookup{Cache: c, key: key, list: list, fill: fill}
		r, err := c.await(string(key), key, stale, arrived.Add(wait), l.find)
		if err == nil && r.Err == nil && r.Collapsed && r.Entry.ReadAt < at && c.judge(r.Entry, c.clock.Now()) != freshness.Fresh {
			continue // read before this request arrived, by a slow flight, and too old by now
		}
		return r, err
	}
}

// await waits for the flight of that name until then.
func (c *Cache) await(name string, key []byte, stale *Entry, until time.Time, look func() (Result, error)) (Result, error) {
	flight, first := c.flights.join(name)
	if first {
		c.running.Go(func() { c.flights.run(flight, look) })
	}
	if !flight.wait(until) {
		if s := c.memory.get(key); s != nil { // one wait in vain is enough
			c.pause(s)
		}
		return c.serveStale(stale, Memory, ErrFillTimeout)
	}
	r := flight.result
	if flight.err != nil {
		r, err := c.serveStale(stale, Memory, flight.err)
		r.Times = flight.result.Times
		return r, err
	}
	r.Collapsed = !first
	r.replaces(stale)
	r.Age, r.ByTTL = c.age(r.Entry, c.clock.Now()), !c.following.Load()
	return r, nil
}

// protect turns a panic of call into an error: in a goroutine of its own it would
// end the process.
func protect[T any](call func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return call()
}
