package leasetest

import (
	"fmt"

	"listedge/limiter/lease"
)

// Sizes are the fleets on which scenarios play.
var Sizes = []int{1, 2, 3, 8, 16}

// Scenario is a fleet that does what Figure tells, and returns what is wrong with it: a small figure is good.
type Scenario struct {
	What   string
	Rate   float64
	Burst  int64
	Least  int     // nodes
	Most   float64 // that the figure may be; 0 = there is no goal
	Figure func(w *World) float64
}

// Play returns the scenario's figure for a fleet, and the tokens that the fleet admitted above the promise.
func (s *Scenario) Play(nodes int, p lease.Policy) (figure, over float64) {
	w := Far(3, p, nodes, 400)
	figure = s.Figure(w)
	return figure, w.Over
}

type limit struct {
	rate  float64
	burst int64
}

// Scenarios returns all of them, clients that keep to their limit first.
func Scenarios() (all []Scenario) {
	add := func(least int, most float64, limits []limit, figure func(w *World) float64, what string, of ...any) {
		for _, l := range limits {
			all = append(all, Scenario{fmt.Sprintf(what, of...), l.rate, l.burst, least, most, figure})
		}
	}
	add(1, 4, []limit{{1, 1}, {1, 100}, {1. / 6, 60}, {1. / 36, 100}, {.2, 20}, {50, 100}}, (*World).AfterAFlood,
		"after a flood: refused of a client that obeys Retry-After")
	for _, x := range []float64{1.02, 1.1, 1.2} {
		add(1, .5, []limit{{10, 20}, {1, 100}, {5, 40}, {50, 100}}, func(w *World) float64 { return w.RegularBursts(x) },
			"whole bursts, one in %g refills: refused, %%", x)
	}
	add(1, .5, []limit{{10, 20}}, func(w *World) float64 { return w.far(6_000).RegularBursts(1.02) }, "… on a Redis of 6 ms")
	add(1, 1, []limit{{10, 10}, {10, 20}, {10, 50}, {50, 100}}, (*World).SpendsWhatIsShown, "sends exactly r, then waits: refused, %%")
	for _, ms := range []int64{12, 25, 50, 100} {
		add(1, 1.5, []limit{{1, 1}, {5, 1}, {10, 1}}, func(w *World) float64 {
			w.OneWay = func() int64 { return ms * 500 }
			return w.Paced()
		}, "paced, Redis of %d ms: refused, %%", ms)
	}
	for _, ms := range []int64{60, 100, 130} {
		most := .0 // above 100 ms a burst below 16 is refused in part
		if ms == 60 {
			most = .5
		}
		add(1, most, []limit{{10, 10}}, func(w *World) float64 { return 100 * w.far(ms*1000).Measure(Steady(.8), 300e6).Short },
			"80 %% of the rate, Redis of %d ms ± 20 %%: refused, %%", ms)
	}
	for _, s := range []struct{ load, hot, most float64 }{{1.3, .65, .02}, {2, .65, .02}, {5, .65, .03}, {5, .9, .03}, {10, .97, .2}} {
		add(2, s.most, []limit{{10, 10}, {10, 20}, {50, 100}, {1_000, 100}}, func(w *World) float64 { return 1 - w.Fairness(s.load, s.hot) },
			"%g times the rate, %g %% on one node: 1 − Jain's index", s.load, 100*s.hot)
	}
	for _, seconds := range []int64{2, 10, 30} {
		add(2, 1, []limit{{100, 200}}, func(w *World) float64 { return 100 * (1 - w.CrashLoop(seconds*1e6)) },
			"one node crashes every %d s: lost, %%", seconds)
	}
	add(1, 0, []limit{{50, 100}}, func(w *World) float64 {
		return w.Measure(func(w *World) (int64, int64) { return w.Gap(.2), w.AnyNode() }, 3_600e6).Calls
	}, "a request in 5 s: calls for each")
	return all
}
