package leasetest

import (
	"fmt"

	"listedge/limiter/lease"
)

// Sizes are the fleets on which scenarios play.
var Sizes = []int{1, 2, 3, 8, 16}

// Scenario is a fleet that does what Figure tells, and returns what is wrong with it: a small figure is good.
type Scenario struct {
	What      string
	Rate      float64
	Burst     int64
	RoundTrip int64   // of Redis, in microseconds
	Least     int     // nodes
	Most      float64 // that the figure may be; 0 = there is no goal
	Figure    func(w *World) float64
}

// Play returns the scenario's figure for a fleet, and the tokens that the fleet admitted above the promise.
func (s *Scenario) Play(nodes int, p lease.Policy) (figure, over float64) {
	w := Far(3, p, nodes, s.RoundTrip)
	figure = s.Figure(w)
	return figure, w.Over
}

const fast = 400 // microseconds of a round trip

// Scenarios returns all of them, clients that keep to their limit first.
func Scenarios() (all []Scenario) {
	for _, l := range []limit{{1, 1}, {1, 100}, {1. / 6, 60}, {1. / 36, 100}, {.2, 20}, {50, 100}} {
		all = append(all, Scenario{"after a flood: refused of a client that obeys Retry-After", l.rate, l.burst, fast, 1, 4,
			func(w *World) float64 { return float64(w.AfterAFlood().Refused) }})
	}
	for _, x := range []float64{1.02, 1.1, 1.2} {
		for _, l := range []limit{{10, 20}, {1, 100}, {5, 40}, {50, 100}} {
			all = append(all, Scenario{fmt.Sprintf("whole bursts, one in %g refills: refused, %%", x), l.rate, l.burst, fast, 1, .5,
				func(w *World) float64 { return w.RegularBursts(x).Refusals() }})
		}
	}
	all = append(all, Scenario{"… on a Redis of 6 ms", 10, 20, 6_000, 1, .5, func(w *World) float64 { return w.RegularBursts(1.02).Refusals() }})
	for _, l := range []limit{{10, 10}, {10, 20}, {10, 50}, {50, 100}} {
		all = append(all, Scenario{"sends exactly r, then waits: refused, %", l.rate, l.burst, fast, 1, 1,
			func(w *World) float64 { return w.SpendsWhatIsShown().Refusals() }})
	}
	for _, ms := range []int64{12, 25, 50, 100} {
		for _, rate := range []float64{1, 5, 10} {
			all = append(all, Scenario{fmt.Sprintf("paced, Redis of %d ms: refused, %%", ms), rate, 1, ms * 1000, 1, 1.5,
				func(w *World) float64 {
					w.OneWay = func() int64 { return ms * 500 }
					return w.Paced().Refusals()
				}})
		}
	}
	for _, s := range []struct {
		ms   int64
		most float64
	}{{60, .5}, {100, 0}, {130, 0}} {
		all = append(all, Scenario{fmt.Sprintf("80 %% of the rate, Redis of %d ms ± 20 %%: refused, %%", s.ms), 10, 10, s.ms * 1000, 1, s.most,
			func(w *World) float64 { return 100 * w.Measure(Steady(.8), 300e6).Short }})
	}
	for _, s := range []struct{ load, hot, most float64 }{{1.3, .65, .02}, {2, .65, .02}, {5, .65, .03}, {5, .9, .03}, {10, .97, .2}} {
		for _, l := range []limit{{10, 10}, {10, 20}, {50, 100}, {1_000, 100}} {
			all = append(all, Scenario{fmt.Sprintf("%g times the rate, %g %% on one node: 1 − Jain's index", s.load, 100*s.hot), l.rate, l.burst, fast, 2, s.most,
				func(w *World) float64 { return 1 - w.Fairness(s.load, s.hot) }})
		}
	}
	for _, seconds := range []int64{2, 10, 30} {
		all = append(all, Scenario{fmt.Sprintf("one node crashes every %d s: lost, %%", seconds), 100, 200, fast, 2, 1,
			func(w *World) float64 { return 100 * (1 - w.CrashLoop(seconds*1e6)) }})
	}
	return append(all, Scenario{"a request in 5 s: calls for each", 50, 100, fast, 1, 0, func(w *World) float64 {
		return w.Measure(func(w *World) (int64, int64) { return w.Gap(.2), w.AnyNode() }, 3_600e6).Calls
	}})
}

type limit struct {
	rate  float64
	burst int64
}
