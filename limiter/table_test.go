package limiter

import (
	"fmt"
	"strings"
	"testing"
)

// What the leases cost, in tables: what is not handed out, what is handed out
// too much, and how often Redis is asked.

// row is one cell's run: a fleet under a shape of traffic.
type row struct {
	under float64 // share of what one exact bucket would have admitted at the same instants, and the fleet did not
	over  int64   // tokens above the promise, the time of an answer not allowed for
	calls float64 // per request
}

func tableRow(t testing.TB, seed uint64, p Policy, nodes int, s shape) (r row) {
	w := newWorld(t, seed, p, nodes)
	exact, ideal := fullState(p, 0), int64(0)
	o := oracle{p: p}
	w.admit = func(*simNode) {
		if !o.admitWithin(w.now, 0) {
			r.over = max(r.over, ceilDiv(o.admitted*p.p-w.now*p.r-o.lowest-p.units(), p.p))
		}
	}
	w.traffic(func(w *world) (int64, int64) {
		c := call{policy: p, need: 1}
		exact.visit(&c, w.now)
		ideal += c.granted
		return s(w)
	}, simSpan)
	w.run(simSpan + 1_000_000) // the last answers
	r.under = max(0, 1-float64(w.admitted)/float64(ideal))
	r.calls = float64(w.calls) / float64(w.offered)
	return r
}

// mean of a few seeds; over is the worst.
func tableMean(t testing.TB, p Policy, nodes int, s shape) (mean row) {
	for seed := range uint64(tableSeeds) {
		r := tableRow(t, seed, p, nodes, s)
		mean.under += r.under / tableSeeds
		mean.calls += r.calls / tableSeeds
		mean.over = max(mean.over, r.over)
	}
	return mean
}

// The shapes whose bursts end about when the bucket does miss what is then out
// in leases, or has come since the bucket was last asked: see the next test.
// All others miss hardly anything.
func TestNearlyAllIsHandedOut(t *testing.T) {
	t.Parallel()
	most := func(nodes int, shape string) float64 {
		ends := shape == "bursty" || shape == "relay" || shape == "waking"
		switch {
		case !ends:
			return .024
		case nodes <= 3:
			return .033
		}
		return .055
	}
	var head strings.Builder
	for _, s := range simShapes {
		fmt.Fprintf(&head, "%16s", s.name)
	}
	t.Logf("not handed out, calls a request, tokens over\n%43s%s", "", head.String())
	for _, limit := range simLimits[1:tableLimits] {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8, 64} {
			var line strings.Builder
			for _, s := range simShapes {
				r := tableMean(t, p, nodes, s.shape)
				fmt.Fprintf(&line, " %4.1f %% %.3f %2d", 100*r.under, r.calls, r.over)
				if r.under > most(nodes, s.name) {
					t.Errorf("%v/s, burst %d, %d nodes, %s: %.1f %% not handed out", limit.rate, limit.burst, nodes, s.name, 100*r.under)
				}
				if r.over > 1 { // what the rate brings while an answer is on its way, and a part of a token
					t.Errorf("%v/s, burst %d, %d nodes, %s: %d tokens too many", limit.rate, limit.burst, nodes, s.name, r.over)
				}
			}
			t.Logf("%6.0f/s %5d, %2d nodes%s", limit.rate, limit.burst, nodes, line.String())
		}
	}
}

