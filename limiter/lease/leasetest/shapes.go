package leasetest

import "listedge/limiter/lease"

// Shape chooses the gap to the next request and the node it comes to.
type Shape func(w *World) (gap, node int64)

func (w *World) Gap(perSecond float64) int64 { return int64(w.Random.ExpFloat64() * 1e6 / perSecond) }
func (w *World) AnyNode() int64              { return w.Random.Int64N(int64(len(w.Nodes))) }

// PerSecond is the rate in tokens.
func PerSecond(p lease.Policy) float64 { return float64(p.Rate) / lease.Token }

// steady: load times the rate, evenly over the nodes.
func Steady(load float64) Shape {
	return func(w *World) (int64, int64) { return w.Gap(load * PerSecond(w.Policy)), w.AnyNode() }
}

// Bursty is half a second at three times the rate, then two that are nearly still.
func Bursty(w *World) (int64, int64) {
	if w.Now%2_500_000 < 500_000 {
		return w.Gap(3 * PerSecond(w.Policy)), w.AnyNode()
	}
	return w.Gap(.1 * PerSecond(w.Policy)), w.AnyNode()
}

// Skewed is nine of ten requests come to one node.
func Skewed(w *World) (int64, int64) {
	if w.Random.IntN(10) > 0 {
		return w.Gap(1.2 * PerSecond(w.Policy)), 0
	}
	return w.Gap(1.2 * PerSecond(w.Policy)), w.AnyNode()
}

// Moving is the busy node is another one every three seconds.
func Moving(w *World) (int64, int64) {
	return w.Gap(1.2 * PerSecond(w.Policy)), w.Now / 3_000_000 % int64(len(w.Nodes))
}

// Ramp is from next to nothing to three times the rate, in ten seconds.
func Ramp(w *World) (int64, int64) {
	return w.Gap((.05 + 3*float64(w.Now%10_000_000)/10_000_000) * PerSecond(w.Policy)), w.AnyNode()
}

// Relay is half a second at nearly twice the rate on one node, half a second of
// peace, and then on the next.
func Relay(w *World) (int64, int64) {
	node := w.Now / 1_000_000 % int64(len(w.Nodes))
	if w.Now%1_000_000 < 500_000 {
		return w.Gap(1.9 * PerSecond(w.Policy)), node
	}
	return w.Gap(.1 * PerSecond(w.Policy)), node
}

// Waking is five seconds of hardly anything, and one at ten times the rate.
func Waking(w *World) (int64, int64) {
	if w.Now%6_000_000 < 5_000_000 {
		return w.Gap(.02 * PerSecond(w.Policy)), w.AnyNode()
	}
	return w.Gap(10 * PerSecond(w.Policy)), w.AnyNode()
}

// Herd is at one moment, every other fill of the bucket, half as many again as it holds.
func Herd(w *World) (int64, int64) {
	every := 2 * w.Policy.Burst * lease.Token * 1_000_000 / w.Policy.Rate
	if w.Offered%(w.Policy.Burst*3/2) != 0 {
		return 0, w.AnyNode()
	}
	return every - w.Now%every, w.AnyNode()
}

// Shapes are the traffic of the tables.
var Shapes = []struct {
	Name string
	Shape
}{{"80 %", Steady(.8)}, {"100 %", Steady(1)}, {"150 %", Steady(1.5)}, {"bursty", Bursty}, {"skewed", Skewed},
	{"moving", Moving}, {"ramp", Ramp}, {"relay", Relay}, {"waking", Waking}, {"flood", Steady(10)}}
