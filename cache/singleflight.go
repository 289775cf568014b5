package cache

import (
	"sync"
	"time"
)

// flights are the look-ups under way, each by its name. Of all who ask for one
// page at once, one leads the look-up and the others wait for what it brings.
type flights struct {
	mu sync.Mutex
	up map[string]*flight // guarded by mu
}

// flight is one look-up. Its result stands once it has landed.
type flight struct {
	name   string
	landed chan struct{} // closed then
	r      Result
	err    error
}

// board returns the name's flight. Who leads it must land it, come what may.
func (f *flights) board(name string) (of *flight, leads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.up[name]; of != nil {
		return of, false
	}
	of = &flight{name: name, landed: make(chan struct{}), err: errPanic}
	if f.up == nil {
		f.up = map[string]*flight{}
	}
	f.up[name] = of
	return of, true
}

// land ends the flight with its result. Who asks from now on begins another.
func (f *flights) land(of *flight) {
	f.mu.Lock()
	delete(f.up, of.name)
	f.mu.Unlock()
	close(of.landed)
}

// wait waits for the flight to land, and says whether it has; no timer is set
// for one that its leader has landed already.
func (f *flight) wait(until time.Time) bool {
	select {
	case <-f.landed:
		return true
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-f.landed:
		return true
	case <-timer.C:
		return false
	}
}

// do leads the name's flight, unless somebody does, and waits for it to land.
func (f *flights) do(name string, look func() (Result, error)) (Result, error) {
	of, leads := f.board(name)
	if leads {
		defer f.land(of)
		of.r, of.err = look()
		return of.r, of.err
	}
	<-of.landed
	return of.r, of.err
}

// flying says whether somebody leads the name's flight.
func (f *flights) flying(name []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up[string(name)] != nil
}
