package boottime_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
)

// sinceOf is how long ago a reading was taken. Now is first, because it may compare the clocks.
func sinceOf(m *boottimetest.Machine, then time.Time) time.Duration {
	now := m.Now()
	return now - m.Of(then)
}

// A second passes awake before and after what happens.
func TestWhatIsMeasured(t *testing.T) {
	for _, c := range []struct {
		name    string
		happens func(m *boottimetest.Machine)
		want    time.Duration // at the end, since before it happened
		atLeast bool          // it may be more
	}{
		{"nothing", func(*boottimetest.Machine) {}, 2 * time.Second, false},
		{"a sleep", func(m *boottimetest.Machine) { m.Sleep(time.Hour) }, time.Hour + 2*time.Second, false},
		{"a short sleep", func(m *boottimetest.Machine) { m.Sleep(2 * time.Millisecond) }, 2*time.Second + 2*time.Millisecond, false},
		{"many sleeps that are each overlooked", func(m *boottimetest.Machine) {
			for range 100 {
				m.Sleep(500 * time.Microsecond)
				m.Now()
			}
		}, 2*time.Second + 49*time.Millisecond, true},
		{"the wall clock is set forward", func(m *boottimetest.Machine) { m.Set(time.Hour) }, time.Hour + 2*time.Second, false},
		{"set forward, a look, and set back", func(m *boottimetest.Machine) { m.Set(time.Hour); m.Now(); m.Set(-time.Hour) },
			time.Hour + 2*time.Second, false},
		{"the wall clock is set back", func(m *boottimetest.Machine) { m.Set(-time.Hour) }, 2 * time.Second, false},
		{"a sleep, and set back by less", func(m *boottimetest.Machine) { m.Sleep(time.Hour); m.Set(-time.Minute) }, 59*time.Minute + 2*time.Second, false},
		{"a sleep, a look, and set back by as much", func(m *boottimetest.Machine) { m.Sleep(time.Hour); m.Now(); m.Set(-time.Hour) },
			time.Hour + 2*time.Second, false},
		{"set back, a look, and a sleep of as much", func(m *boottimetest.Machine) { m.Set(-time.Hour); m.Now(); m.Sleep(time.Hour) },
			time.Hour + 2*time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := boottimetest.NewMachine()
				before, then := m.Now(), time.Now()
				boottimetest.Pass(time.Second)
				c.happens(m)
				boottimetest.Pass(time.Second)
				passed := m.Now() - before
				if over := passed - c.want; over < -time.Millisecond || over > time.Millisecond && !c.atLeast {
					t.Errorf("%s passed, not %s", passed, c.want)
				}
				if since := sinceOf(m, then); since < passed {
					t.Errorf("%s since a reading that is %s old", since, passed)
				}
			})
		})
	}
}

// Of what was read before a sleep nothing later makes a moment behind it: not
// another reading that is looked at first, and no step of the wall clock.
func TestAReadingIsNeverTakenForALaterOne(t *testing.T) {
	for name, also := range map[string]func(*boottimetest.Machine){
		"nobody looked":                 func(*boottimetest.Machine) {},
		"another reading was looked at": func(m *boottimetest.Machine) { m.Now() },
		"and the wall clock was set":    func(m *boottimetest.Machine) { m.Now(); m.Set(time.Minute); m.Now() },
		"and slept again":               func(m *boottimetest.Machine) { m.Now(); m.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := boottimetest.NewMachine()
				m.Sleep(time.Hour)
				m.Now()
				then := time.Now()
				m.Sleep(time.Hour)
				also(m)
				if age := sinceOf(m, then); age < time.Hour {
					t.Errorf("%s old", age)
				}
				if age := m.Now() - m.Of(then); age < time.Hour {
					t.Errorf("%s old, as it is remembered", age)
				}
			})
		})
	}
}

// Readers that race with a sleep see it as soon as they read a clock behind it.
func TestManyReaders(t *testing.T) {
	m := boottimetest.NewMachine()
	for range 50 {
		before := m.Now()
		m.Sleep(time.Hour)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				if passed := m.At(time.Now()) - before; passed < time.Hour-time.Millisecond {
					t.Errorf("%s passed", passed)
				}
			})
		}
		readers.Wait()
	}
}

// The clocks of this machine, which does not sleep meanwhile.
func TestTheSystemsClocks(t *testing.T) {
	c := boottime.New()
	began, at := time.Now(), c.Now()
	for time.Since(began) < 20*time.Millisecond { // the clocks run meanwhile
	}
	if passed, want := c.Now()-at, time.Since(began); passed < 19*time.Millisecond || passed > want+time.Second {
		t.Errorf("%s passed, where %s did", passed, want)
	}
}
