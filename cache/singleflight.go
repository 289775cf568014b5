package cache

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// flights are the look-ups under way, by name. Of all requests for one entry at
// once, the first looks it up and the others wait for the same result.
//
// Invariants: a name has at most one flight; a flight that was joined first is
// finished, come what may; result and err do not change once done is closed.
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
