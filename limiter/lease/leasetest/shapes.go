package leasetest

import "listedge/limiter/lease"

// Shape is a pattern of traffic. It returns the time until the next request, in microseconds,
// and the node that gets the request.
type Shape func(w *World) (gap, node int64)

// Gap returns a random time between two requests of that many per second (a Poisson process).
func (w *World) Gap(perSecond float64) int64 { return int64(w.Random.ExpFloat64() * 1e6 / perSecond) }

// AnyNode returns a random node.
func (w *World) AnyNode() int64 { return w.Random.Int64N(int64(len(w.Nodes))) }

// PerSecond returns the rate in tokens per second.
func PerSecond(p lease.Policy) float64 { return float64(p.Rate) / lease.Token }

// Steady has load times the rate, evenly over the nodes.
func Steady(load float64) Shape {
	return func(w *World) (int64, int64) { return w.Gap(load * PerSecond(w.Policy)), w.AnyNode() }
}

// pulsing has high times the rate for on microseconds of each period, and low times the rate in between.
func pulsing(high, low float64, on, period, first int64) Shape {
	return func(w *World) (int64, int64) {
		load := low
		if (w.Now+period-first)%period < on {
			load = high
		}
		return w.Gap(load * PerSecond(w.Policy)), w.AnyNode()
	}
}

var (
	Bursty = pulsing(3, .1, 500_000, 2_500_000, 0)
	Waking = pulsing(10, .02, 1_000_000, 6_000_000, 5_000_000) // hardly any requests at first
)

// Skewed sends nine of ten requests to one node.
func Skewed(w *World) (int64, int64) {
	if w.Random.IntN(10) > 0 {
		return w.Gap(1.2 * PerSecond(w.Policy)), 0
	}
	return w.Gap(1.2 * PerSecond(w.Policy)), w.AnyNode()
}

// Moving sends all requests to one node, and every three seconds to the next one.
func Moving(w *World) (int64, int64) {
	return w.Gap(1.2 * PerSecond(w.Policy)), w.Now / 3_000_000 % int64(len(w.Nodes))
}

// Ramp grows from nearly nothing to three times the rate in ten seconds.
func Ramp(w *World) (int64, int64) {
	return w.Gap((.05 + 3*float64(w.Now%10_000_000)/10_000_000) * PerSecond(w.Policy)), w.AnyNode()
}

// Relay has nearly twice the rate on one node for half a second, a tenth of it for another
// half, and then goes on with the next node.
func Relay(w *World) (int64, int64) {
	node := w.Now / 1_000_000 % int64(len(w.Nodes))
	if w.Now%1_000_000 < 500_000 {
		return w.Gap(1.9 * PerSecond(w.Policy)), node
	}
	return w.Gap(.1 * PerSecond(w.Policy)), node
}

// Shapes are the patterns of the tables that the tests print.
var Shapes = []struct {
	Name string
	Shape
}{{"80 %", Steady(.8)}, {"100 %", Steady(1)}, {"150 %", Steady(1.5)}, {"bursty", Bursty}, {"skewed", Skewed},
	{"moving", Moving}, {"ramp", Ramp}, {"relay", Relay}, {"waking", Waking}, {"flood", Steady(10)}}
