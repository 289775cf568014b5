//go:build !race

package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	. "listedge/limiter"
)

// sticky: all requests come to one node.
func sticky(load float64) shape {
	return func(w *world) (int64, int64) { return w.gap(load * perSecond(w.policy)), 0 }
}

const stormSeeds = 120

func TestSimNeverOverAtSpending(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stormSeeds) {
		if v := (storm{seed: seed}).run(t); v.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, v.over, v.worst)
		}
	}
}

func TestSimNeverOverAtTheEdgesOfSlices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6 * stormSeeds) {
		if v := dormant(t, seed); v.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, v.over, v.worst)
		}
	}
}

// A clock of Redis that steps forward says that time has passed which has not, and
// nothing that Redis can know tells it otherwise. What then may be admitted too much
// is what it says the rate has brought, at most one burst, and what nodes held and
// it took for aged, at most half of one; not more.
func TestSimAForwardClockStepCostsAtMostWhatItSkips(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stormSeeds) {
		step := int64(1+seed%40) * 1_000_000
		if over := (storm{seed: seed, forward: step}).run(t).over; over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, the step of %d s forgiven", seed, over, step/1_000_000)
		}
	}
}

// What a step costs that nothing forgives is a burst, and the oracle of the storms sees it.
func TestSimAForwardClockStepIsSeen(t *testing.T) {
	t.Parallel()
	p := policy(t, 50, 100)
	simulate(t, 1, p, 3, FailDeny, func(w *world) {
		var v outcome
		(&regimes{w: w}).watch(&v)
		w.after(5_000_000, func() { w.clock += 40_000_000 })
		w.traffic(steady(10), 10_000_000)
		if v.worst < p.Burst*4/5 || v.worst > p.Burst { // less what the rate brings while an answer is on its way
			t.Errorf("%d tokens above the promise are seen, about %d expected", v.worst, p.Burst)
		}
	})
}

// One answer at a time and no delay: below 16 tokens the fleet admits exactly whom a
// script call per request would.
func TestSimSmallBurstsAreAsPerRequest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		p := []Policy{policy(t, 5.0/60, 5), policy(t, 50, 15), policy(t, 3, 1), policy(t, 1_000, 10)}[seed%4]
		simulate(t, seed, p, 3, FailLocal, func(w *world) {
			w.far(0)
			exact := exactly(p)
			for range 800 {
				w.run(w.now() + w.random.Int64N(int64(2e6/perSecond(p))))
				want := exact.take(w.virtual.now())
				if d := w.ask(); d.Allowed != want {
					t.Fatalf("seed %d, %d us: admitted %v, per request %v", seed, w.now(), d.Allowed, want)
				}
			}
		})
	}
}

// On an exhausted bucket a flood costs a call per token.
func TestSimFloodOnFiveAMinute(t *testing.T) {
	t.Parallel()
	simulate(t, 1, policy(t, 5.0/60, 5), 1, FailLocal, func(w *world) {
		flood := func(*world) (int64, int64) { return 1_000, 0 }
		w.traffic(flood, 1_000_000)
		before := w.calls.Load()
		w.traffic(flood, 600_000_000)
		if calls := w.calls.Load() - before; calls < 49 || calls > 51 {
			t.Fatalf("%d calls in 599 s of a thousand requests a second, one per 12 s expected", calls)
		}
		if w.admitted < 54 || w.admitted > 55 {
			t.Fatalf("%d admitted, 5 and one per 12 s expected", w.admitted)
		}
	})
}

// Redis stands still, from shorter than the wait to three seconds, under a tenfold
// flood: the nodes' parts of the bucket add up to it. A node spends its part of the
// level last seen, which others may have taken: one burst at most, and here, where
// all of them ask all the time, next to nothing.
func TestSimHangUnderFlood(t *testing.T) {
	t.Parallel()
	for _, hang := range []int64{5_000, 60_000, 200_000, 3_000_000} {
		fleets(t, 5, simLimits[1:4], []int{3, 1, 8}, func(w *world) {
			w.after(4_000_000, func() { w.hang(hang) })
			r := w.measure(steady(10), 10_000_000)
			most, least := float64(w.policy.Burst)/25+float64(len(w.nodes)), .75
			if len(w.nodes) == 1 { // nobody else spends its part: it does not pause
				most, least = 1, .9
			}
			if r.over > most || r.share < least {
				w.errorf("a hang of %d ms: %.1f tokens too many, %.3f of exact admitted", hang/1000, r.over, r.share)
			}
		})
	}
}

// A client paces itself below its rate, and each of its requests comes to any of three nodes. Redis stands
// still at any moment. An exact bucket would refuse none. A node spends its lease, then its part of the level,
// and its part of the rate begins lease.MissingAfter after its last heartbeat: a burst of three seconds of the
// rate bridges that for two seconds. Calls that were sent before or in the hang, and are executed after it,
// keep no tokens from the client.
func TestSimAHangUnderAPacedClient(t *testing.T) {
	t.Parallel()
	const seeds = 8
	for _, c := range []struct {
		seconds float64 // the burst, in seconds of the rate
		most    float64 // of 100 requests that come in the hang so many are refused
	}{{2, 30}, {3, 1}, {4, .5}} {
		for _, load := range []float64{.8, .9} {
			for _, hang := range []int64{1_500_000, 2_000_000} {
				var rows []string
				for _, rate := range []float64{20, 50, 1_000} {
					refused := int64(0)
					for seed := range uint64(seeds) {
						simulate(t, seed, policy(t, rate, int64(c.seconds*rate)), 3, FailLocal, func(w *world) {
							w.far(400).after(20_000_000+w.random.Int64N(1_000_000), func() { w.hang(hang) })
							w.traffic(func(w *world) (int64, int64) { return int64(1e6 / rate / load), w.anyNode() }, 30_000_000)
							w.run(31_000_000)
							if refused += w.offered - w.admitted; w.over > 0 {
								t.Errorf("%.1f tokens above the promise", w.over)
							}
						})
					}
					share := 100 * float64(refused) / seeds / (load * rate * float64(hang) / 1e6)
					rows = append(rows, fmt.Sprintf("%.0f/s %.1f", rate, share))
					if share > c.most {
						t.Errorf("%.0f/s, a burst of %.0f s, %.0f %% of the rate, a hang of %d ms: %.1f %% refused", rate, c.seconds, 100*load, hang/1000, share)
					}
				}
				t.Logf("a burst of %.0f s, %.0f %% of the rate, a hang of %d ms: refused, %%: %s", c.seconds, 100*load, hang/1000, strings.Join(rows, ", "))
			}
		}
	}
}
