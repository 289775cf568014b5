// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"math"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// Storms: the fleet through everything that can go wrong, and the
// oracle that watches it.

// outcome is what a storm came to.
type outcome struct {
	over  int   // admissions above the promise
	worst int64 // of them, by how much: tokens
}

// storm is one seed: any limit, any traffic, delays up to the budget and far
// beyond, lost messages, nodes that crash, stand still, run fast or slow and
// decide by old moments, plans that change and are heard of late or not, tokens
// given back, a bucket's clock that steps back (and forward, if so told), from
// any place in a slice. Nobody decides alone (FailDeny), so the promise holds
// to what the rate brings while an answer is on its way.
type storm struct {
	seed        uint64
	forward     int64 // what its clock skips once, microseconds
	unforgiving bool  // of it
}

func (s storm) run(t testing.TB) (v outcome) {
	seed, forward := s.seed, s.forward
	limit := simLimits[seed%uint64(len(simLimits))]
	p := policy(t, limit.rate, limit.burst)
	p.Version = 1
	w := New(seed, p, 1+int(seed/5%8))
	w.Denies = true
	weather := 0.0
	w.OneWay = func() int64 {
		switch {
		case w.Random.Float64() >= weather:
			return 20 + w.Random.Int64N(200)
		case w.Random.IntN(50) == 0:
			return w.Random.Int64N(3_000_000)
		}
		return w.Random.Int64N(15_000)
	}
	w.Lost = func() bool { return w.Random.Float64() < weather/3 }

	// The promise is kept within each plan: over what it gives, and what nodes
	// still hold, and are just being given, of the plan before.
	regime := &regimes{w: w, spare: forward > 0 && !s.unforgiving}
	regime.begin(p)
	w.Decided = func(n *Node, ok bool) {
		if !ok {
			return
		}
		if seed%3 == 0 && w.Random.IntN(5) == 0 {
			regime.lends()
			w.After(w.Random.Int64N(20_000), func() {
				n.Do(func() {
					n.Refund()
					regime.lent--
				})
			})
			return // costs nothing: one of those who did not count
		}
		if worst := regime.admit(w.Now); worst > 0 {
			v.over++
			v.worst = max(v.worst, worst)
		}
	}
	w.Execute = func(c *lease.Call, now int64) {
		w.Bucket.Execute(c, now)
		if !w.Bucket.Within() {
			t.Fatalf("seed %d: after %+v more than the burst: %+v", seed, c, w.Bucket)
		}
		regime.follow()
	}
	plan := p
	end := min(40_000_000, int64(8_000/PerSecond(p)*1e6))
	if limit.rate < 1 {
		end = 120_000_000
	}
	for _, n := range w.Nodes {
		character(w, n)
	}
	w.Traffic(Shapes[w.Random.IntN(len(Shapes))].Shape, end)
	for at := int64(0); at < end; at += end / 20 {
		w.After(at, func() {
			node := w.Random.IntN(len(w.Nodes))
			switch w.Random.IntN(10) {
			case 0:
				weather = .3
			case 1, 2:
				weather = 0
			case 3:
				w.Crash(node)
				character(w, w.Nodes[node])
				if w.Random.IntN(2) == 0 {
					w.Nodes[node].SetPolicy(plan)
				}
			case 4:
				w.Clock -= w.Random.Int64N(30_000_000)
			case 5:
				w.Clock -= w.Random.Int64N(900_000)
			case 6:
				w.Nodes[node].StopInFlight = w.Random.Int64N(15_000_000)
			case 8: // out of the network and out of the load balancer, and back for a flood
				n := w.Nodes[node]
				n.Cut, n.NoTraffic = true, true
				w.After(5_000_000+w.Random.Int64N(20_000_000), func() { n.NoTraffic = false })
				w.After(5_000_000+w.Random.Int64N(25_000_000), func() { n.Cut = false })
			case 7:
				if seed%2 == 0 {
					return // half of the storms keep their plan
				}
				rate, burst := PerSecond(plan)*(.3+2*w.Random.Float64()), 1+w.Random.Int64N(2*p.Burst)
				if rate > 50_000 || rate < .05 {
					rate = limit.rate
				}
				version := plan.Version + 1
				plan = policy(t, rate, burst)
				plan.Version = version
				heard := plan
				for _, n := range w.Nodes {
					w.After(w.Random.Int64N(2_000_000), func() {
						n.Do(func() {
							if heard.Version > n.Policy.Version || w.Random.IntN(4) == 0 { // from a replica that lags
								n.SetPolicy(heard)
							}
						})
					})
				}
			}
		})
	}
	if forward > 0 {
		w.After(end/3+w.Random.Int64N(end/3), func() {
			w.Clock += forward
			if !s.unforgiving {
				regime.forgive(forward)
			}
		})
	}
	w.Run(end)
	return v
}

