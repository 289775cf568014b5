// Package boottime measures elapsed time including the time in which the machine was
// suspended. Go's monotonic clock stops during a suspend (CLOCK_MONOTONIC on Linux,
// mach_absolute_time on macOS): by it, a proof that is valid for half a second
// would be valid all night.
//
//	wall clock       ────────────┐   ┌──────── moves on during a suspend; may be set
//	monotonic clock  ────────────┴───┴──────── does not; cannot be set
//	boot clock       ───────────────────────── moves on, cannot be set; a system call
//
// time.Now reads the first two at once. While they advance equally, nothing else is
// read. Once they differ, the boot clock says how much of the difference was sleep.
package boottime

import (
	"sync"
	"sync/atomic"
	"time"
)

// slack is how far the clocks may drift apart, and so the longest sleep that is
// overlooked.
const slack = time.Millisecond

// Clock turns readings of time.Now into moments: distances from when it was
// made, sleep included. All methods may be called from any goroutine.
//
// Invariant: from the last look to a reading that agrees with it, the machine
// has not slept, but for a sleep that the wall clock was set back by, between
// the two and to within slack. For a suspend moves the wall clock against the
// monotonic one by its length, and nothing but setting the wall clock can move
// it back. (A node in use looks at its clock more often than every 50 ms.)
// A machine that is paused from outside, with all its clocks, cannot know.
type Clock struct {
	start time.Time
	wall  func(time.Time) time.Duration // of a reading; nil = what it says
	boot  func() (time.Duration, bool)  // the boot clock; false = there is none
	drift time.Duration                 // of the boot clock against the monotonic one, at the start

	last atomic.Pointer[look]
	mu   sync.Mutex // held while looking
}

// look is what was seen when the clocks were last compared.
type look struct {
	at     time.Duration // on the monotonic clock
	offset time.Duration // of the wall clock against the monotonic one
	asleep time.Duration // since the start
}

// New starts a clock.
func New() *Clock { return With(nil, system) }

// With is a clock that reads others: for tests.
func With(wall func(time.Time) time.Duration, boot func() (time.Duration, bool)) *Clock {
	c := &Clock{start: time.Now(), wall: wall, boot: boot}
	c.drift, _ = c.aheadOf()
	c.last.Store(&look{offset: c.read(c.start)})
	return c
}

// Now is the present moment.
func (c *Clock) Now() time.Duration { return c.At(time.Now()) }

// At is the moment of a reading that was just taken. It is never too early.
func (c *Clock) At(now time.Time) time.Duration {
	l, awake := c.last.Load(), now.Sub(c.start)
	if !l.agrees(c.read(now) - awake) {
		l = c.look()
	}
	return awake + l.asleep
}

// Of is the moment of a reading that was taken before. It is never too late:
// one from before the last look, or that disagrees with it, counts as taken
// before all sleep there ever was.
func (c *Clock) Of(then time.Time) time.Duration {
	l, awake := c.last.Load(), then.Sub(c.start)
	if awake < l.at || !l.agrees(c.read(then)-awake) {
		return awake
	}
	return awake + l.asleep
}

// Since is how long ago a reading was taken, at least.
func (c *Clock) Since(then time.Time) time.Duration {
	now := c.Now() // first: it may look
	return now - c.Of(then)
}

// read is the wall clock's part of a reading.
func (c *Clock) read(t time.Time) time.Duration {
	if c.wall != nil {
		return c.wall(t)
	}
	return time.Duration(t.UnixNano())
}

func (l *look) agrees(offset time.Duration) bool {
	return offset-l.offset <= slack && l.offset-offset <= slack
}

// look compares the clocks. The offset is of a reading that was taken before the
// boot clock was read: a sleep between the two shows with the next reading.
func (c *Clock) look() *look {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.last.Load()
	now := time.Now()
	awake := now.Sub(c.start)
	l := &look{at: awake, offset: c.read(now) - awake, asleep: was.asleep}
	if ahead, ok := c.aheadOf(); ok {
		l.asleep = max(was.asleep, ahead-c.drift)
	} else { // sleep cannot be distinguished from a clock that was set
		l.asleep += (l.offset - was.offset).Abs()
	}
	c.last.Store(l)
	return l
}

// aheadOf is how far the boot clock is ahead of the monotonic one, never too
// much, and too little by slack at most unless the machine is very busy.
func (c *Clock) aheadOf() (ahead time.Duration, ok bool) {
	for range 10 {
		before := time.Now()
		boot, ok := c.boot()
		if !ok {
			return 0, false
		}
		after := time.Since(c.start)
		ahead = boot - after
		if after-before.Sub(c.start) < slack {
			break
		}
	}
	return ahead, true
}
