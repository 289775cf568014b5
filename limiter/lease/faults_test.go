// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"testing"

	. "listedge/limiter/lease/leasetest"
)

// Each fault by itself, again and again, with nodes that go on without Redis: how much
// is admitted above the promise, in bursts.
func TestOneFaultAtATime(t *testing.T) {
	t.Parallel()
	any := func(w *World) *Node { return w.Nodes[w.AnyNode()] }
	for _, fault := range []struct {
		name  string
		most  float64 // bursts, and a token
		every int64
		begin func(w *World)
	}{
		{"a node stands still for 5 s", .05, 8e6, func(w *World) { any(w).Stop(5e6) }},
		{"a node stands still for 5 s with a call in flight", .05, 8e6, func(w *World) { any(w).StopInFlight = 5e6 }},
		{"a node stands still for 5 s and is then cut off for 3", .4, 15e6, func(w *World) {
			n := any(w)
			n.Stop(5e6)
			w.After(5e6, func() { n.Cut = true })
			w.After(8e6, func() { n.Cut = false })
		}},
		{"a node gets no answers for 10 s", .4, 15e6, func(w *World) {
			n := any(w)
			n.Deaf = true
			w.After(10e6, func() { n.Deaf = false })
		}},
		{"a node's clock leaps by 5 s", .05, 8e6, func(w *World) { any(w).ClockOffset += 5e6 }},
		{"a third of the messages is lost for 3 s", .4, 8e6, func(w *World) {
			w.Lost = func() bool { return w.Random.IntN(3) == 0 }
			w.After(3e6, func() { w.Lost = func() bool { return false } })
		}},
		// What comes in a round trip is admitted twice at its beginning, and then debited.
		{"Redis takes 100 ms for 3 s", .4, 8e6, func(w *World) {
			before := w.OneWay
			w.OneWay = func() int64 { return 40_000 + w.Random.Int64N(20_000) }
			w.After(3e6, func() { w.OneWay = before })
		}},
		{"Redis hangs for 3 s", .2, 10e6, func(w *World) { w.Hang(3e6) }},
		{"Redis' clock steps back by 10 s", .05, 15e6, func(w *World) { w.Clock -= 10e6 }},
		{"Redis restarts empty", 1, 100e6, func(w *World) { w.Bucket = Full(w.Policy, w.Now+w.Clock) }},
		{"Redis hangs for 3 s and is then empty", 1.2, 100e6, func(w *World) {
			w.Hang(3e6)
			w.After(3e6-1, func() { w.Bucket = Full(w.Policy, w.Now+w.Clock) })
		}},
		{"Redis fails over to a copy that is a second old", 1, 100e6, func(w *World) {
			replica := w.Bucket
			w.After(1e6, func() { w.Bucket = replica })
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			for _, limit := range simLimits[:4] {
				p := policy(t, limit.rate, limit.burst)
				for _, nodes := range []int{1, 3, 8} {
					for _, load := range []float64{.8, 5} {
						w := New(3, p, nodes)
						for at := int64(6e6); at < 40e6; at += fault.every {
							w.After(at, func() { fault.begin(w) })
						}
						r := w.Measure(Steady(load), 45e6)
						if r.Over > fault.most*float64(p.Burst)+1 {
							t.Errorf("%v/s burst %d, %d nodes, load %.1f: %.1f tokens too many", limit.rate, limit.burst, nodes, load, r.Over)
						}
					}
				}
			}
		})
	}
}
