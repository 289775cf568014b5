// Package boottimetest has the time of tests: a machine that sleeps, and a fake clock that
// moves on.
package boottimetest

import (
	"sync"
	"time"

	"listedge/internal/boottime"
)

// Pass lets d pass on the fake clock of testing/synctest, which takes no time. It panics
// where the clock is real: a test waits there for what it expects, and not for a time.
func Pass(d time.Duration) {
	if time.Now().Year() > 2020 { // a fake clock begins in 2000
		panic("BUG: Pass outside of synctest.Test")
	}
	time.Sleep(d)
}

// Machine simulates a machine that a test can suspend and whose wall clock it can set.
// Only the Machine's Clock is affected.
type Machine struct {
	*boottime.Clock

	mu    sync.Mutex // guards steps
	steps []step
}

// step is a change of the wall clock that the monotonic clock does not show.
type step struct {
	at time.Time
	by time.Duration
}

// NewMachine makes a machine that has never slept.
func NewMachine() *Machine {
	m := &Machine{}
	m.Clock = boottime.With(m.wall)
	return m
}

// Sleep suspends the machine for d.
func (m *Machine) Sleep(d time.Duration) { m.Set(d) }

// Set sets the wall clock forward by d, or back.
func (m *Machine) Set(d time.Duration) {
	time.Sleep(time.Microsecond) // so that every time that was read before is earlier than the step
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, step{time.Now(), d})
}

func (m *Machine) wall(t time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	wall := time.Duration(t.UnixNano())
	for _, s := range m.steps {
		if !t.Before(s.at) {
			wall += s.by
		}
	}
	return wall
}
