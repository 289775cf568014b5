// Package boottime measures elapsed time including the time in which the machine was
// suspended. Go's monotonic clock stops during a suspend (CLOCK_MONOTONIC on Linux,
// mach_absolute_time on macOS): by it, a proof that is valid for half a second
// would be valid all night.
//
//	wall clock       ────────────┐   ┌──────── moves on during a suspend; may be set
//	monotonic clock  ────────────┴───┴──────── does not; cannot be set
//	boot clock       ───────────────────────── moves on, cannot be set; a system call
//
// time.Now reads the first two at once. While they advance equally, the machine has not slept,
// and nothing else is read. When they differ, the boot clock says how much of the difference
// was sleep, and how much came from setting the wall clock.
package boottime

import (
	"sync"
	"sync/atomic"
	"time"
)

// slack is how far the clocks may drift apart before they are compared. A shorter sleep is
// overlooked.
const slack = time.Millisecond

// Clock converts readings of time.Now into moments: the time since the Clock was made, sleep
// included. All methods may be called from any goroutine.
//
// Invariant: if a reading agrees with the last comparison, the machine has not slept between
// the two. A sleep moves the wall clock ahead of the monotonic clock by its length, and the
// difference stays until somebody sets the wall clock. Exception: a sleep is not noticed if
// the wall clock was set back by the same time, to within slack, before the next reading. (A
// node in use reads its clock every 50 ms or more often.) A virtual machine that is paused
// with all its clocks cannot notice it.
type Clock struct {
	start time.Time
	wall  func(time.Time) time.Duration // the wall clock in a reading
	boot  func() time.Duration          // the boot clock
	drift time.Duration                 // how far the boot clock was ahead of the monotonic one at the start

	last atomic.Pointer[comparison]
	mu   sync.Mutex // held during compare
}

// comparison is the result of comparing the clocks.
type comparison struct {
	at     time.Duration // on the monotonic clock
	offset time.Duration // by which the wall clock is ahead of the monotonic one
	asleep time.Duration // how long the machine has slept since the start
}

// New starts a clock.
func New() *Clock {
	return With(func(t time.Time) time.Duration { return time.Duration(t.UnixNano()) }, system)
}

// With makes a clock that reads the given clocks, for tests.
func With(wall func(time.Time) time.Duration, boot func() time.Duration) *Clock {
	c := &Clock{start: time.Now(), wall: wall, boot: boot}
	c.drift = c.aheadOf()
	c.last.Store(&comparison{offset: c.wall(c.start)})
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

// compare compares the clocks. It takes the offset from a reading before it reads the boot
// clock: if the machine sleeps between the two, the next reading disagrees.
func (c *Clock) compare() *comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.last.Load()
	now := time.Now()
	awake := now.Sub(c.start)
	l := &comparison{at: awake, offset: c.wall(now) - awake}
	l.asleep = max(was.asleep, c.aheadOf()-c.drift)
	c.last.Store(l)
	return l
}

// aheadOf returns how far the boot clock is ahead of the monotonic one. The result is never
// too large; it is too small by at most slack, unless the machine is very busy.
func (c *Clock) aheadOf() (ahead time.Duration) {
	for range 10 {
		before := time.Now()
		boot := c.boot()
		after := time.Since(c.start)
		ahead = boot - after
		if after-before.Sub(c.start) < slack {
			break
		}
	}
	return ahead
}
