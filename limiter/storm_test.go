package limiter

import "testing"

// Storms: the fleet of sim_test.go through everything that can go wrong, and the
// oracle that watches it.

// outcome is what a storm came to.
type outcome struct {
	over     int   // admissions above the promise
	worst    int64 // of them, by how much: tokens
	admitted int64
	tried    hazards
}

// hazards counts what a storm was made of.
type hazards struct{ crashes, stops, steps, jitter, cuts, plans, returns, late int }

func (h *hazards) add(g hazards) {
	h.crashes += g.crashes
	h.stops += g.stops
	h.steps += g.steps
	h.jitter += g.jitter
	h.cuts += g.cuts
	h.plans += g.plans
	h.returns += g.returns
	h.late += g.late
}

// storm is one seed: any limit, any traffic, delays up to the budget and far
// beyond, lost messages, nodes that crash, stand still, run fast or slow and
// decide by old moments, plans that change and are heard of late or not, tokens
// given back, a bucket's clock that steps back (and forward, if so told), from
// any place in an epoch. Nobody decides alone (FailDeny), so the promise holds
// to what the rate brings while an answer is on its way.
type storm struct {
	seed        uint64
	rule        func(w *world) func(*call, int64) // the bucket's; nil = the one we have
	forward     int64                             // what its clock skips once, microseconds
	unforgiving bool                              // of it
}

func (s storm) run(t testing.TB) (v outcome) {
	seed, forward := s.seed, s.forward
	limit := simLimits[seed%uint64(len(simLimits))]
	p := policy(t, limit.rate, limit.burst)
	p.Version = 1
	w := newWorld(t, seed, p, 1+int(seed/5%8))
	w.mode = FailDeny
	if s.rule != nil {
		w.visit = s.rule(w)
	}
	weather := 0.0
	w.oneWay = func() int64 {
		switch {
		case w.random.Float64() >= weather:
			return 20 + w.random.Int64N(200)
		case w.random.IntN(50) == 0:
			v.tried.late++
			return w.random.Int64N(3_000_000)
		}
		return w.random.Int64N(15_000)
	}
	w.lost = func() bool { return w.random.Float64() < weather/3 }

	// The promise is kept within each plan: over what it gives, and what nodes
	// still hold, and are just being given, of the plan before.
	regime := &regimes{w: w, spare: forward > 0 && !s.unforgiving}
	regime.begin(p)
	w.admit = func(n *simNode) {
		v.admitted++
		if seed%3 == 0 && w.random.IntN(5) == 0 {
			v.tried.returns++
			regime.lends()
			w.after(w.random.Int64N(20_000), func() {
				n.do(func() {
					n.gives()
					regime.lent--
				})
			})
			return // costs nothing: one of those who did not count
		}
		if worst := regime.admit(w.now); worst > 0 {
			v.over++
			v.worst = max(v.worst, worst)
		}
	}
	w.check = func(c *call) {
		if s.rule == nil && !w.bucket.within() {
			t.Fatalf("seed %d: after %+v more than the burst: %+v", seed, c, w.bucket)
		}
		regime.follow()
	}
	plan := p
	end := min(40_000_000, int64(8_000/perSecond(p)*1e6))
	if limit.rate < 1 {
		end = 120_000_000
	}
	for _, n := range w.nodes {
		w.character(n)
	}
	w.traffic(simShapes[w.random.IntN(len(simShapes))].shape, end)
	for at := int64(0); at < end; at += end / 20 {
		w.after(at, func() {
			node := w.random.IntN(len(w.nodes))
			switch w.random.IntN(10) {
			case 0:
				weather = .3
			case 1, 2:
				weather = 0
			case 3:
				v.tried.crashes++
				w.crash(node)
				w.character(w.nodes[node])
				if w.random.IntN(2) == 0 {
					w.nodes[node].hears(plan)
				}
			case 4:
				v.tried.steps++
				w.clock -= w.random.Int64N(30_000_000)
			case 5:
				v.tried.jitter++
				w.clock -= w.random.Int64N(900_000)
			case 6:
				v.tried.stops++
				w.nodes[node].ambush = w.random.Int64N(15_000_000)
			case 8: // out of the network and out of the load balancer, and back for a flood
				v.tried.cuts++
				n := w.nodes[node]
				n.cut, n.shunned = true, true
				w.after(5_000_000+w.random.Int64N(20_000_000), func() { n.shunned = false })
				w.after(5_000_000+w.random.Int64N(25_000_000), func() { n.cut = false })
			case 7:
				if seed%2 == 0 {
					return // half of the storms keep their plan
				}
				v.tried.plans++
				rate, burst := perSecond(plan)*(.3+2*w.random.Float64()), 1+w.random.Int64N(2*p.Burst)
				if rate > 50_000 || rate < .05 {
					rate = limit.rate
				}
				version := plan.Version + 1
				plan = policy(t, rate, burst)
				plan.Version = version
				heard := plan
				for _, n := range w.nodes {
					w.after(w.random.Int64N(2_000_000), func() {
						n.do(func() {
							if heard.Version > n.p.Version || w.random.IntN(4) == 0 { // from a replica that lags
								n.hears(heard)
							}
						})
					})
				}
			}
		})
	}
	if forward > 0 {
		w.after(end/3+w.random.Int64N(end/3), func() {
			w.clock += forward
			if !s.unforgiving {
				regime.forgive(forward)
			}
		})
	}
	w.run(end)
	return v
}

