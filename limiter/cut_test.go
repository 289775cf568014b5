//go:build !race

package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

// cutOff has a part of the fleet cut off from Redis in one of several ways, from 10 s
// to 40 s.
var cutOff = map[string]func(w *world, k int){
	"cut": func(w *world, k int) {
		for _, n := range w.nodes[:k] {
			w.after(10e6, func() { n.cut = true })
			w.after(40e6, func() { n.cut = false })
		}
	},
	"flapping": func(w *world, k int) {
		for at := int64(10e6); at < 40e6; at += 5e6 {
			for _, n := range w.nodes[:k] {
				w.after(at, func() { n.cut = true })
				w.after(at+3e6, func() { n.cut = false })
			}
		}
	},
	"killed": func(w *world, k int) {
		for _, n := range w.nodes[:k] {
			w.after(10e6, func() {
				n.noTraffic = true
				n.kill()
			})
		}
	},
	"all hang": func(w *world, _ int) { w.after(10e6, func() { w.hang(30e6) }) },
}

// Part of the fleet is cut off from Redis, once, again and again, or for ever: no
// more than one burst in all is admitted above the promise, and the rest goes on
// with its part of the rate, which is all of it a minute after a crash.
func TestSimPartOfTheFleetIsCutOff(t *testing.T) {
	t.Parallel()
	for _, l := range []simLimit{{1, 1}, {10, 10}, {10, 20}, {50, 100}, {300, 300}} {
		for _, c := range []struct{ k, n int }{{2, 3}, {4, 8}, {1, 8}} {
			for how, cut := range cutOff {
				for _, load := range []float64{.8, 3} {
					simulate(t, 5, l.policy(), c.n, FailLocal, func(w *world) {
						var asked, admitted [3]float64 // before and after; during the cut; once the part is back
						w.decided = func(_ *node, d Decision) {
							phase := 0
							if w.now() > 15e6 && w.now() <= 40e6 {
								phase = 1
							} else if w.now() > 80e6 {
								phase = 2
							}
							if asked[phase]++; d.Allowed {
								admitted[phase]++
							}
						}
						cut(w, c.k)
						r := w.measure(steady(load), 100e6)
						what := fmt.Sprintf("%s, %d of %d %s, load %.1f", l, c.k, c.n, how, load)
						alive := float64(c.n-c.k) / float64(c.n)
						if r.over > .2*float64(l.burst)+1 {
							t.Errorf("%s: %.1f tokens too many", what, r.over)
						}
						few := admitted[1] < .85*min(asked[1], 25*l.rate*alive) || admitted[2] < .9*min(asked[2], 20*l.rate)
						if how == "killed" && l.burst >= int64(c.n) && few {
							t.Errorf("%s: the rest admits %.0f in 25 s, and %.0f in 20 s once the part is back", what, admitted[1], admitted[2])
						}
					})
				}
			}
		}
	}
}

// A cut that lasts longer than a node counts as a member: from then on the nodes cut
// off admit their part of the rate on top, and no more.
func TestSimALongCutAdmitsOnlyThePartOnTop(t *testing.T) {
	t.Parallel()
	simulate(t, 5, policy(t, 50, 100), 3, FailLocal, func(w *world) {
		admitted := w.admittedAfter(100e6)
		w.after(10e6, func() { w.nodes[0].cut, w.nodes[1].cut = true, true })
		w.traffic(steady(6), 200e6)
		if share := *admitted / 100 / 50; share < 1.6 || share > 1.68 {
			t.Errorf("2 of 3 nodes cut off for long: %.2f of the rate, 1 + 2/3 expected", share)
		}
	})
}

// A burst smaller than the fleet cannot be divided. While Redis is away, nodes refuse it.
func TestSimSmallBurstsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]shape{"sticky": sticky(.5), "spread": steady(.5)} {
		fleets(t, 7, []simLimit{{1, 1}, {.2, 2}, {10, 5}}, []int{3, 8}, func(w *world) {
			exact, end := exactly(w.policy), int64(400e6/perSecond(w.policy))
			w.after(20e6, func() { w.hang(end) })
			fleet, ideal := w.admittedAfter(20e6), 0.0
			w.traffic(func(w *world) (int64, int64) {
				if exact.take(w.now()) && w.now() > 20e6 {
					ideal++
				}
				return s(w)
			}, end)
			if *fleet > ideal+1 || w.over > 1 || *fleet > 1 && w.policy.Burst < int64(len(w.nodes)) {
				w.errorf("%s: %.0f admitted without Redis, %.0f by an exact bucket, %.2f above the promise", name, *fleet, ideal, w.over)
			}
		})
	}
}

