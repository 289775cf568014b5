// Package boottimetest suspends a machine, for tests.
package boottimetest

import (
	"sync"
	"time"

	"listedge/internal/boottime"
)

// Machine is one that a test puts to sleep, and whose wall clock it sets. Only
// its Clock shows that.
type Machine struct {
	*boottime.Clock
	NoBootClock bool // it has none

	mu    sync.Mutex // guards steps
	steps []step
}

// step is what a wall clock did that the monotonic one did not.
type step struct {
	at         time.Time
	slept, set time.Duration
}

// NewMachine starts one.
func NewMachine() *Machine {
	m := &Machine{}
	m.Clock = boottime.With(m.wall, m.boot)
	return m
}

// Sleep suspends the machine for d.
func (m *Machine) Sleep(d time.Duration) { m.step(d, 0) }

// Set sets the wall clock forward by d, or back.
func (m *Machine) Set(d time.Duration) { m.step(0, d) }

func (m *Machine) step(slept, set time.Duration) {
	time.Sleep(time.Microsecond) // what was read before is earlier
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, step{time.Now(), slept, set})
}

func (m *Machine) wall(t time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	wall := time.Duration(t.UnixNano())
	for _, s := range m.steps {
		if !t.Before(s.at) {
			wall += s.slept + s.set
		}
	}
	return wall
}

// began is when boot clocks began to run.
var began = time.Now()

func (m *Machine) boot() (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	boot := time.Since(began)
	for _, s := range m.steps {
		boot += s.slept
	}
	return boot, !m.NoBootClock
}
