// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// cutOff has a part of the fleet cut off from Redis in one of several ways, from 10 s
// to 40 s.
var cutOff = map[string]func(w *World, k int){
	"cut": func(w *World, k int) {
		for _, n := range w.Nodes[:k] {
			w.After(10e6, func() { n.Cut = true })
			w.After(40e6, func() { n.Cut = false })
		}
	},
	"flapping": func(w *World, k int) {
		for at := int64(10e6); at < 40e6; at += 5e6 {
			for _, n := range w.Nodes[:k] {
				w.After(at, func() { n.Cut = true })
				w.After(at+3e6, func() { n.Cut = false })
			}
		}
	},
	"killed": func(w *World, k int) {
		for _, n := range w.Nodes[:k] {
			w.After(10e6, func() {
				n.NoTraffic = true
				n.Stop(1000e6)
			})
		}
	},
	"all hang": func(w *World, _ int) { w.After(10e6, func() { w.Hang(30e6) }) },
}

// Part of the fleet is cut off from Redis, once, again and again, or for ever: no
// more than one burst in all is admitted above the promise, and the rest goes on
// with its part of the rate, which is all of it a minute after a crash.
func TestPartOfTheFleetIsCutOff(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{1, 1}, {10, 10}, {10, 20}, {50, 100}, {300, 300}} {
		p := policy(t, limit.rate, limit.burst)
		for _, c := range []struct{ k, n int }{{2, 3}, {4, 8}, {1, 8}} {
			for how, cut := range cutOff {
				for _, load := range []float64{.8, 3} {
					w := New(5, p, c.n)
					during, after := 0, 0
					w.Decided = func(_ *Node, ok bool) {
						if ok && w.Now > 15e6 && w.Now <= 40e6 {
							during++
						} else if ok && w.Now > 80e6 {
							after++
						}
					}
					cut(w, c.k)
					r := w.Measure(Steady(load), 100e6)
					alive := float64(c.n-c.k) / float64(c.n)
					reach := alive + (1-alive)*alive // requests of a killed node come to another, which may be killed as well
					if r.Over > .2*float64(p.Burst)+1 {
						t.Errorf("%v/s burst %d, %d of %d %s, load %.1f: %.1f tokens too many", limit.rate, limit.burst, c.k, c.n, how, load, r.Over)
					}
					few := float64(during) < .85*25*limit.rate*min(load*reach, alive) || float64(after) < .9*20*limit.rate*min(1, load*reach)
					if how == "killed" && limit.burst >= int64(c.n) && few {
						t.Errorf("%v/s burst %d, %d of %d killed, load %.1f: the rest admits %d in 25 s, and %d in 20 s once the part is back",
							limit.rate, limit.burst, c.k, c.n, load, during, after)
					}
				}
			}
		}
	}
}

// A cut that lasts longer than a node counts as a member: from then on the nodes cut
// off admit their part of the rate on top, and no more.
func TestALongCutAdmitsOnlyThePartOnTop(t *testing.T) {
	t.Parallel()
	p := policy(t, 50, 100)
	w := New(5, p, 3)
	admitted := 0
	w.Decided = func(_ *Node, ok bool) {
		if ok && w.Now > 100e6 {
			admitted++
		}
	}
	w.After(10e6, func() { w.Nodes[0].Cut, w.Nodes[1].Cut = true, true })
	w.Traffic(Steady(6), 200e6)
	w.Run(200e6)
	if share := float64(admitted) / 100 / 50; share < 1.6 || share > 1.68 {
		t.Errorf("2 of 3 nodes cut off for long: %.2f of the rate, 1 + 2/3 expected", share)
	}
}

