//go:build !race

package limiter_test

import (
	"testing"

	. "listedge/limiter"
)

// Hardly a request is refused that an exact bucket admits, and nearly all is handed
// out, whatever the traffic. Shapes whose bursts end about when the bucket does miss
// what is then leased, or has come since the last call to the bucket.
func TestSimNearlyAllIsHandedOut(t *testing.T) {
	t.Parallel()
	for _, s := range shapes {
		fleets(t, 0, simLimits[1:4], []int{1, 3, 8, 64}, func(w *world) {
			r := w.measure(s.shape, 12e6)
			most := .03
			if s.name == "bursty" || s.name == "relay" || s.name == "waking" {
				most = .08 // 5.5 % on an average of seeds
			}
			if 1-r.share > most || r.over > 1 { // what the rate brings while an answer is on its way, and a part of a token
				w.errorf("%s: %.1f %% not handed out, %.1f tokens too many", s.name, 100*(1-r.share), r.over)
			}
		})
	}
}

// A client that uses its whole burst at once is refused hardly any of it.
func TestSimAWholeBurstAtOnce(t *testing.T) {
	t.Parallel()
	for _, apart := range []int64{0, 50, 200, 1_000, 5_000} {
		fleets(t, 11, []simLimit{{10, 20}, {50, 100}, {1_000, 1_000}}, []int{1, 3, 8}, func(w *world) {
			w.far(500)
			rest := w.policy.TimeFor(w.policy.Units()) + 25_000_000 // it fills up, and what is held goes back
			for i := range int64(20) {
				w.burst(w.policy.Burst, apart)
				w.run((i + 1) * rest)
			}
			if refused := w.refused(); apart >= 50 && refused > 1 || refused > 5 {
				w.errorf("%d us apart: %.1f %% refused", apart, refused)
			}
		})
	}
}

// Few requests ask Redis, fewer wait for it, and none of them is refused falsely.
// A key that comes less than twice in the life of a lease (10 s) to a node costs it a
// call a request, as it must: whether it will come again is unknown.
func TestSimRequestsHardlyEverAskRedis(t *testing.T) {
	t.Parallel()
	sparse := func(perSecond float64) shape {
		return func(w *world) (int64, int64) { return w.gap(perSecond), w.anyNode() }
	}
	for _, c := range []struct {
		simLimit
		what  string
		nodes int
		shape
		calls, waited, short float64 // at most
	}{
		{simLimit{1_000, 1_000}, "80 %", 1, steady(.8), .014, .01, 0},
		{simLimit{1_000, 1_000}, "80 %", 3, steady(.8), .03, .01, 0},
		{simLimit{1_000, 1_000}, "80 %", 8, steady(.8), .075, .01, 0},
		{simLimit{1_000, 1_000}, "a flood of ten times that", 1, steady(10), .006, .02, .002},
		{simLimit{1_000, 1_000}, "a flood of ten times that", 3, steady(10), .012, .03, .002},
		{simLimit{1_000, 1_000}, "a flood of ten times that", 8, steady(10), .03, .05, .002},
		{simLimit{50, 100}, "80 %", 1, steady(.8), .12, .05, 0},
		{simLimit{50, 100}, "80 %", 3, steady(.8), .15, .05, 0},
		{simLimit{50, 100}, "80 %", 8, steady(.8), .25, .05, 0},
		{simLimit{50, 100}, "95 %", 8, steady(.95), .5, .1, .0005},
		{simLimit{50, 100}, "5 a second", 3, sparse(5), .35, .1, 0},
		{simLimit{50, 100}, "one a second", 3, sparse(1), .75, .5, 0},
		{simLimit{50, 100}, "one in 2 s", 3, sparse(.5), 1.05, 1, 0},
		{simLimit{50, 100}, "one in 5 s", 1, sparse(.2), .35, .35, 0},
		{simLimit{50, 100}, "one in 5 s", 3, sparse(.2), .7, .7, 0},
		{simLimit{50, 100}, "one in 5 s", 8, sparse(.2), 1.02, 1.02, 0},
		{simLimit{50, 100}, "one in 10 s", 3, sparse(.1), 1.05, 1, 0},
		{simLimit{50, 15}, "a burst too small for leases", 3, sparse(5), 1.01, 1.01, 0},
	} {
		span := int64(60e6)
		if c.rate < 100 { // few requests: a longer span for as good a mean
			span = 600_000_000
		}
		simulate(t, 3, c.policy(), c.nodes, FailLocal, func(w *world) {
			r := w.far(400).measure(c.shape, span)
			t.Logf("%-12s %-28s %d nodes: %.4f calls a request, %.4f of the requests waited, %.4f %% refused falsely",
				c, c.what, c.nodes, r.calls, r.waited, 100*r.short)
			if r.calls > c.calls || r.waited > c.waited || r.short > c.short {
				t.Errorf("%s, %s, %d nodes: at most %.4f, %.4f and %.4f %% expected", c, c.what, c.nodes, c.calls, c.waited, 100*c.short)
			}
		})
	}
}
