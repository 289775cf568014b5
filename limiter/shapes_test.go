//go:build !race

package limiter_test

import (
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// shape is a pattern of traffic. It returns the time until the next request, in microseconds,
// and the node that gets the request.
type shape func(w *world) (gap, node int64)

// gap returns a random time between two requests of that many per second (a Poisson process).
func (w *world) gap(perSecond float64) int64 { return int64(w.random.ExpFloat64() * 1e6 / perSecond) }

// anyNode returns a random node.
func (w *world) anyNode() int64 { return w.random.Int64N(int64(len(w.nodes))) }

// perSecond returns the rate in tokens per second.
func perSecond(p Policy) float64 { return float64(p.Rate) / lease.Token }

// steady has load times the rate, evenly over the nodes.
func steady(load float64) shape {
	return func(w *world) (int64, int64) { return w.gap(load * perSecond(w.policy)), w.anyNode() }
}

// pulsing has high times the rate for on microseconds of each period, and low times the rate in between.
func pulsing(high, low float64, on, period, first int64) shape {
	return func(w *world) (int64, int64) {
		load := low
		if (w.now()+period-first)%period < on {
			load = high
		}
		return w.gap(load * perSecond(w.policy)), w.anyNode()
	}
}

var (
	bursty = pulsing(3, .1, 500_000, 2_500_000, 0)
	waking = pulsing(10, .02, 1_000_000, 6_000_000, 5_000_000) // hardly any requests at first
)

// skewed sends nine of ten requests to one node.
func skewed(w *world) (int64, int64) {
	if w.random.IntN(10) > 0 {
		return w.gap(1.2 * perSecond(w.policy)), 0
	}
	return w.gap(1.2 * perSecond(w.policy)), w.anyNode()
}

// moving sends all requests to one node, and every three seconds to the next one.
func moving(w *world) (int64, int64) {
	return w.gap(1.2 * perSecond(w.policy)), w.now() / 3_000_000 % int64(len(w.nodes))
}

// ramp grows from nearly nothing to three times the rate in ten seconds.
func ramp(w *world) (int64, int64) {
	return w.gap((.05 + 3*float64(w.now()%10_000_000)/10_000_000) * perSecond(w.policy)), w.anyNode()
}

// relay has nearly twice the rate on one node for half a second, a tenth of it for another
// half, and then goes on with the next node.
func relay(w *world) (int64, int64) {
	node := w.now() / 1_000_000 % int64(len(w.nodes))
	if w.now()%1_000_000 < 500_000 {
		return w.gap(1.9 * perSecond(w.policy)), node
	}
	return w.gap(.1 * perSecond(w.policy)), node
}

// shapes are the patterns of the tables that the tests print.
var shapes = []struct {
	name string
	shape
}{{"80 %", steady(.8)}, {"100 %", steady(1)}, {"150 %", steady(1.5)}, {"bursty", bursty}, {"skewed", skewed},
	{"moving", moving}, {"ramp", ramp}, {"relay", relay}, {"waking", waking}, {"flood", steady(10)}}
