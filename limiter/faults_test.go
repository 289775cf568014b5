//go:build !race

package limiter_test

import (
	"testing"
	"time"
)

// Each fault by itself, again and again, with nodes that go on without Redis: how much
// is admitted above the promise, in bursts.
func TestSimOneFaultAtATime(t *testing.T) {
	t.Parallel()
	any := func(w *world) *node { return w.nodes[w.anyNode()] }
	for _, fault := range []struct {
		name  string
		most  float64 // bursts, and a token
		every int64
		begin func(w *world)
	}{
		{"a node stands still for 5 s", .05, 8e6, func(w *world) { any(w).stop(5e6) }},
		{"a node stands still for 5 s with a call in flight", .05, 8e6, func(w *world) { any(w).stopInFlight = 5e6 }},
		{"a node stands still for 5 s and is then cut off for 3", .4, 15e6, func(w *world) {
			n := any(w)
			n.stop(5e6)
			w.after(5e6, func() { n.cut = true })
			w.after(8e6, func() { n.cut = false })
		}},
		{"a node's last heartbeat before it is cut off arrives 4 s late", .4, 15e6, func(w *world) {
			n := any(w)
			n.lateBeat = 4e6
			w.after(10e6, func() { n.cut = false })
		}},
		{"a node gets no answers for 10 s", .4, 15e6, func(w *world) {
			n := any(w)
			n.deaf = true
			w.after(10e6, func() { n.deaf = false })
		}},
		{"a node's clock leaps by 5 s", .05, 8e6, func(w *world) { go any(w).machine.Sleep(5 * time.Second) }},
		{"a third of the messages is lost for 3 s", .4, 8e6, func(w *world) {
			w.loses = func() bool { return w.random.IntN(3) == 0 }
			w.after(3e6, func() { w.loses = func() bool { return false } })
		}},
		// What comes in a round trip is admitted twice at its beginning, and then debited.
		{"Redis takes 100 ms for 3 s", .4, 8e6, func(w *world) {
			before := w.delay
			w.delay = func() int64 { return 40_000 + w.random.Int64N(20_000) }
			w.after(3e6, func() { w.delay = before })
		}},
		{"Redis hangs for 3 s", .2, 10e6, func(w *world) { w.hang(3e6) }},
		{"Redis hangs for 3 s, and a node's wall clock is set forward meanwhile", 1, 100e6, func(w *world) {
			w.hang(3e6)
			w.after(2e6, func() { go any(w).machine.Set(time.Hour) })
		}},
		{"Redis' clock steps back by 10 s", .05, 15e6, func(w *world) { w.clock -= 10e6 }},
		{"Redis restarts empty", 1, 100e6, func(w *world) { w.lose() }},
		{"Redis hangs for 3 s and is then empty", 1.2, 100e6, func(w *world) {
			w.hang(3e6)
			w.after(3e6-1, func() { w.lose() })
		}},
		{"Redis fails over to a copy that is a second old", 1, 100e6, func(w *world) {
			replica := *w.shared()
			w.after(1e6, func() { *w.shared() = replica })
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			for _, flood := range []bool{false, true} {
				fleets(t, 3, simLimits[:3], []int{1, 8}, func(w *world) {
					load := .8
					if flood {
						load = 2_000 / max(400, perSecond(w.policy))
					}
					for at := int64(6e6); at < 25e6; at += fault.every {
						w.after(at, func() { fault.begin(w) })
					}
					if r := w.measure(steady(load), 32e6); r.over > fault.most*float64(w.policy.Burst)+1 {
						w.errorf("load %.1f: %.1f tokens too many", load, r.over)
					}
				})
			}
		})
	}
}
