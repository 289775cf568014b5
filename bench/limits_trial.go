package main

import (
	"math/rand/v2"
	"time"
)

// trial is a limit, a fleet and what happens to it.
type trial struct {
	limit
	nodes     int
	length    time.Duration
	roundTrip time.Duration
	arrivals  func(*traffic) // schedules the requests
	fault     fault
}

// fault is what happens to a trial's Redis beforeFault after its start.
type fault struct {
	length  time.Duration // 0 = none
	cut     int           // so many nodes do not reach it
	stopped bool          // it does not answer
}

// warmUp is how long the nodes run before the first request, beforeFault before a fault.
const (
	warmUp      = time.Second
	beforeFault = 5 * time.Second
)

// outcome is what a design did in a trial.
type outcome struct {
	limit
	requests, admitted, waited, calls int
	exact                             int     // admitted by the exact bucket
	refused                           int     // of those, not by the design
	over                              float64 // tokens above burst + rate*t, in the worst span of time
	longest                           int64   // wait for a decision
}

// falselyRefused is the share of requests that the design refused and the exact bucket did not.
func (o outcome) falselyRefused() float64 { return share(o.refused, o.requests) }

// used is what the design admitted of what the exact bucket did.
func (o outcome) used() float64 { return share(o.admitted, o.exact) }

// overBurst is the over-admission as a share of the burst.
func (o outcome) overBurst() float64 { return 100 * o.over / float64(o.burst) }

// waiting is the share of requests that waited for Redis.
func (o outcome) waiting() float64 { return share(o.waited, o.requests) }

func (o outcome) callsPerRequest() float64 { return share(o.calls, o.requests) / 100 }

// share of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// simulate lets a design decide a trial's requests. The same trial has the same
// arrivals whatever the design.
func simulate(d design, t trial) outcome {
	s := &simulation{network: rand.New(rand.NewPCG(1, 2)), roundTrip: t.roundTrip.Microseconds(), jitter: .2, cut: make([]bool, t.nodes)}
	a := &traffic{s: s, outcome: outcome{limit: t.limit}, trial: t, random: rand.New(rand.NewPCG(3, uint64(t.nodes))), bucket: newBucket(t.limit)}
	a.taker = d.open(s, t)
	s.after(beforeFault.Microseconds(), func() {
		s.cutOff(t.fault.cut, t.fault.length.Microseconds())
		if t.fault.stopped {
			s.stop(t.fault.length.Microseconds())
		}
	})
	s.after(warmUp.Microseconds(), func() { t.arrivals(a) })
	s.run(t.length.Microseconds())
	a.ended = true
	s.run(s.now + time.Second.Microseconds()) // the last ones are answered
	if w, ok := a.taker.(interface{ advance(now int64) }); ok {
		w.advance(s.now)
	}
	a.calls = s.calls
	return a.outcome
}

// traffic makes the requests of a trial and compares each decision with the
// exact bucket's.
type traffic struct {
	s      *simulation
	trial  trial
	random *rand.Rand
	taker  taker
	bucket *bucket // exact
	ended  bool
	lowest float64 // the least that admitted - rate*now has been
	outcome
}

// request arrives at a node.
func (a *traffic) request(node int) {
	began, allowedByExact := a.s.now, a.bucket.take(a.s.now)
	a.requests++
	if allowedByExact {
		a.exact++
	}
	a.taker.take(node, func(now int64, allowed bool) {
		if waited := now - began; waited > 0 {
			a.waited++
			a.longest = max(a.longest, waited)
		}
		switch {
		case allowed:
			a.admit(now)
		case allowedByExact:
			a.refused++
		}
	})
}

func (a *traffic) admit(now int64) {
	due := a.trial.rate * float64(now) / 1e6
	a.lowest = min(a.lowest, float64(a.admitted)-due)
	a.admitted++
	a.over = max(a.over, float64(a.admitted)-due-a.lowest-float64(a.trial.burst))
}

// poisson makes requests that arrive independently of one another, at load times
// the rate, each at the node that the function chooses.
func poisson(load float64, node func(*traffic) int) func(*traffic) {
	return func(a *traffic) {
		var next func()
		next = func() {
			if a.ended {
				return
			}
			a.request(node(a))
			a.s.after(int64(a.random.ExpFloat64()*1e6/(load*a.trial.rate)+.5), next)
		}
		a.s.after(0, next)
	}
}

// betweenBursts a bucket lies full, so that no node holds leases of it.
const betweenBursts = 15 * time.Second

func anyNode(a *traffic) int { return a.random.IntN(a.trial.nodes) }
func oneNode(*traffic) int   { return 0 }

// bursts makes a whole burst of requests again and again, each time on a full
// bucket: so far apart, spread over the nodes.
func bursts(apart time.Duration) func(*traffic) {
	return func(a *traffic) {
		fill := int64(float64(a.trial.burst) / a.trial.rate * 1e6)
		var burst func()
		burst = func() {
			for i := range a.trial.burst {
				a.s.after(int64(i)*apart.Microseconds(), func() { a.request(anyNode(a)) })
			}
			a.s.after(fill+betweenBursts.Microseconds(), burst)
		}
		a.s.after(beforeFault.Microseconds(), burst)
	}
}
