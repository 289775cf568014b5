package limiter

import (
	"fmt"
	"testing"
)

// slowCell is what a fleet makes of one limit on a slow Redis.
type slowCell struct {
	over   float64 // bursts above the promise, in the worst span
	short  float64 // share of the requests that an exact bucket admits and the fleet does not
	share  float64 // admitted, of what an exact bucket admits
	alone  float64 // share of the requests that a node admitted by itself
	waited float64 // share of the requests that waited
	calls  float64 // a request
	broken int     // times that a breaker opened
}

// onSlowRedis runs a shape over a fleet whose calls take roundTrip, 20 % more or
// less.
func onSlowRedis(t testing.TB, p Policy, nodes int, s shape, roundTrip, span int64) (c slowCell) {
	w := newWorld(t, 3, p, nodes)
	w.oneWay = func() int64 { return roundTrip*4/10 + w.random.Int64N(max(1, roundTrip/5)) }
	exact, ideal := fullState(p, 0), int64(0)
	o, worst := oracle{p: p}, int64(0)
	w.admit = func(*simNode) {
		if !o.admitWithin(w.now, 0) {
			worst = max(worst, o.admitted*p.p-w.now*p.r-o.lowest-p.units())
		}
	}
	w.traffic(func(w *world) (int64, int64) {
		c := call{policy: p, need: 1}
		exact.visit(&c, w.now)
		ideal += c.granted
		return s(w)
	}, span)
	w.run(span + 1_000_000)
	offered := float64(w.offered)
	return slowCell{over: float64(worst) / float64(p.units()), short: float64(ideal-w.admitted) / offered,
		share: float64(w.admitted) / float64(ideal), alone: float64(w.alone) / offered,
		waited: float64(w.waited) / offered, calls: float64(w.calls) / offered, broken: w.broken}
}

// Redis is slow, not away: the limits hold, hardly anybody is refused who need
// not be, and nearly all is handed out.
func TestLimitsHoldOnASlowRedis(t *testing.T) {
	t.Parallel()
	sticky := func(load float64) shape {
		return func(w *world) (int64, int64) { return w.gap(load * perSecond(w.p)), 0 }
	}
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 10}, {10, 20}, {50, 100}, {100, 200}, {1_000, 1_000}}[:slowLimits] {
		p := policy(t, limit.rate, limit.burst)
		span := max(int64(15e6), min(int64(200e6), int64(6e9/limit.rate)))
		for _, nodes := range []int{1, 3, 8} {
			for _, traffic := range []struct {
				name        string
				even, flood shape
			}{{"spread", steady_(.8), steady_(3)}, {"sticky", sticky(.8), sticky(3)}} {
				line := ""
				for _, ms := range []int64{1, 5, 10, 20, 50} {
					even := onSlowRedis(t, p, nodes, traffic.even, ms*1000, span)
					flood := onSlowRedis(t, p, nodes, traffic.flood, ms*1000, span)
					over := max(even.over, flood.over)
					line += fmt.Sprintf(" |%3d ms %5.2f %6.2f %% %6.1f %% %5.2f %5.2f %5.2f", ms, over, 100*even.short, 100*flood.share, even.calls, even.waited, even.alone+flood.alone)
					if over > .2 || even.short > .006 || flood.share < .97 || flood.share > 1.01 || even.broken+flood.broken > 0 {
						t.Errorf("%v/s burst %d, %d nodes, %s, %d ms: even %+v, flood %+v", limit.rate, limit.burst, nodes, traffic.name, ms, even, flood)
					}
				}
				t.Logf("%5.0f/s %4d %d %s%s", limit.rate, limit.burst, nodes, traffic.name, line)
			}
		}
	}
}
