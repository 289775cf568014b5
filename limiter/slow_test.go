//go:build !race

package limiter_test

import (
	"testing"
	"time"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

// Redis is slow, not away: the limits hold, hardly anybody is refused who need not
// be, and nearly all is handed out.
func TestSimLimitsHoldOnASlowRedis(t *testing.T) {
	t.Parallel()
	for _, l := range []simLimit{{10, 10}, {10, 20}, {50, 100}, {1_000, 1_000}} {
		span := max(int64(8e6), min(int64(200e6), int64(6e9/l.rate)))
		for _, nodes := range []int{1, 8} {
			for _, traffic := range []struct {
				name        string
				even, flood shape
			}{{"spread", steady(.8), steady(3)}, {"sticky", sticky(.8), sticky(3)}} {
				for _, ms := range []int64{1, 5, 10, 20, 50} {
					measure := func(s shape) (r result) {
						simulate(t, 3, l.policy(), nodes, FailLocal, func(w *world) { r = w.far(ms*1000).measure(s, span) })
						return r
					}
					even, flood := measure(traffic.even), measure(traffic.flood)
					over := max(even.over, flood.over) / float64(l.burst)
					if over > .2 || even.short > .006 || flood.share < .97 || flood.share > 1.01 || even.broken || flood.broken {
						t.Errorf("%s, %d nodes, %s, %d ms: even %+v, flood %+v", l, nodes, traffic.name, ms, even, flood)
					}
				}
			}
		}
	}
}

// What a slow Redis grants to requests that have stopped waiting is kept for the next.
// Until then it counts as held, and the bucket does not fill up beside it.
func TestSimWhatComesLateCountsAsHeld(t *testing.T) {
	simulate(t, 1, policy(t, 1_000, 100), 1, FailDeny, func(w *world) {
		w.delay = func() int64 { return 100_000 }
		w.burst(1, 1_000_000) // Redis is known to be slow from then on
		w.burst(4, 0)         // they spend what came, and have a call made
		w.run(1_100_000)
		w.burst(60, 0) // they wait for the next call, but not so long as that takes
		w.run(1_600_000)
		held := w.nodes[0].limiter.Stats().LeasedHeld
		w.far(100)
		w.burst(300, 0)
		w.run(1_700_000)
		t.Logf("%d held, %d admitted, %.1f over", held, w.admitted, w.over)
		if held < 20 || w.over > 1 {
			t.Errorf("%d tokens that came late are held; %.1f admitted above the promise", held, w.over)
		}
	})
}

// The first call of a new node is answered after its request has stopped waiting, and
// was decided without the bucket. What the answer brings pays for that request: the
// node admits no more than the bucket has.
func TestSimALateFirstAnswerPaysForWhatWasDecidedWithoutIt(t *testing.T) {
	t.Parallel()
	for _, burst := range []int64{1, 3, 15, 16, 100} {
		for _, roundTrip := range []int64{12_000, 30_000, 120_000, 200_000} {
			for seed := range uint64(20) {
				simulate(t, seed, policy(t, .001, burst), 1, FailLocal, func(w *world) {
					w.delay = func() int64 { return roundTrip / 2 }
					for range 2 * burst { // about half of them before the first answer
						w.after(w.random.Int64N(2*roundTrip), func() { go w.nodes[0].ask() })
					}
					w.burst(1, 0)
					w.run(5*roundTrip + 2_000_000)
					w.burst(burst, 0)
					w.run(30_000_000)
					if w.admitted > burst || w.admitted < burst-1 { // a debt is rounded up to a token
						t.Errorf("burst %d, %d ms, seed %d: %d admitted", burst, roundTrip/1000, seed, w.admitted)
					}
				})
			}
		}
	}
}

// Whatever a bucket answers, a key is refused for no longer than its deepest debt takes, and
// the bucket is asked again within seconds.
func TestSimADamagedAnswerDoesNotRefuseForLong(t *testing.T) {
	for name, p := range map[string]Policy{"50/s": policy(t, 50, 100), "100/h": policy(t, 100./3600, 100), "1/s": policy(t, 1, 1)} {
		simulate(t, 1, p, 1, FailLocal, func(w *world) {
			w.executed = func(c *lease.Call) { c.Reply = lease.Reply{Level: -1 << 52, Wait: lease.Forever} }
			w.ask()
			if d := w.ask(); d.Allowed || d.RetryAfter > span(p.TimeFor(p.Units()*5/4+lease.Token)) {
				t.Errorf("%s: refused for another %v", name, d.RetryAfter)
			}
			w.executed = func(*lease.Call) {}
			w.burst(20, time.Second.Microseconds())
			if w.admitted == 0 {
				t.Errorf("%s: still refused 20 s later", name)
			}
		})
	}
}
