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
			v := far(t, 3, p, nodes, 400).AfterAFlood()
			t.Logf("%7.3f/s %4d, %2d nodes: %+v", limit.rate, limit.burst, nodes, v)
			if v.Refused > 4 || v.Over > 1 {
				t.Errorf("%v/s burst %d, %d nodes: %+v", limit.rate, limit.burst, nodes, v)
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
					v := far(t, 11, p, nodes, 400).RegularBursts(x, apart)
					line += fmt.Sprintf(" | %.2f, %4d us: %5.2f %% %.2f", x, apart, v.Refusals(), v.Calls)
					if v.Refusals() > 1 || nodes <= 8 && v.Refusals() > .51 || v.Over > 1 {
						t.Errorf("%v/s burst %d, %d nodes, every %.2f refills, %d us apart: %+v", limit.rate, limit.burst, nodes, x, apart, v)
					}
				}
			}
			t.Logf("%3.0f/s %4d, %2d nodes: refused, calls a request%s", limit.rate, limit.burst, nodes, line)
		}
	}
}

// A client that sends as many requests as it is shown to have is refused hardly any of them, on
// however many nodes.
func TestAClientThatSpendsWhatIsShown(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 10}, {10, 20}, {10, 50}, {50, 100}} {
		for _, nodes := range []int{1, 3, 8} {
			v := far(t, 13, policy(t, limit.rate, limit.burst), nodes, 400).SpendsWhatIsShown()
			t.Logf("%v/s burst %d, %d nodes: %.2f %% refused, %+v", limit.rate, limit.burst, nodes, v.Refusals(), v)
			if v.Refusals() > 1 || v.Over > 1 {
				t.Errorf("%v/s burst %d, %d nodes: %+v", limit.rate, limit.burst, nodes, v)
			}
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
			if v := w.Paced(); v.Refused > 3 {
				t.Errorf("%v/s, %d ms: %+v", rate, ms, v)
			}
		}
	}
}
