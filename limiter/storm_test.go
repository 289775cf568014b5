//go:build !race

package limiter_test

import (
	"math"
	"testing"

	. "listedge/limiter"
	"listedge/limiter/lease"
)

// Storms: the fleet through everything that can go wrong, and the
// oracle that watches it.

// outcome is what a storm came to.
type outcome struct {
	over  int64 // admissions above the promise
	worst int64 // of them, by how much: tokens
}

// storm is one seed: any limit, any traffic, delays up to the budget and far
// beyond, lost messages, nodes that crash, stand still, run fast or slow and
// decide by old moments, plans that change and are heard of late or not, tokens
// given back, a bucket's clock that steps back (and forward, if forward is set), from
// any place in a slice. Nobody decides alone (FailDeny), so the promise holds
// to what the rate brings while an answer is on its way.
type storm struct {
	seed    uint64
	forward int64 // what its clock skips once, microseconds
}

func (s storm) run(t *testing.T) (v outcome) {
	p := simLimits[s.seed%uint64(len(simLimits))].policy()
	p.Version = 1
	simulate(t, s.seed, p, 1+int(s.seed/5%8), FailDeny, func(w *world) { v = s.rage(w) })
	return v
}

// watch has an oracle watch the world: the promise is kept within each plan, over what it gives, and what
// nodes still hold, and are just being given, of the plan before. It returns what the oracle sees.
func (r *regimes) watch(v *outcome) {
	w := r.w
	w.pace = .99 + w.random.Float64()/50
	r.begin(w.policy)
	w.decided = func(_ *node, d Decision) {
		if d.Allowed {
			worst := r.admit()
			v.over, v.worst = v.over+min(1, worst), max(v.worst, worst)
		}
	}
}

func (s storm) rage(w *world) (v outcome) {
	seed, forward, p := s.seed, s.forward, w.policy
	weather := 0.0
	w.delay = func() int64 {
		switch {
		case w.random.Float64() >= weather:
			return 20 + w.random.Int64N(200)
		case w.random.IntN(50) == 0:
			return w.random.Int64N(3_000_000)
		}
		return w.random.Int64N(15_000)
	}
	w.loses = func() bool { return w.random.Float64() < weather/3 }
	regime := &regimes{w: w, spare: forward > 0}
	regime.watch(&v)
	counts := w.decided
	w.decided = func(n *node, d Decision) {
		if !d.Allowed || seed%3 != 0 || w.random.IntN(5) > 0 {
			counts(n, d)
			return
		}
		regime.lends() // costs nothing: one of those who did not count
		w.after(w.random.Int64N(20_000), func() {
			if !n.dead {
				n.bucket.Refund()
				regime.lent--
			}
		})
	}
	w.executed = func(c *lease.Call) {
		if !w.shared().sound() {
			w.t.Errorf("seed %d: after %+v more than the burst: %+v", seed, c, w.shared())
		}
		regime.follow()
	}
	plan := p
	end := min(40_000_000, int64(8_000/perSecond(p)*1e6))
	if perSecond(p) < 1 {
		end = 120_000_000
	}
	for _, n := range w.nodes {
		n.maxAge = anyAge(w)
	}
	for at := int64(0); at < end; at += end / 20 {
		w.after(at, func() {
			node := w.random.IntN(len(w.nodes))
			switch w.random.IntN(10) {
			case 0:
				weather = .3
			case 1, 2:
				weather = 0
			case 3:
				n := w.crash(node)
				n.maxAge = anyAge(w)
				if w.random.IntN(2) == 0 {
					n.setPolicy(plan)
				}
			case 4:
				w.clock -= w.random.Int64N(30_000_000)
			case 5:
				w.clock -= w.random.Int64N(900_000)
			case 6:
				w.nodes[node].stopInFlight = w.random.Int64N(15_000_000)
			case 8: // out of the network and out of the load balancer, and back for a flood
				n := w.nodes[node]
				n.cut, n.noTraffic = true, true
				w.after(5_000_000+w.random.Int64N(20_000_000), func() { n.noTraffic = false })
				w.after(5_000_000+w.random.Int64N(25_000_000), func() { n.cut = false })
			case 7:
				if seed%2 == 0 {
					return // half of the storms keep their plan
				}
				rate, burst := perSecond(plan)*(.3+2*w.random.Float64()), 1+w.random.Int64N(2*p.Burst)
				if rate > 50_000 || rate < .05 {
					rate = perSecond(p)
				}
				version := plan.Version + 1
				plan = simLimit{rate, burst}.policy()
				plan.Version = version
				heard := plan
				for _, n := range w.nodes {
					w.after(w.random.Int64N(2_000_000), func() {
						if heard.Version > n.bucket.Policy().Version || w.random.IntN(4) == 0 { // from a replica that lags
							n.setPolicy(heard)
						}
					})
				}
			}
		})
	}
	if forward > 0 {
		w.after(end/3+w.random.Int64N(end/3), func() {
			w.clock += forward
			regime.forgive(forward)
		})
	}
	w.traffic(shapes[w.random.IntN(len(shapes))].shape, end)
	return v
}