// character makes a node unlike the others.
func character(w *World, n *Node) {
	n.ClockRate = .99 + w.Random.Float64()/50
	n.ClockOffset += int64(float64(w.Now) * (1 - n.ClockRate))
	n.MaxTimeAge = []int64{0, 100_000}[w.Random.IntN(2)]
}

// regimes is the oracle of a storm: what is admitted, plan by plan.
type regimes struct {
	w       *World
	spare   bool // what is held was forgotten once
	version int64
	o       Oracle
	most    int64 // tokens
	lent    int64 // tokens spent that will be given back
	peak    int64 // of them
}

func (r *regimes) begin(p lease.Policy) {
	r.peak = r.lent
	out := r.w.Bucket.HeldNow + r.w.Bucket.HeldBefore
	r.version, r.o = p.Version, Oracle{Policy: p}
	r.o.Start(r.w.Now)
	granted, _ := r.w.InFlight()
	r.most = max(p.Burst, out) + granted
	if r.spare {
		r.most = max(p.Burst+r.w.Policy.Burst/2, out) + granted
	}
}

// follow begins anew when the bucket goes by another plan.
func (r *regimes) follow() {
	if p := r.w.Bucket.Policy; p.Version != r.version {
		r.begin(p)
	}
}

// admit records an admission and returns by how many tokens it is too much: over
// the promise, what is held and lent, and what the rate brings while an answer that
// admits is on its way.
func (r *regimes) admit(now int64) int64 {
	p := r.o.Policy
	late := float64(oldestGrant(p)) * PerSecond(p) / 1e6
	return int64(math.Ceil(max(0, r.o.Admit(now)-float64(r.most-p.Burst+r.peak)-late-1e-6)))
}

// oldestGrant is how long before a request the token may have been debited that it
// is admitted by. A lease counts as held until then.
func oldestGrant(p lease.Policy) int64 {
	if p.Burst < 16 {
		return 125_000
	}
	return Budget
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
	r.o.Admitted -= min(r.o.Policy.Burst, int64(float64(step)/1e6*PerSecond(r.o.Policy)))
}

// dormant has nodes lease, then hears nothing of them until about when what they
// hold ages out in the bucket, and then all of them are asked for everything:
// the edge of every slice is where a token could be spent twice.
func dormant(t testing.TB, seed uint64) (over int, worst int64) {
	limit := simLimits[1+seed%3]
	p := policy(t, limit.rate, limit.burst)
	w := New(seed, p, 2+int(seed/3%3))
	w.Denies = true
	regime := &regimes{w: w}
	regime.begin(p)
	w.Decided = func(_ *Node, ok bool) {
		if !ok {
			return
		}
		if tokens := regime.admit(w.Now); tokens > 0 {
			over++
			worst = max(worst, tokens)
		}
	}
	for _, n := range w.Nodes {
		character(w, n)
	}
	const busy, flood = 1_500_000, 1_000_000
	quiet := 5_000_000 + w.Random.Int64N(17_000_000)
	w.Traffic(func(w *World) (int64, int64) {
		switch {
		case w.Now < busy:
			return w.Gap(.9 * PerSecond(p)), w.AnyNode()
		case w.Now < busy+quiet:
			return busy + quiet - w.Now, w.AnyNode()
		}
		return w.Gap(6 * PerSecond(p)), w.AnyNode()
	}, busy+quiet+flood)
	w.After(w.Random.Int64N(busy), func() {
		for _, n := range w.Nodes[w.Random.IntN(len(w.Nodes)):] {
			switch w.Random.IntN(3) {
			case 0:
				n.Cut = true
			case 1:
				n.StopInFlight = busy + quiet - w.Now - w.Random.Int64N(1_000_000)
			case 2:
				w.After(w.Random.Int64N(quiet), func() { n.Cut = true })
			}
		}
	})
	w.After(busy+w.Random.Int64N(quiet), func() {
		if w.Random.IntN(3) == 0 {
			w.Clock -= w.Random.Int64N(20_000_000)
		}
	})
	w.After(busy+quiet-w.Random.Int64N(300_000), func() {
		for _, n := range w.Nodes {
			n.Cut = w.Random.IntN(3) == 0
		}
	})
	w.Run(busy + quiet + flood)
	return over, worst
}
