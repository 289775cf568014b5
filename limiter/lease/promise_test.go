// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
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

// sticky: all requests come to one node.
func sticky(load float64) Shape {
	return func(w *World) (int64, int64) { return w.Gap(load * PerSecond(w.Policy)), 0 }
}

// simLimits are the five limits, from 5 a minute to 20,000 a second.
var simLimits = []struct {
	rate  float64
	burst int64
}{{5.0 / 60, 5}, {50, 100}, {333, 40}, {1_000, 1_000}, {20_000, 5_000}}

const stormSeeds = 150

func TestNeverOverAtSpending(t *testing.T) {
	t.Parallel()
	for seed := range uint64(stormSeeds) {
		v := storm{seed: seed}.run(t)
		if v.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, v.over, v.worst)
		}
	}
}

func TestNeverOverAtTheEdgesOfSlices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5 * stormSeeds) {
		if over, worst := dormant(t, seed); over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, over, worst)
		}
	}
}

// A clock of Redis that steps forward says that time has passed which has not, and
// nothing that Redis can know tells it otherwise. What then may be admitted too much
// is what it says the rate has brought, at most one burst, and what nodes held and
// it took for aged, at most half of one; not more.
func TestAForwardClockStepCostsAtMostWhatItSkips(t *testing.T) {
	t.Parallel()
	strictly := 0
	for seed := range uint64(stormSeeds) {
		step := int64(1+seed%40) * 1_000_000
		if over := (storm{seed: seed, forward: step}).run(t).over; over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, the step of %d s forgiven", seed, over, step/1_000_000)
		}
		if (storm{seed: seed, forward: step, unforgiving: true}).run(t).over > 0 {
			strictly++
		}
	}
	t.Logf("%d storms with a forward step; the plain promise breaks in %d of them", stormSeeds, strictly)
	if strictly == 0 {
		t.Error("no step did any harm: the test does not try it")
	}
}

// One answer at a time and no delay: below 16 tokens the fleet admits exactly whom a
// script call per request would.
func TestSmallBurstsAreAsPerRequest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		limits := []lease.Policy{policy(t, 5.0/60, 5), policy(t, 50, 15), policy(t, 3, 1), policy(t, 1_000, 10)}
		p := limits[seed%4]
		w := New(seed, p, 3)
		w.OneWay = func() int64 { return 0 }
		exact := Exact{Policy: p}
		admitted := false
		w.Decided = func(_ *Node, ok bool) { admitted = ok }
		for range 800 {
			w.Run(w.Now + w.Random.Int64N(int64(2e6/PerSecond(p))))
			want := exact.Take(w.Now + w.Clock)
			admitted = false
			w.Nodes[w.Random.IntN(3)].Request()
			w.Run(w.Now)
			if admitted != want {
				t.Fatalf("seed %d, %d us: admitted %v, per request %v", seed, w.Now, admitted, want)
			}
		}
	}
}

// On an exhausted bucket a flood costs a call per token.
func TestFloodOnFiveAMinute(t *testing.T) {
	t.Parallel()
	w := New(1, policy(t, 5.0/60, 5), 1)
	w.Traffic(func(*World) (int64, int64) { return 1_000, 0 }, 600_000_000)
	w.Run(1_000_000)
	before := w.Calls
	w.Run(600_000_000)
	if calls := w.Calls - before; calls < 49 || calls > 51 {
		t.Fatalf("%d calls in 599 s of a thousand requests a second, one per 12 s expected", calls)
	}
	if w.Admitted < 54 || w.Admitted > 55 {
		t.Fatalf("%d admitted, 5 and one per 12 s expected", w.Admitted)
	}
}

// Redis stands still, from shorter than the wait to three seconds, under a tenfold
// flood: the nodes' parts of the bucket add up to it. A node spends its part of the
// level last seen, which others may have taken: one burst at most, and here, where
// all of them ask all the time, next to nothing.
func TestHangUnderFlood(t *testing.T) {
	t.Parallel()
	for _, limit := range simLimits[1:4] {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{3, 1, 8} {
			for _, hang := range []int64{5_000, 20_000, 60_000, 200_000, 600_000, 3_000_000} {
				w := New(5, p, nodes)
				w.After(4_000_000, func() { w.Hang(hang) })
				r := w.Measure(Steady(10), 10_000_000)
				most, least := float64(p.Burst)/25+float64(nodes), .75
				if nodes == 1 { // nobody else spends its part: it does not pause
					most, least = 1, .9
				}
				if r.Over > most {
					t.Errorf("%v/s, burst %d, %d nodes, a hang of %d ms: %.1f tokens too many", limit.rate, limit.burst, nodes, hang/1000, r.Over)
				}
				if r.Share < least {
					t.Errorf("%v/s, burst %d, %d nodes, a hang of %d ms: %.3f of exact admitted", limit.rate, limit.burst, nodes, hang/1000, r.Share)
				}
			}
		}
	}
}