// Nodes start, and Redis is away from the beginning or dies before they have counted
// one another: they admit no more than a burst in all above the promise.
func TestSimColdNodesKeepThePromise(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 8} {
		simulate(t, 3, policy(t, 50, 100), 0, FailLocal, func(w *world) {
			w.loses = func() bool { return true }
			w.join(nodes)
			r := w.measure(steady(4), 60e6)
			t.Logf("%d nodes: %.1f over, %.2f of exact", nodes, r.over, r.share)
			if r.over > 1 || r.share < .8*float64(nodes)/8 {
				t.Errorf("%d nodes: %.1f tokens too many, %.2f of exact", nodes, r.over, r.share)
			}
		})
	}
}

// What is shown as remaining may be had: at that moment, by the requests that come
// next, wherever they come. Where demand begins at other nodes that had none, a view
// of a moment ago may show a little more.
func TestSimWhatIsShownMayBeHad(t *testing.T) {
	t.Parallel()
	turn := 0
	turns := func(gap int64) shape {
		return func(w *world) (int64, int64) { turn++; return gap, int64(turn % len(w.nodes)) }
	}
	for _, s := range []struct {
		name string
		shape
		exactly bool
	}{{"in turn", turns(100_000), true}, {"in turn, fast", turns(1_000), true}, {"80 %", steady(.8), true}, {"150 %", steady(1.5), false},
		{"bursty", bursty, false}, {"moving", moving, true}, {"waking", waking, false}} {
		fleets(t, 9, []simLimit{{.1, 100}, {10, 10}, {10, 20}, {50, 100}, {1_000, 1_000}}, []int{1, 3, 8}, func(w *world) {
			worst, shown, over := int64(0), 0, 0
			w.decided = func(_ *node, d Decision) {
				if !d.Allowed {
					return
				}
				shown++
				// Of those that have waited together, each is shown what the next one takes.
				if more := d.Key.Remaining - w.remaining(); more > 0 && !(w.policy.Leased() && d.Source == SourceRedis) {
					worst = max(worst, more)
					over++
				}
			}
			w.measure(s.shape, max(20e6, w.policy.TimeFor(20*lease.Token)))
			often := float64(over) / float64(shown)
			if s.exactly && often > .001 || often > .065 {
				w.errorf("%s: up to %d too many shown, to %.2f %% of the requests", s.name, worst, 100*often)
			}
		})
	}
}

// alone returns a full bucket, and the lease of the only node of its fleet.
func alone(p Policy, now int64) (b twin, l *lease.Lease, f *lease.Fleet) {
	l = new(lease.Lease)
	l.Init(p, now)
	return fullTwin(p, now), l, &lease.Fleet{Nodes: 1, Link: &lease.Link{Budget: DefaultBudget.Microseconds()}}
}

// A lease ends at its node before it ages in the bucket.
func TestSimLeaseEndsBeforeItAges(t *testing.T) {
	p := policy(t, 50, 100)
	for start := int64(1); start < 2*lease.Slice; start += 999_983 {
		b, l, f := alone(p, start)
		for range 5 { // comes often enough to be leased for
			var c lease.Call
			l.Take(start)
			l.Begin(&c, 1, start, f, false)
			b.execute(&c, start)
			l.Complete(&c, start, start, f)
			l.Retry(start)
		}
		ended, aged := int64(0), int64(0)
		for now := start; aged == 0; now += 10_000 {
			if ended == 0 && l.Holds(now) == 0 {
				ended = now
			}
			probe := b
			probe.execute(&lease.Call{Policy: p}, now)
			if probe.HeldNow+probe.HeldBefore == 0 {
				aged = now
			}
		}
		if ended == 0 || aged-ended < 350_000 || aged-start < lease.Slice {
			t.Fatalf("leased at %d: ended after %d us, aged after %d", start, ended-start, aged-start)
		}
	}
}

// Whatever a node reports as spent, the bucket goes on holding what the node may still spend.
func TestSimTheBucketHoldsWhatALeaseMaySpend(t *testing.T) {
	random, p, now := rand.New(rand.NewPCG(1, 31)), policy(t, 1_000, 1_000), int64(1)
	b, l, f := alone(p, now)
	for range 2_000 {
		now += random.Int64N(lease.Slice / 8)
		for range random.Int64N(200) {
			l.Take(now)
		}
		var c lease.Call
		if l.Begin(&c, 0, now, f, false) {
			b.execute(&c, now)
			l.Complete(&c, now, now, f)
		}
		if held := b.HeldNow + b.HeldBefore; held < l.Holds(now) {
			t.Fatalf("after %+v the bucket holds %d, and the node %d", c, held, l.Holds(now))
		}
	}
}
