package limiter

import (
	"fmt"
	"testing"
	"time"
)

// simLimits are the five limits, from 5 a minute to 20,000 a second.
var simLimits = []struct {
	rate  float64
	burst int64
}{{5.0 / 60, 5}, {50, 100}, {333, 40}, {1_000, 1_000}, {20_000, 5_000}}

func TestNeverOverAtSpending(t *testing.T) {
	t.Parallel()
	var all hazards
	admitted := int64(0)
	for seed := range uint64(stormSeeds) {
		v := storm{seed: seed}.run(t)
		if v.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, v.over, v.worst)
		}
		all.add(v.tried)
		admitted += v.admitted
	}
	t.Logf("%d storms, %d admissions, none too many: %+v", stormSeeds, admitted, all)
}

func TestNeverOverAtTheEdgesOfEpochs(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5 * stormSeeds) {
		if over, worst := dormant(t, seed); over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", seed, over, worst)
		}
	}
}

// A clock of Redis that steps forward says that time has passed which has not,
// and nothing that Redis can know tells it otherwise. What then may be admitted
// too much is what it says the rate has brought, at most one burst, and what
// nodes held and it took for aged, at most a quarter of one; not more.
func TestAForwardClockStepCostsAtMostWhatItSkips(t *testing.T) {
	t.Parallel()
	forgiven, strictly := 0, 0
	for seed := range uint64(stormSeeds) {
		step := int64(1+seed%40) * 1_000_000
		if over := (storm{seed: seed, forward: step}).run(t).over; over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, the step of %d s forgiven", seed, over, step/1_000_000)
		}
		forgiven++
		if (storm{seed: seed, forward: step, unforgiving: true}).run(t).over > 0 {
			strictly++
		}
	}
	t.Logf("%d storms with a forward step; the plain promise breaks in %d of them", forgiven, strictly)
	if strictly == 0 {
		t.Error("no step did any harm: the test does not try it")
	}
}

// The same storms over a bucket that does not count what is held: this is what
// the oracle is for.
func TestOracleSeesABrokenPromise(t *testing.T) {
	t.Parallel()
	caught := 0
	for seed := range uint64(20) {
		caught += storm{seed: seed, rule: func(w *world) func(*call, int64) {
			return func(c *call, now int64) {
				w.bucket.visit(c, now)
				w.bucket.held, w.bucket.prev = 0, 0
			}
		}}.run(t).over
	}
	if caught == 0 {
		t.Fatal("leases off the books, and nobody noticed")
	}
	t.Logf("%d admissions too many in 20 storms", caught)
}

// One Redis answer at a time and no delay: below 16 tokens the leased limiter
// admits exactly whom a script call per request would.
func TestSmallBurstsAreAsPerRequest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(simSeeds) {
		limits := []Policy{policy(t, 5.0/60, 5), policy(t, 50, 15), policy(t, 3, 1), policy(t, 1_000, 10)}
		p := limits[seed%4]
		w := newWorld(t, seed, p, 3)
		w.oneWay = func() int64 { return 0 }
		reference := fullState(p, w.clock)
		leased := false
		w.admit = func(*simNode) { leased = true }
		for range 800 {
			w.run(w.now + w.random.Int64N(2*p.p/p.r))
			want := call{policy: p, life: leaseLife, need: 1}
			reference.visit(&want, w.now+w.clock)
			leased = false
			w.nodes[w.random.IntN(3)].request()
			w.run(w.now)
			if leased != (want.granted == 1) {
				t.Fatalf("seed %d, %d us: leased %v, per request %v", seed, w.now, leased, want.granted == 1)
			}
		}
	}
}

// fiveAMinute: on an exhausted bucket a flood costs a call per token.
func TestFloodOnFiveAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, policy(t, 5.0/60, 5), 1)
	w.traffic(func(*world) (int64, int64) { return 1_000, 0 }, 600_000_000)
	w.run(1_000_000)
	before := w.calls
	w.run(600_000_000)
	if calls := w.calls - before; calls < 49 || calls > 51 {
		t.Fatalf("%d calls in 599 s of a thousand requests a second, one per 12 s expected", calls)
	}
	if w.admitted < 54 || w.admitted > 55 {
		t.Fatalf("%d admitted, 5 and one per 12 s expected", w.admitted)
	}
}

// Redis stands still, from shorter than the budget to three seconds, under a
// tenfold flood: the nodes' parts of the bucket add up to it, and what they
// spent is told before anybody takes what has come meanwhile.
func TestHangUnderFlood(t *testing.T) {
	t.Parallel()
	for _, limit := range simLimits[1:4] {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{3, 1, 8}[:hangFleets] {
			line := ""
			for _, hang := range []int64{5_000, 20_000, 60_000, 200_000, 600_000, 3_000_000} {
				w := newWorld(t, 5, p, nodes)
				w.traffic(steady_(10), 10_000_000)
				o, worst := oracle{p: p}, int64(0)
				w.admit = func(*simNode) {
					if !o.admitWithin(w.now, simBudget) {
						worst = max(worst, o.admitted*p.p-w.now*p.r-o.lowest-p.units())
					}
				}
				w.after(4_000_000, func() { w.hang(hang) })
				w.run(10_000_000)
				line += fmt.Sprintf("%8d ms %3d (%4d)", hang/1000, ceilDiv(worst, p.p), w.alone)
				most := p.Burst / 25
				if hang < int64(flightTimeout/time.Microsecond) { // no breaker opens: nobody waits for what the others owe
					most = p.Burst / 10
				}
				if worst > (most+int64(nodes))*p.p {
					t.Errorf("%v/s, burst %d, %d nodes, a hang of %d ms: %d tokens too many", limit.rate, limit.burst, nodes, hang/1000, worst/p.p)
				}
				if due := float64(p.Burst) + 10*perSecond(p); float64(w.admitted) < .9*due {
					t.Errorf("%v/s, burst %d, %d nodes, a hang of %d ms: %d admitted in 10 s of flood, %.0f due", limit.rate, limit.burst, nodes, hang/1000, w.admitted, due)
				}
			}
			t.Logf("%6.0f/s %5d, %d nodes: too many (admitted alone) %s", limit.rate, limit.burst, nodes, line)
		}
	}
}
