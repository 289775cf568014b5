// Package boottime measures elapsed time including the time in which the machine was
// suspended. Go's monotonic clock stops during a suspend: by it, a proof that is valid for
// half a second would be valid all night.
//
//	wall clock       ────────────┐   ┌──────── moves on during a suspend; may be set
//	monotonic clock  ────────────┴───┴──────── does not; cannot be set
//
// time.Now reads both at once. While they advance equally, the machine has not slept. What the
// wall clock gains counts as sleep. So elapsed time is never too short, unless somebody sets the
// wall clock back during a sleep: that hides as much of the sleep. It is too long by each step
// of the wall clock forward. That is safe: what has an age is trusted for a shorter time.
package boottime

import (
	"sync"
	"sync/atomic"
	"time"
)

// slack is how far the wall clock may drift before the clocks are compared. A shorter sleep is
// overlooked until others have added up to it.
const slack = time.Millisecond

// Clock converts readings of time.Now into moments: the time since the Clock was made, sleep
// included. All methods may be called from any goroutine.
type Clock struct {
	start time.Time
	wall  func(time.Time) time.Duration // the wall clock in a reading

	last atomic.Pointer[comparison]
	mu   sync.Mutex // held during compare
}

// comparison is the result of comparing the clocks.
type comparison struct {
	at     time.Duration // on the monotonic clock
	offset time.Duration // by which the wall clock is ahead of the monotonic one
	asleep time.Duration // what the wall clock has gained since the start
}

// New starts a clock.
func New() *Clock {
	return With(func(t time.Time) time.Duration { return time.Duration(t.UnixNano()) })
}

// With makes a clock that reads the given wall clock, for tests.
func With(wall func(time.Time) time.Duration) *Clock {
	c := &Clock{start: time.Now(), wall: wall}
	c.last.Store(&comparison{offset: wall(c.start)})
	return c
}

// Now returns the present moment.
func (c *Clock) Now() time.Duration { return c.At(time.Now()) }

// At returns the moment of a reading that was just taken. The result is never too early.
func (c *Clock) At(now time.Time) time.Duration {
	l, awake := c.last.Load(), now.Sub(c.start)
	if !l.agrees(c.wall(now) - awake) {
		l = c.compare()
	}
	return awake + l.asleep
}

// Of returns the moment of an earlier reading. The result is never too late: for a reading
// from before the last comparison, or one that disagrees with it, Of assumes that all sleep
// came after the reading.
func (c *Clock) Of(then time.Time) time.Duration {
	l, awake := c.last.Load(), then.Sub(c.start)
	if awake < l.at || !l.agrees(c.wall(then)-awake) {
		return awake
	}
	return awake + l.asleep
}

func (l *comparison) agrees(offset time.Duration) bool {
	return offset-l.offset <= slack && l.offset-offset <= slack
}

// compare compares the clocks by a reading of its own: an earlier one may be from before the
// last comparison, and would count a sleep twice.
func (c *Clock) compare() *comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, now := c.last.Load(), time.Now()
	l := &comparison{at: now.Sub(c.start), offset: c.wall(now) - now.Sub(c.start)}
	l.asleep = before.asleep + max(0, l.offset-before.offset)
	c.last.Store(l)
	return l
}
