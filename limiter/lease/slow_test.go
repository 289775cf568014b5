// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"fmt"
	"testing"

	. "listedge/limiter/lease/leasetest"
)

// Redis is slow, not away: the limits hold, hardly anybody is refused who need not
// be, and nearly all is handed out.
func TestLimitsHoldOnASlowRedis(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 10}, {10, 20}, {50, 100}, {100, 200}, {1_000, 1_000}}[:slowLimits] {
		p := policy(t, limit.rate, limit.burst)
		span := max(int64(15e6), min(int64(200e6), int64(6e9/limit.rate)))
		for _, nodes := range []int{1, 3, 8} {
			for _, traffic := range []struct {
				name        string
				even, flood Shape
			}{{"spread", Steady(.8), Steady(3)}, {"sticky", sticky(.8), sticky(3)}} {
				line := ""
				for _, ms := range []int64{1, 5, 10, 20, 50} {
					even := far(t, 3, p, nodes, ms*1000).Measure(traffic.even, span)
					flood := far(t, 3, p, nodes, ms*1000).Measure(traffic.flood, span)
					over := max(even.Over, flood.Over) / float64(p.Burst)
					line += fmt.Sprintf(" |%3d ms %5.2f %6.2f %% %6.1f %% %5.2f %5.2f %5.2f", ms, over, 100*even.Short, 100*flood.Share, even.Calls, even.Waited, even.Fallback+flood.Fallback)
					if over > .2 || even.Short > .006 || flood.Share < .97 || flood.Share > 1.01 || even.Broken+flood.Broken > 0 {
						t.Errorf("%v/s burst %d, %d nodes, %s, %d ms: even %+v, flood %+v", limit.rate, limit.burst, nodes, traffic.name, ms, even, flood)
					}
				}
				t.Logf("%5.0f/s %4d %d %s%s", limit.rate, limit.burst, nodes, traffic.name, line)
			}
		}
	}
}
