// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"fmt"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// After a flood a client that waits for Retry-After, and then keeps to 95 % of the rate, is
// refused hardly more often than by an exact bucket, and soon not at all.
func TestAfterAFlood(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{1, 1}, {1, 100}, {10. / 60, 60}, {100. / 3600, 100}, {.2, 20}, {50, 100}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 2, 3, 8, 16} {
			w := far(t, 3, p, nodes, 400)
			const flood = int64(60e6)
			admitted, refused, last := 0, 0, int64(0)
			exact, o, over := Exact{Policy: p}, Oracle{Policy: p}, 0.0
			falsely, first := 0, false
			w.Admit = func(*Node) { over = max(over, o.Admit(w.Now)) }
			w.Traffic(func(w *World) (int64, int64) {
				exact.Take(w.Now)
				return w.Gap(max(20, 3*limit.rate)), w.AnyNode()
			}, flood)
			client := func() {
				first = exact.Take(w.Now)
				w.Nodes[w.AnyNode()].Request()
			}
			w.Decided = func(n *Node, ok bool) {
				switch {
				case w.Now <= flood+500_000:
				case ok:
					admitted++
					w.After(int64(1e6/limit.rate/.95), client)
				default:
					refused++
					if first {
						falsely++
						last = w.Now - flood
					}
					w.After((n.Lease.RetryIn(n.Now())+999_999)/1e6*1e6, client)
				}
			}
			w.After(flood+600_000, client)
			w.Run(flood + max(int64(120e6), int64(float64(limit.burst)/limit.rate*1e6)))
			t.Logf("%7.3f/s %4d, %2d nodes: %4d admitted, %3d refused, %3d falsely, the last after %4d s, %.2f over", limit.rate, limit.burst, nodes, admitted, refused, falsely, last/1e6, over)
			if refused > 4 || over > 1 {
				t.Errorf("%v/s burst %d, %d nodes: %d refused, %d falsely, the last after %d s; %.2f over", limit.rate, limit.burst, nodes, refused, falsely, last/1e6, over)
			}
		}
	}
}

// A flood that goes on gets all that is in the bucket, even if the rate adds next to nothing.
func TestAFloodGetsTheWholeBucket(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{.001, 24}, {100. / 3600, 100}, {.2, 20}, {.5, 100}, {1, 100}, {3, 100}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{2, 3, 8, 16} {
			w := far(t, 5, p, nodes, 400)
			const perSecond, span = 300, 60
			left := limit.burst / 4
			w.Bucket.Level, w.Bucket.Demand = left*lease.Token, perSecond*lease.DemandSpan/1000
			o, over := Oracle{Policy: p}, 0.0
			w.Admit = func(*Node) { over = max(over, o.Admit(w.Now)) }
			w.Traffic(Steady(perSecond/limit.rate), span*1e6)
			w.Run(span * 1e6)
			if due := .97*(float64(left)+limit.rate*span) - 2; float64(w.Admitted) < due || over > 1 {
				t.Errorf("%v/s burst %d, %d nodes: %d admitted, %.1f expected, %.2f over", limit.rate, limit.burst, nodes, w.Admitted, due, over)
			}
		}
	}
}

// A client that sends a whole burst each time the bucket is full again keeps to its limit.
func TestRegularBursts(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 20}, {1, 100}, {5, 40}, {50, 100}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 2, 3, 8, 16} {
			line := ""
			for _, apart := range []int64{200, 2_000} {
				for _, x := range []float64{1.02, 1.1, 1.2} {
					const bursts = 20
					w := far(t, 11, p, nodes, 400)
					o, over := Oracle{Policy: p}, 0.0
					w.Admit = func(*Node) { over = max(over, o.Admit(w.Now)) }
					every := int64(x * float64(limit.burst) / limit.rate * 1e6)
					for i := range int64(bursts) {
						for k := range limit.burst {
							w.After(i*every+k*apart, func() { w.Nodes[w.AnyNode()].Request() })
						}
					}
					w.Run(bursts * every)
					refused, calls := 1-float64(w.Admitted)/float64(w.Offered), float64(w.Calls)/float64(w.Offered)
					line += fmt.Sprintf(" | %.2f, %4d us: %5.2f %% %.2f", x, apart, 100*refused, calls)
					if refused > .01 || nodes <= 8 && refused > .0051 || over > 1 {
						t.Errorf("%v/s burst %d, %d nodes, every %.2f refills, %d us apart: %.2f %% refused, %.2f over", limit.rate, limit.burst, nodes, x, apart, 100*refused, over)
					}
				}
			}
			t.Logf("%3.0f/s %4d, %2d nodes: refused, calls a request%s", limit.rate, limit.burst, nodes, line)
		}
	}
}

// A client of a burst of 1 that keeps to 95 % of its rate and stays on one node is refused
// nothing, however slow Redis is.
func TestBurstOneOnASlowRedis(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1, 5, 10} {
		for _, ms := range []int64{1, 12, 25, 50, 100} {
			w := far(t, 7, policy(t, rate, 1), 3, ms*1000)
			w.OneWay = func() int64 { return ms * 500 }
			gap := int64(1e6 / rate / .95)
			w.Traffic(func(*World) (int64, int64) { return gap, 0 }, 200*gap)
			w.Run(200 * gap)
			if refused := w.Offered - w.Admitted; refused > 3 { // the last may be on its way
				t.Errorf("%v/s, %d ms: %d of %d refused", rate, ms, refused, w.Offered)
			}
		}
	}
}
