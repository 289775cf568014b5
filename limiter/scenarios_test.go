//go:build !race

package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

// simulated is a fleet that does what figure tells, and returns what is wrong with it: a small figure is good.
type simulated struct {
	what   string
	limits []simLimit
	least  int     // nodes
	most   float64 // that the figure may be; 0 = there is no goal
	figure func(w *world) float64
}

// scenarios returns all of them, clients that keep to their limit first.
func scenarios() (all []simulated) {
	add := func(least int, most float64, limits []simLimit, figure func(w *world) float64, what string, of ...any) {
		all = append(all, simulated{fmt.Sprintf(what, of...), limits, least, most, figure})
	}
	add(1, 4, []simLimit{{1, 1}, {1, 100}, {1. / 6, 60}, {1. / 36, 100}, {.2, 20}, {50, 100}}, (*world).afterAFlood,
		"after a flood: refused of a client that obeys Retry-After")
	for _, x := range []float64{1.02, 1.1, 1.2} {
		add(1, .5, []simLimit{{10, 20}, {1, 100}, {5, 40}, {50, 100}}, func(w *world) float64 { return w.regularBursts(x) },
			"whole bursts, one in %g refills: refused, %%", x)
	}
	add(1, .5, []simLimit{{10, 20}}, func(w *world) float64 { return w.far(6_000).regularBursts(1.02) }, "… on a Redis of 6 ms")
	add(1, 1, []simLimit{{10, 10}, {10, 20}, {10, 50}, {50, 100}}, (*world).spendsWhatIsShown, "sends exactly r, then waits: refused, %%")
	for _, ms := range []int64{12, 25, 50, 100} {
		add(1, 1.5, []simLimit{{1, 1}, {5, 1}, {10, 1}}, func(w *world) float64 {
			w.delay = func() int64 { return ms * 500 }
			return w.paced()
		}, "paced, Redis of %d ms: refused, %%", ms)
	}
	for _, ms := range []int64{60, 100, 130} {
		most := .0 // above 100 ms a burst below 16 is refused in part
		if ms == 60 {
			most = .5
		}
		add(1, most, []simLimit{{10, 10}}, func(w *world) float64 { return 100 * w.far(ms*1000).measure(steady(.8), 300e6).short },
			"80 %% of the rate, Redis of %d ms ± 20 %%: refused, %%", ms)
	}
	for _, s := range []struct{ load, hot, most float64 }{{1.3, .65, .02}, {2, .65, .02}, {5, .65, .03}, {5, .9, .03}, {10, .97, .2}} {
		add(2, s.most, []simLimit{{10, 10}, {10, 20}, {50, 100}, {1_000, 100}}, func(w *world) float64 { return 1 - w.fairness(s.load, s.hot) },
			"%g times the rate, %g %% on one node: 1 − Jain's index", s.load, 100*s.hot)
	}
	for _, seconds := range []int64{2, 10, 30} {
		add(2, 1, []simLimit{{100, 200}}, func(w *world) float64 { return 100 * (1 - w.crashLoop(seconds*1e6)) },
			"one node crashes every %d s: lost, %%", seconds)
	}
	add(1, 0, []simLimit{{50, 100}}, func(w *world) float64 {
		return w.measure(func(w *world) (int64, int64) { return w.gap(.2), w.anyNode() }, 1_200e6).calls
	}, "a request in 5 s: calls for each")
	return all
}

// Clients that keep to their limit are refused hardly more often than by an exact bucket, and a fleet
// in trouble is fair and keeps to the limit. With -v it plays on 1, 2, 3, 8 and 16 nodes, and prints the
// figures; else on 1, 2 and 8.
func TestSimScenarios(t *testing.T) {
	sizes := []int{1, 2, 8}
	if testing.Verbose() {
		sizes = []int{1, 2, 3, 8, 16}
	}
	var table []*string
	t.Cleanup(func() {
		for _, row := range table {
			t.Log(*row)
		}
	})
	for _, s := range scenarios() {
		for _, l := range s.limits {
			row := new(string)
			table = append(table, row)
			t.Run(fmt.Sprintf("%s, %s", s.what, l), func(t *testing.T) {
				t.Parallel()
				var figures []string
				goal := ""
				if s.most > 0 {
					goal = fmt.Sprintf("≤ %g", s.most)
				}
				for _, nodes := range sizes {
					if nodes < s.least {
						figures = append(figures, "–")
						continue
					}
					simulate(t, 3, l.policy(), nodes, FailLocal, func(w *world) {
						figure := s.figure(w.far(400))
						if figures = append(figures, fmt.Sprintf("%.3g", figure)); s.most > 0 && figure > s.most {
							w.t.Errorf("%d nodes: %.3g, at most %g", nodes, figure, s.most)
							goal += " missed"
						}
						if w.over > 1 {
							w.t.Errorf("%d nodes: %.1f tokens above the promise", nodes, w.over)
						}
					})
				}
				*row = strings.Join([]string{s.what, l.String(), strings.Join(figures, " / "), goal}, " | ")
			})
		}
	}
}

// A flood that goes on gets all that is in the bucket, even if the rate adds next to nothing.
func TestSimAFloodGetsTheWholeBucket(t *testing.T) {
	t.Parallel()
	fleets(t, 5, []simLimit{{.001, 24}, {100. / 3600, 100}, {.2, 20}, {.5, 100}, {1, 100}, {3, 100}}, []int{2, 3, 8, 16}, func(w *world) {
		const requests, span = 300, 60
		left, rate := w.policy.Burst/4, perSecond(w.policy)
		w.far(400).shared().Level, w.shared().Demand = left*lease.Token, requests*lease.DemandSpan/1000
		w.traffic(steady(requests/rate), span*1e6)
		if due := .97*(float64(left)+rate*span) - 2; float64(w.admitted) < due || w.over > 1 {
			w.errorf("%d admitted, %.1f expected, %.2f over", w.admitted, due, w.over)
		}
	})
}
