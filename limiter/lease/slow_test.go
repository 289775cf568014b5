// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// Redis is slow, not away: the limits hold, hardly anybody is refused who need not
// be, and nearly all is handed out.
func TestLimitsHoldOnASlowRedis(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 10}, {10, 20}, {50, 100}, {100, 200}, {1_000, 1_000}} {
		p := policy(t, limit.rate, limit.burst)
		span := max(int64(15e6), min(int64(200e6), int64(6e9/limit.rate)))
		for _, nodes := range []int{1, 3, 8} {
			for _, traffic := range []struct {
				name        string
				even, flood Shape
			}{{"spread", Steady(.8), Steady(3)}, {"sticky", sticky(.8), sticky(3)}} {
				for _, ms := range []int64{1, 5, 10, 20, 50} {
					even := Far(3, p, nodes, ms*1000).Measure(traffic.even, span)
					flood := Far(3, p, nodes, ms*1000).Measure(traffic.flood, span)
					over := max(even.Over, flood.Over) / float64(p.Burst)
					if over > .2 || even.Short > .006 || flood.Share < .97 || flood.Share > 1.01 || even.Broken+flood.Broken > 0 {
						t.Errorf("%v/s burst %d, %d nodes, %s, %d ms: even %+v, flood %+v", limit.rate, limit.burst, nodes, traffic.name, ms, even, flood)
					}
				}
			}
		}
	}
}

// What a slow Redis grants to requests that have stopped waiting is kept for the next.
// Until then it counts as held, and the bucket does not fill up beside it.
func TestWhatComesLateCountsAsHeld(t *testing.T) {
	t.Parallel()
	w := New(1, policy(t, 1_000, 100), 1)
	w.Denies = true
	w.OneWay = func() int64 { return 100_000 }
	request := w.Nodes[0].Request
	w.After(0, request) // Redis is known to be slow from then on
	w.After(1_000_000, request)
	for range 60 { // they wait for the next call, but not so long as that takes
		w.After(1_100_000, request)
	}
	w.Run(1_600_000)
	held := w.Nodes[0].Lease.Holds(w.Nodes[0].Now())
	w.OneWay = func() int64 { return 100 }
	for range 300 {
		w.After(0, request)
	}
	w.Run(1_700_000)
	t.Logf("%d held, %d admitted, %.1f over", held, w.Admitted, w.Over)
	if held < 20 || w.Over > 1 {
		t.Errorf("%d tokens that came late are held; %.1f admitted above the promise", held, w.Over)
	}
}

// The first call of a new node is answered after its request has stopped waiting, and
// was decided without the bucket. What the answer brings pays for that request: the
// node admits no more than the bucket has.
func TestALateFirstAnswerPaysForWhatWasDecidedWithoutIt(t *testing.T) {
	t.Parallel()
	for _, burst := range []int64{1, 3, 15, 16, 100} {
		for _, roundTrip := range []int64{12_000, 30_000, 120_000, 200_000} {
			for seed := range uint64(20) {
				w := New(seed, policy(t, .001, burst), 1)
				w.OneWay = func() int64 { return roundTrip / 2 }
				for at := int64(0); at < 2*burst; at++ { // about half of them before the first answer
					w.After(w.Random.Int64N(2*roundTrip), w.Nodes[0].Request)
				}
				w.After(0, w.Nodes[0].Request)
				w.After(5*roundTrip+2_000_000, func() {
					for range burst {
						w.Nodes[0].Request()
					}
				})
				w.Run(30_000_000)
				if w.Admitted > burst || w.Admitted < burst-1 { // a debt is rounded up to a token
					t.Errorf("burst %d, %d ms, seed %d: %d admitted", burst, roundTrip/1000, seed, w.Admitted)
				}
			}
		}
	}
}

// Whatever a bucket answers, a key is refused for no longer than its deepest debt takes, and
// the bucket is asked again within seconds.
func TestADamagedAnswerDoesNotRefuseForLong(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]lease.Policy{"50/s": policy(t, 50, 100), "100/h": policy(t, 100./3600, 100), "1/s": policy(t, 1, 1)} {
		t.Run(name, func(t *testing.T) {
			w := New(1, p, 1)
			n := w.Nodes[0]
			repaired := w.Execute
			w.Execute = func(c *lease.Call, _ int64) { c.Reply = lease.Reply{Level: -1 << 52, Wait: lease.Forever} }
			w.After(0, n.Request)
			w.Run(1_000_000)
			if retry := n.Lease.RetryIn(n.Now()); !n.Lease.Denies(n.Now()) || retry > p.TimeFor(p.Units()*5/4+lease.Token) {
				t.Errorf("refused for another %d us", retry)
			}
			w.Execute = repaired
			for at := int64(2); at < 20; at++ {
				w.After(at*1_000_000, n.Request)
			}
			w.Run(20_000_000)
			if w.Admitted == 0 {
				t.Error("still refused 20 s later")
			}
		})
	}
}
