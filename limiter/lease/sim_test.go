package lease_test

import (
	"fmt"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

func policy(t testing.TB, rate float64, burst int64) lease.Policy {
	t.Helper()
	p, err := lease.NewPolicy(rate, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func slowWorld(t testing.TB, seed uint64, p lease.Policy, nodes int, rtt int64) *World {
	w := New(t, seed, p, nodes)
	w.OneWay = func() int64 { return rtt*4/10 + w.Random.Int64N(max(1, rtt/5)) }
	return w
}

func sticky(load float64) Shape {
	return func(w *World) (int64, int64) { return w.Gap(load * PerSecond(w.Policy)), 0 }
}

func TestX5(t *testing.T) {
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{1, 1}, {10, 10}, {10, 20}, {50, 100}, {100, 200}, {1000, 100}, {1000, 1000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			for _, load := range []float64{.8, .95, 3, 10} {
				r := slowWorld(t, 3, p, nodes, 400).Measure(Steady(load), int64(6_000/limit.rate/load*1e6))
				line += fmt.Sprintf(" | %.0f%%: calls %.3f wait %.3f short %.3f%% share %.4f over %.2f", load*100, r.Calls, r.Waited, 100*r.Short, r.Share, r.Over)
			}
			t.Logf("%5.0f/s %4d N=%d%s", limit.rate, limit.burst, nodes, line)
		}
	}
}

func atOnce(t testing.TB, p lease.Policy, nodes int, apart int64) (refused, calls float64) {
	w := New(t, 11, p, nodes)
	w.OneWay = func() int64 { return 150 + w.Random.Int64N(100) }
	const bursts = 20
	rest := p.Burst*lease.Token*1_000_000/p.Rate + 25_000_000 // it fills up, and what is held goes back
	for i := range int64(bursts) {
		for k := range p.Burst {
			w.After(i*rest+k*apart, func() { w.Nodes[w.AnyNode()].Request() })
		}
	}
	w.Run(bursts * rest)
	return 1 - float64(w.Admitted)/float64(w.Offered), float64(w.Calls) / float64(w.Offered)
}

func TestX4(t *testing.T) {
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 20}, {50, 100}, {1_000, 1_000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			for _, apart := range []int64{5, 50, 200, 1_000, 5_000} {
				refused, calls := atOnce(t, p, nodes, apart)
				line += fmt.Sprintf(" |%5d us %5.2f %% %.2f", apart, 100*refused, calls)
			}
			t.Logf("%5.0f/s burst %4d, %d nodes: refused, calls a request %s", limit.rate, limit.burst, nodes, line)
		}
	}
}