// character makes a node unlike the others.
func (w *world) character(n *simNode) {
	n.pace = .99 + w.random.Float64()/50
	n.ahead += int64(float64(w.now) * (1 - n.pace))
	n.stale = []int64{0, 100_000}[w.random.IntN(2)]
}

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

func (r *regimes) begin(p Policy) {
	r.peak = r.lent
	out := r.w.bucket.held + r.w.bucket.prev
	r.version, r.o = p.Version, oracle{p: p}
	r.o.lowest = -r.w.now * p.r
	r.most = max(p.Burst, out) + r.w.granted
	if r.spare {
		r.most = max(p.Burst+r.w.p.Burst/4, out) + r.w.granted
	}
}

// follow begins anew when the bucket goes by another plan.
func (r *regimes) follow() {
	if p := r.w.bucket.policy; p.Version != r.version {
		r.begin(p)
	}
}

// admit records an admission and returns by how many tokens it is too much.
func (r *regimes) admit(now int64) int64 {
	o := &r.o
	o.lowest = min(o.lowest, o.admitted*o.p.p-now*o.p.r)
	o.admitted++
	return ceilDiv(max(0, o.admitted*o.p.p-now*o.p.r-o.lowest-(r.most+r.peak)*o.p.p-oldestGrant(o.p)*o.p.r), o.p.p)
}

// oldestGrant is how long before a request the token may have been debited that
// it is admitted by. A lease counts as held until then.
func oldestGrant(p Policy) int64 {
	if p.Burst < leastLeased {
		return mostWait
	}
	return simBudget
}

// lends: a token given back counts again from then on, even where the bucket
// would have been full without it. So the promise is as good as the requests are
// few that are under way and will turn out to cost nothing.
func (r *regimes) lends() {
	r.lent++
	r.peak = max(r.peak, r.lent)
}

// forgive lets a span count as longer by what a clock has skipped, as far as
// that fills the bucket.
func (r *regimes) forgive(step int64) {
	r.o.admitted -= min(r.o.p.Burst, step*r.o.p.r/r.o.p.p)
}

// dormant has nodes lease, then hears nothing of them until about when what they
// hold ages out in the bucket, and then all of them are asked for everything:
// the edge of every epoch is where a token could be spent twice.
func dormant(t testing.TB, seed uint64) (over int, worst int64) {
	limit := simLimits[1+seed%3]
	p := policy(t, limit.rate, limit.burst)
	w := newWorld(t, seed, p, 2+int(seed/3%3))
	w.mode = FailDeny
	regime := &regimes{w: w}
	regime.begin(p)
	w.admit = func(*simNode) {
		if tokens := regime.admit(w.now); tokens > 0 {
			over++
			worst = max(worst, tokens)
		}
	}
	for _, n := range w.nodes {
		w.character(n)
	}
	const busy, flood = 1_500_000, 1_000_000
	quiet := 5_000_000 + w.random.Int64N(17_000_000)
	w.traffic(func(w *world) (int64, int64) {
		switch {
		case w.now < busy:
			return w.gap(.9 * perSecond(p)), w.anyNode()
		case w.now < busy+quiet:
			return busy + quiet - w.now, w.anyNode()
		}
		return w.gap(6 * perSecond(p)), w.anyNode()
	}, busy+quiet+flood)
	w.after(w.random.Int64N(busy), func() {
		for _, n := range w.nodes[w.random.IntN(len(w.nodes)):] {
			switch w.random.IntN(3) {
			case 0:
				n.cut = true
			case 1:
				n.ambush = busy + quiet - w.now - w.random.Int64N(1_000_000)
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
	w.run(busy + quiet + flood)
	return over, worst
}