// A burst smaller than the fleet cannot be divided. While Redis is away, nodes refuse it.
func TestSmallBurstsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{1, 1}, {.2, 2}, {10, 5}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{3, 8} {
			for name, s := range map[string]Shape{"sticky": sticky(.5), "spread": Steady(.5)} {
				w := New(7, p, nodes)
				exact := Exact{Policy: p}
				span := int64(400e6 / limit.rate)
				w.After(20e6, func() { w.Hang(span) })
				fleet, ideal := int64(0), int64(0)
				w.Decided = func(_ *Node, ok bool) {
					if ok && w.Now > 20e6 {
						fleet++
					}
				}
				w.Traffic(func(w *World) (int64, int64) {
					if exact.Take(w.Now) && w.Now > 20e6 {
						ideal++
					}
					return s(w)
				}, span)
				w.Run(span)
				if fleet > ideal+1 || w.Over > 1 {
					t.Errorf("%v/s burst %d, %d nodes, %s: %d admitted, %d by an exact bucket, %.2f above the promise",
						limit.rate, limit.burst, nodes, name, fleet, ideal, w.Over)
				}
				if limit.burst < int64(nodes) && fleet > 1 {
					t.Errorf("%v/s burst %d, %d nodes: %d admitted without Redis", limit.rate, limit.burst, nodes, fleet)
				}
			}
		}
	}
}

// Nodes start, and Redis is away from the beginning or dies before they have counted
// one another: they admit no more than a burst in all above the promise.
func TestColdNodesKeepThePromise(t *testing.T) {
	t.Parallel()
	p := policy(t, 50, 100)
	for _, nodes := range []int{1, 3, 8} {
		w := New(3, p, nodes)
		for _, n := range w.Nodes {
			n.Cold, n.Cut = true, true
		}
		r := w.Measure(Steady(4), 60e6)
		t.Logf("%d nodes: %.1f over, %.2f of exact", nodes, r.Over, r.Share)
		if r.Over > 1 || r.Share < .8*float64(nodes)/8 {
			t.Errorf("%d nodes: %.1f tokens too many, %.2f of exact", nodes, r.Over, r.Share)
		}
	}
}

// What is shown as remaining may be had: at that moment, by the requests that come
// next, wherever they come. Where demand begins at other nodes that had none, a view
// of a moment ago may show a little more.
func TestWhatIsShownMayBeHad(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{.1, 100}, {10, 10}, {10, 20}, {50, 100}, {1_000, 1_000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			turn := 0
			turns := func(gap int64) Shape {
				return func(*World) (int64, int64) { turn++; return gap, int64(turn % nodes) }
			}
			for _, s := range []struct {
				name string
				Shape
				exactly bool
			}{{"in turn", turns(100_000), true}, {"in turn, fast", turns(1_000), true}, {"80 %", Steady(.8), true}, {"150 %", Steady(1.5), false},
				{"bursty", Bursty, false}, {"moving", Moving, true}, {"waking", Waking, false}} {
				w := New(9, p, nodes)
				worst, shown, over := 0.0, 0, 0
				w.Decided = func(n *Node, ok bool) {
					if !ok {
						return
					}
					more := float64(n.Lease.Status(n.Now()).Remaining - w.Remaining())
					worst, shown = max(worst, more), shown+1
					if more > 0 {
						over++
					}
				}
				w.Measure(s.Shape, max(20e6, int64(20e6/limit.rate)))
				often := float64(over) / float64(shown)
				if s.exactly && often > .001 || often > .065 {
					t.Errorf("%v/s burst %d, %d nodes, %s: up to %.0f too many shown, to %.2f %% of the requests", limit.rate, limit.burst, nodes, s.name, worst, 100*often)
				}
			}
		}
	}
}

// A lease ends at its node before it ages in the bucket.
func TestLeaseEndsBeforeItAges(t *testing.T) {
	p := policy(t, 50, 100)
	f := &lease.Fleet{Nodes: 1, Link: &lease.Link{Budget: Budget}}
	for start := int64(1); start < 2*lease.Slice; start += 999_983 {
		b, l := Full(p, start), new(lease.Lease)
		l.Init(p, start)
		for range 5 { // comes often enough to be leased for
			var c lease.Call
			l.Take(start)
			l.Begin(&c, 1, start, f, false)
			b.Execute(&c, start)
			l.Complete(&c, start, start, f)
			l.Retry(start)
		}
		ended, aged := int64(0), int64(0)
		for now := start; aged == 0; now += 10_000 {
			if ended == 0 && l.Holds(now) == 0 {
				ended = now
			}
			probe := b
			probe.Execute(&lease.Call{Policy: p}, now)
			if probe.HeldNow+probe.HeldBefore == 0 {
				aged = now
			}
		}
		if ended == 0 || aged-ended < 350_000 || aged-start < lease.Slice {
			t.Fatalf("leased at %d: ended after %d us, aged after %d", start, ended-start, aged-start)
		}
	}
}