// A bucket and its leases get what an exact one gets. So when a burst has just
// emptied the exact bucket, what the fleet has not admitted of it is what lies
// in leases and what has come since the last visit. Each is bounded: a quarter
// of the burst, and what comes in a pause. This is the most that a burst can
// miss, and it is lost only if the bucket is full again before the next.
func TestWhatABurstMisses(t *testing.T) {
	t.Parallel()
	p := policy(t, 1_000, 1_000)
	for _, nodes := range []int{1, 3, 8, 64} {
		w := newWorld(t, 7, p, nodes)
		exact := fullState(p, 0)
		w.traffic(func(w *world) (int64, int64) {
			exact.visit(&call{policy: p, need: 1}, w.now)
			return bursty(w)
		}, 100_000_000)
		ends, leased, left := 0, int64(0), int64(0)
		for at := int64(500_000); at < 100_000_000; at += 2_500_000 {
			w.after(at-1, func() {
				probe, emptied := w.bucket, exact
				probe.refill(w.now+w.clock, leaseLife)
				if emptied.refill(w.now, 0); emptied.level > 20*p.p {
					return
				}
				out := int64(0)
				for _, n := range w.nodes {
					out += n.lease.holds(n.now())
				}
				ends, leased, left = ends+1, leased+out, left+probe.level/p.p
				if pause := pauseOf(0, denyMost, p) * p.r / p.p; out > p.Burst/4 || probe.level/p.p > pause+p.Burst/20 {
					t.Errorf("%d nodes: %d tokens in leases, %d in the bucket", nodes, out, probe.level/p.p)
				}
			})
		}
		w.run(101_000_000)
		if ends == 0 {
			t.Fatal("no burst ended with the bucket")
		}
		t.Logf("%2d nodes: of 1,500 tokens a burst that emptied the exact bucket left %d in leases and %d in the bucket (mean of %d)",
			nodes, leased/int64(ends), left/int64(ends), ends)
	}
}

// The worst for leases: everybody at one moment, for more than there is. Each
// node that is served takes it for the beginning of more, and leases what the
// others then do not get; a quarter of the burst at most.
func TestWhatAHerdMisses(t *testing.T) {
	t.Parallel()
	for _, limit := range simLimits[1:4] {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8, 64} {
			r := tableMean(t, p, nodes, herd)
			t.Logf("%6.0f/s %5d, %2d nodes: a herd misses %4.1f %%, %.3f calls a request", limit.rate, limit.burst, nodes, 100*r.under, r.calls)
			if r.under > .25 || r.over > 1 {
				t.Errorf("%+v", r)
			}
		}
	}
}

// callsPerRequest in the middle of a long run.
func callsPerRequest(t testing.TB, p Policy, nodes int, s shape) (calls, waited float64) {
	w := newWorld(t, 3, p, nodes)
	span := int64(callSpan)
	if p.Rate < 100 { // few requests: a longer span for as good a mean
		span = 60_000_000
	}
	w.traffic(s, 2_000_000+span)
	w.run(2_000_000)
	before, offered, late := w.calls, w.offered, w.waited
	w.run(2_000_000 + span)
	all := float64(w.offered - offered)
	return float64(w.calls-before) / all, float64(w.waited-late) / all
}

// sparse: so many requests a second, whatever the limit.
func sparse(perSecond float64) shape {
	return func(w *world) (int64, int64) { return w.gap(perSecond), w.anyNode() }
}

// A key that comes less than twice in the life of a lease (10 s) to a node costs
// it a call a request, as it must: nobody knows that it will come again, and what
// is leased for it would have to go back. From then on spare tokens save more
// the oftener it comes.
func TestRequestsHardlyEverAskRedis(t *testing.T) {
	t.Parallel()
	p, slow, small := policy(t, 1_000, 1_000), policy(t, 50, 100), policy(t, 50, 15)
	for _, c := range []struct {
		what  string
		p     Policy
		nodes int
		shape
		most float64
	}{
		{"1,000/s at 80 %", p, 1, steady_(.8), .014},
		{"1,000/s at 80 %", p, 3, steady_(.8), .03},
		{"1,000/s at 80 %", p, 8, steady_(.8), .075},
		{"1,000/s, a flood of ten times that", p, 1, steady_(10), .0054},
		{"1,000/s, a flood of ten times that", p, 3, steady_(10), .0054},
		{"1,000/s, a flood of ten times that", p, 8, steady_(10), .014},
		{"50/s, asked for 5 times a second", slow, 3, sparse(5), .35},
		{"50/s, asked for once a second", slow, 3, sparse(1), .65},
		{"50/s, asked for once in 2 s", slow, 3, sparse(.5), 1.05},
		{"50/s, asked for once in 10 s", slow, 3, sparse(.1), 1.05},
		{"50/s, a burst too small for leases", small, 3, sparse(5), 1.01},
	} {
		calls, waited := callsPerRequest(t, c.p, c.nodes, c.shape)
		t.Logf("%-36s %d nodes: %.4f calls a request, %.4f of the requests waited", c.what, c.nodes, calls, waited)
		if calls > c.most {
			t.Errorf("%s, %d nodes: %.4f calls a request, at most %.4f expected", c.what, c.nodes, calls, c.most)
		}
	}
}
