package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// A node whose machine sleeps is not run meanwhile, and its monotonic clock
// stands still: nothing may count as younger for that.
func TestAfterASleep(t *testing.T) {
	// A moment awake is much less than the bound, and than that by which it is shared.
	const asleep, awake = time.Hour, 10 * time.Millisecond
	on := func(t *testing.T, test func(t *trackerTest, m *boottime.Machine)) {
		synctest.Test(t, func(t *testing.T) {
			m := boottime.NewMachine()
			tt := newTrackerTest(t, m.Clock, changefeed.Position{Term: 1})
			tt.entry(changefeed.Entry{TermStart: &changefeed.TermStart{}})
			tt.prove("100:100:")
			test(tt, m)
		})
	}
	t.Run("what was proven is not trusted, until it is again", func(t *testing.T) {
		on(t, func(t *trackerTest, m *boottime.Machine) {
			if !t.trusted(time.Now()) {
				t.Fatal("not trusted before")
			}
			m.Sleep(asleep)
			time.Sleep(awake)
			if t.trusted(time.Now()) {
				t.Error("trusted after an hour")
			}
			if t.prove("100:100:"); !t.trusted(time.Now()) {
				t.Error("not trusted after another proof")
			}
		})
	})
	t.Run("a read from before proves nothing afterwards", func(t *testing.T) {
		on(t, func(t *trackerTest, m *boottime.Machine) {
			t.look()
			m.Sleep(asleep)
			t.trusted(time.Now()) // somebody looks
			t.sends(changefeed.Heartbeat{Snapshot: "100:100:"})
			if t.trusted(time.Now()) {
				t.Error("trusted for a read that began an hour ago")
			}
		})
	})
	t.Run("a page that was read a moment before is not shared", func(t *testing.T) {
		on(t, func(t *trackerTest, m *boottime.Machine) {
			f := &following{tracker: t.tracker}
			p := t.filled("100:100:")
			if !f.recent(p, time.Now()) || !f.fresh(p, time.Now()) {
				t.Fatal("not fresh before")
			}
			m.Sleep(asleep)
			time.Sleep(awake)
			if now := time.Now(); f.recent(p, now) || f.fresh(p, now) || t.age(p, now) < asleep {
				t.Errorf("fresh after an hour, and %s old", t.age(p, now))
			}
		})
	})
	t.Run("steps of the wall clock are no sleep", func(t *testing.T) {
		on(t, func(t *trackerTest, m *boottime.Machine) {
			p := t.filled("100:100:")
			for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
				m.Set(step)
				time.Sleep(awake)
				if now := time.Now(); !t.trusted(now) || t.age(p, now) > time.Second {
					t.Errorf("set by %s: trusted: %t, %s old", step, t.trusted(now), t.age(p, now))
				}
			}
		})
	})
	t.Run("pages go by their age, which counts it", func(t *testing.T) {
		m := boottime.NewMachine()
		c := open(t, Options{TTL: time.Minute, MaxStale: 10 * time.Hour, Clock: m.Clock})
		r, err := c.Forward(keyOf("q"), changefeed.List{}, brings("body"))
		want{body: "body", source: Origin}.check(t, r, err)
		m.Sleep(asleep)
		if r, hit := c.Hit(keyOf("q"), time.Now()); hit {
			t.Errorf("a hit %s later, with a TTL of a minute", r.Age)
		}
	})
}
