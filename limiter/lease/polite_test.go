// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"fmt"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// Clients that keep to their limit are refused hardly more often than by an exact bucket, and a fleet
// in trouble is fair and keeps to the limit.
func TestScenarios(t *testing.T) {
	for _, s := range Scenarios() {
		for _, nodes := range Sizes {
			if nodes < s.Least {
				continue
			}
			t.Run(fmt.Sprintf("%s, %.3g/s burst %d, %d nodes", s.What, s.Rate, s.Burst, nodes), func(t *testing.T) {
				t.Parallel()
				figure, over := s.Play(nodes, policy(t, s.Rate, s.Burst))
				if t.Logf("%.3g, %.2f over", figure, over); s.Most > 0 && figure > s.Most || over > 1 {
					t.Errorf("%.3g, at most %g; %.1f tokens above the promise", figure, s.Most, over)
				}
			})
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
			w := Far(5, p, nodes, 400)
			const perSecond, span = 300, 60
			left := limit.burst / 4
			w.Bucket.Level, w.Bucket.Demand = left*lease.Token, perSecond*lease.DemandSpan/1000
			w.Traffic(Steady(perSecond/limit.rate), span*1e6)
			w.Run(span * 1e6)
			if due := .97*(float64(left)+limit.rate*span) - 2; float64(w.Admitted) < due || w.Over > 1 {
				t.Errorf("%v/s burst %d, %d nodes: %d admitted, %.1f expected, %.2f over", limit.rate, limit.burst, nodes, w.Admitted, due, w.Over)
			}
		}
	}
}
