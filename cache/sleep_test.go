package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
)

// sleeper is a cache that follows a log, on a machine that may sleep.
type sleeper struct {
	*testing.T
	*Cache
	machine *boottimetest.Machine
	feed    *changefeed.Subscription
	last    changefeed.Position
}

// read reads the log to its end.
func (s *sleeper) read() { s.feed.Apply(time.Now(), nil, false) }

// heartbeat proves the moment at which the last read began.
func (s *sleeper) heartbeat() {
	s.last.N++
	s.feed.Apply(time.Now(), []changefeed.Entry{{Position: s.last, Heartbeat: &changefeed.Heartbeat{Snapshot: "100:100:", After: s.last}}}, true)
}

func (s *sleeper) isTrusted(want bool, when string) {
	s.Helper()
	if got := s.Mode() == ModeFollowed; got != want {
		s.Errorf("%s: trusted %t", when, got)
	}
}

// While a machine sleeps, its nodes do not run and its monotonic clock stops. No entry may
// count as younger because of that.
func TestAfterASleep(t *testing.T) {
	// The time awake is much less than the bound, and than the time in which requests share an answer.
	const asleep, awake = time.Hour, 10 * time.Millisecond
	on := func(t *testing.T, test func(s *sleeper)) {
		synctest.Test(t, func(t *testing.T) {
			m := boottimetest.NewMachine()
			c := open(t, Options{TTL: time.Minute, MaxStale: 10 * time.Hour, Bound: time.Second, Clock: m.Clock})
			s := &sleeper{T: t, Cache: c, machine: m, feed: changefeed.NewSubscription(c), last: changefeed.Position{Term: 1}}
			s.feed.Follow("e")
			s.last.N++
			s.feed.Apply(time.Now(), []changefeed.Entry{{Position: s.last, TermStart: &changefeed.TermStart{}}}, true)
			s.read()
			s.heartbeat()
			s.isTrusted(true, "before")
			test(s)
		})
	}
	fill := Fill{Primary: func(context.Context, string) (FillResult, error) {
		return FillResult{Rows: rowsOf("body"), End: true, Snapshot: "100:100:"}, nil
	}}
	t.Run("what was proven is not trusted until it is proven again", func(t *testing.T) {
		on(t, func(s *sleeper) {
			s.machine.Sleep(asleep)
			boottimetest.Pass(awake)
			s.isTrusted(false, "after an hour")
			s.read()
			s.heartbeat()
			s.isTrusted(true, "after another proof")
		})
	})
	t.Run("a read from before proves nothing afterwards", func(t *testing.T) {
		on(t, func(s *sleeper) {
			s.read()
			s.machine.Sleep(asleep)
			s.isTrusted(false, "afterwards") // this reading of the clock notices the sleep
			s.heartbeat()
			s.isTrusted(false, "for a read that began an hour ago")
		})
	})
	t.Run("an answer from a moment before is not shared", func(t *testing.T) {
		on(t, func(s *sleeper) {
			if _, err := ask(s.Cache, keyOf("q"), fill); err != nil {
				s.Fatal(err)
			}
			if _, hit := s.Hit(keyOf("q"), time.Now()); !hit {
				s.Fatal("not fresh before")
			}
			s.machine.Sleep(asleep)
			boottimetest.Pass(awake)
			if r, hit := s.Hit(keyOf("q"), time.Now()); hit {
				s.Errorf("fresh after an hour, and %s old", r.Age)
			}
		})
	})
	t.Run("steps of the wall clock are no sleep", func(t *testing.T) {
		on(t, func(s *sleeper) {
			if _, err := ask(s.Cache, keyOf("q"), fill); err != nil {
				s.Fatal(err)
			}
			for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
				s.machine.Set(step)
				boottimetest.Pass(awake)
				s.isTrusted(true, step.String())
				if r, hit := s.Hit(keyOf("q"), time.Now()); !hit || r.Age > time.Second {
					s.Errorf("set by %s: hit %t, %s old", step, hit, r.Age)
				}
			}
		})
	})
	t.Run("age counts it where changes are not followed", func(t *testing.T) {
		m := boottimetest.NewMachine()
		c := open(t, Options{TTL: time.Minute, MaxStale: 10 * time.Hour, Clock: m.Clock})
		r, err := ask(c, keyOf("q"), brings("body"))
		want{body: "body", source: Origin}.check(t, r, err)
		m.Sleep(asleep)
		if r, hit := c.Hit(keyOf("q"), time.Now()); hit {
			t.Errorf("a hit %s later, with a TTL of a minute", r.Age)
		}
	})
}
