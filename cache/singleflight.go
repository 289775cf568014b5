package cache

import (
	"fmt"
	"runtime/debug"
	"time"
)

// collapse waits for the key's flight. It begins one if there is none.
func (c *Cache) collapse(key []byte, old *Entry, fill Fill) (Result, error) {
	wait := c.options.FillTimeout + redisBudget
	if old != nil && c.remaining(old) > staleWait {
		wait = min(wait, staleWait)
	}
	l, arrived := &lookup{Cache: c, key: key, fill: fill}, c.clock.Now()
	return l.await(string(key), old, wait, l.find, func(e *Entry) bool { return e.ReadAt < arrived && c.judge(e, c.clock.Now()) != fresh })
}

// await waits for the result of the flight of that name. Of concurrent requests the first
// runs the look-up, and the others get the same result. They look again if it was found for
// an earlier request, by a slow flight, and is too old for them. If there is no result in
// time, or an error, await serves the stale entry.
func (l *lookup) await(name string, old *Entry, wait time.Duration, look func() (Result, error), tooOld func(*Entry) bool) (Result, error) {
	type landing struct {
		result Result
		err    error
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		landed := make(chan landing, 1)
		l.running.Go(func() {
			first := false
			v, err, _ := l.flights.Do(name, func() (any, error) {
				first = true
				return protect(look)
			})
			r := v.(Result)
			r.Collapsed = !first
			landed <- landing{r, err}
		})
		select {
		case is := <-landed:
			r, err := is.result, is.err
			if err != nil {
				stale, err := l.serveStale(old, Memory, err)
				stale.Times = r.Times
				return stale, err
			}
			if r.Collapsed && r.Err == nil && tooOld(r.Entry) {
				continue
			}
			r.HadStale = r.HadStale || old != nil
			r.Age, r.ByTTL = l.age(r.Entry, l.clock.Now()), !l.following.Load()
			return r, nil
		case <-timer.C:
			if s := l.memory.get(l.key); s != nil { // so that the next request does not wait as long
				l.pause(s)
			}
			return l.serveStale(old, Memory, ErrFillTimeout)
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