// anyAge is how old the time is that a node decides at.
func anyAge(w *world) int64 { return []int64{0, 100_000}[w.random.IntN(2)] }

// regimes is the oracle of a storm: what is admitted, plan by plan.
type regimes struct {
	w       *world
	spare   bool // what is held was forgotten once
	version int64
	o       oracle
	most    int64 // tokens
	lent    int64 // tokens spent that will be given back
	peak    int64 // of them
}

// now is the bucket's time, if its clock had not been set.
func (r *regimes) now() int64 { return int64(float64(r.w.now()) * r.w.pace) }

func (r *regimes) begin(p Policy) {
	r.peak = r.lent
	b, granted := r.w.shared(), int64(0)
	out := b.HeldNow + b.HeldBefore
	r.version, r.o = p.Version, oracle{policy: p}
	r.o.start(r.now())
	for _, n := range r.w.nodes {
		underWay, _ := n.underWay()
		granted += underWay
	}
	r.most = max(p.Burst, out) + granted
	if r.spare {
		r.most = max(p.Burst+r.w.policy.Burst/2, out) + granted
	}
}

// follow starts over if the policy of the bucket has changed.
func (r *regimes) follow() {
	if p := r.w.shared().Policy; p.Version != r.version {
		r.begin(p)
	}
}

// admit records an admission and returns by how many tokens it is too much: over
// the promise, what is held and lent, and what the rate brings while an answer that
// admits is on its way.
func (r *regimes) admit() int64 {
	p := r.o.policy
	late := float64(oldestGrant(p)) * r.w.pace * perSecond(p) / 1e6
	return int64(math.Ceil(max(0, r.o.admit(r.now())-float64(r.most-p.Burst+r.peak)-late-1e-6)))
}

// oldestGrant is how long before a request the token may have been debited that it
// is admitted by. A lease counts as held until then.
func oldestGrant(p Policy) int64 {
	if p.Burst < 16 {
		return 125_000
	}
	return DefaultBudget.Microseconds()
}

// lends: a token given back counts again from then on, even where the bucket would
// have been full without it. So the promise is as good as the requests are few that
// are under way and will turn out to cost nothing.
func (r *regimes) lends() {
	r.lent++
	r.peak = max(r.peak, r.lent)
}

// forgive lets a span count as longer by what a clock has skipped, as far as that
// fills the bucket.
func (r *regimes) forgive(step int64) {
	r.o.admitted -= min(r.o.policy.Burst, int64(float64(step)/1e6*perSecond(r.o.policy)))
}

// dormant has nodes lease tokens and then get no requests until about when their
// leases age out in the bucket. Then all nodes are asked for all that they have:
// the edge of every slice is where a token could be spent twice.
func dormant(t *testing.T, seed uint64) (v outcome) {
	simulate(t, seed, simLimits[1+seed%3].policy(), 2+int(seed/3%3), FailDeny, func(w *world) {
		(&regimes{w: w}).watch(&v)
		for _, n := range w.nodes {
			n.maxAge = anyAge(w)
		}
		const busy, flood = 1_500_000, 1_000_000
		quiet := 5_000_000 + w.random.Int64N(17_000_000)
		w.after(w.random.Int64N(busy), func() {
			for _, n := range w.nodes[w.random.IntN(len(w.nodes)):] {
				switch w.random.IntN(3) {
				case 0:
					n.cut = true
				case 1:
					n.stopInFlight = busy + quiet - w.now() - w.random.Int64N(1_000_000)
				case 2:
					w.after(w.random.Int64N(quiet), func() { n.cut = true })
				}
			}
		})
		w.after(busy+w.random.Int64N(quiet), func() {
			if w.random.IntN(3) == 0 {
				w.clock -= w.random.Int64N(20_000_000)
			}
		})
		w.after(busy+quiet-w.random.Int64N(300_000), func() {
			for _, n := range w.nodes {
				n.cut = w.random.IntN(3) == 0
			}
		})
		w.traffic(steady(.9), busy)
		w.run(busy + quiet)
		w.traffic(steady(6), busy+quiet+flood)
	})
	return v
}
