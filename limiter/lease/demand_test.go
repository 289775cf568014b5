// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"testing"

	. "listedge/limiter/lease/leasetest"
)

// Hardly a request is refused that an exact bucket admits, and nearly all is handed
// out, whatever the traffic. Shapes whose bursts end about when the bucket does miss
// what is then leased, or has come since the last call to the bucket.
func TestNearlyAllIsHandedOut(t *testing.T) {
	t.Parallel()
	for _, limit := range simLimits[1:4] {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8, 64} {
			for _, s := range Shapes {
				r := New(0, p, nodes).Measure(s.Shape, 12e6)
				most := .03
				if s.Name == "bursty" || s.Name == "relay" || s.Name == "waking" {
					most = .07 // 5.5 % on an average of seeds
				}
				if 1-r.Share > most {
					t.Errorf("%v/s, burst %d, %d nodes, %s: %.1f %% not handed out", limit.rate, limit.burst, nodes, s.Name, 100*(1-r.Share))
				}
				if r.Over > 1 { // what the rate brings while an answer is on its way, and a part of a token
					t.Errorf("%v/s, burst %d, %d nodes, %s: %.1f tokens too many", limit.rate, limit.burst, nodes, s.Name, r.Over)
				}
			}
		}
	}
}

// A client that uses its whole burst at once is refused hardly any of it.
func TestAWholeBurstAtOnce(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 20}, {50, 100}, {1_000, 1_000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			for _, apart := range []int64{0, 50, 200, 1_000, 5_000} {
				w := Far(11, p, nodes, 500)
				const bursts = 20
				rest := int64(float64(p.Burst)/PerSecond(p)*1e6) + 25_000_000 // it fills up, and what is held goes back
				for i := range int64(bursts) {
					for k := range p.Burst {
						w.After(i*rest+k*apart, func() { w.Nodes[w.AnyNode()].Request() })
					}
				}
				w.Run(bursts * rest)
				refused := 1 - float64(w.Admitted)/float64(w.Offered)
				if apart >= 50 && refused > .01 || refused > .05 {
					t.Errorf("%v/s burst %d, %d nodes, %d us apart: %.1f %% refused", limit.rate, limit.burst, nodes, apart, 100*refused)
				}
			}
		}
	}
}

// Few requests ask Redis, fewer wait for it, and none of them is refused falsely.
// A key that comes less than twice in the life of a lease (10 s) to a node costs it a
// call a request, as it must: whether it will come again is unknown.
func TestRequestsHardlyEverAskRedis(t *testing.T) {
	t.Parallel()
	sparse := func(perSecond float64) Shape {
		return func(w *World) (int64, int64) { return w.Gap(perSecond), w.AnyNode() }
	}
	for _, c := range []struct {
		rate  float64
		burst int64
		what  string
		nodes int
		Shape
		calls, waited, short float64 // at most
	}{
		{1_000, 1_000, "80 %", 1, Steady(.8), .014, .01, 0},
		{1_000, 1_000, "80 %", 3, Steady(.8), .03, .01, 0},
		{1_000, 1_000, "80 %", 8, Steady(.8), .075, .01, 0},
		{1_000, 1_000, "a flood of ten times that", 1, Steady(10), .006, .02, .002},
		{1_000, 1_000, "a flood of ten times that", 3, Steady(10), .012, .03, .002},
		{1_000, 1_000, "a flood of ten times that", 8, Steady(10), .03, .05, .002},
		{50, 100, "80 %", 1, Steady(.8), .12, .05, 0},
		{50, 100, "80 %", 3, Steady(.8), .15, .05, 0},
		{50, 100, "80 %", 8, Steady(.8), .25, .05, 0},
		{50, 100, "95 %", 8, Steady(.95), .5, .1, .0005},
		{50, 100, "5 a second", 3, sparse(5), .35, .1, 0},
		{50, 100, "one a second", 3, sparse(1), .75, .5, 0},
		{50, 100, "one in 2 s", 3, sparse(.5), 1.05, 1, 0},
		{50, 100, "one in 5 s", 1, sparse(.2), .35, .35, 0},
		{50, 100, "one in 5 s", 3, sparse(.2), .7, .7, 0},
		{50, 100, "one in 5 s", 8, sparse(.2), 1.02, 1.02, 0},
		{50, 100, "one in 10 s", 3, sparse(.1), 1.05, 1, 0},
		{50, 15, "a burst too small for leases", 3, sparse(5), 1.01, 1.01, 0},
	} {
		span := int64(60e6)
		if c.rate < 100 { // few requests: a longer span for as good a mean
			span = 200_000_000
		}
		r := Far(3, policy(t, c.rate, c.burst), c.nodes, 400).Measure(c.Shape, span)
		t.Logf("%5.0f/s %4d, %-28s %d nodes: %.4f calls a request, %.4f of the requests waited, %.4f %% refused falsely",
			c.rate, c.burst, c.what, c.nodes, r.Calls, r.Waited, 100*r.Short)
		if r.Calls > c.calls || r.Waited > c.waited || r.Short > c.short {
			t.Errorf("%v/s burst %d, %s, %d nodes: at most %.4f, %.4f and %.4f %% expected", c.rate, c.burst, c.what, c.nodes, c.calls, c.waited, 100*c.short)
		}
	}
}
