package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"listedge/limiter/lease"
	"listedge/limiter/lease/leasetest"
)

// limit is what a token bucket holds a client to.
type limit struct {
	rate  float64 // tokens a second
	burst int64
}

func (l limit) String() string { return fmt.Sprintf("%g/s b%d", l.rate, l.burst) }

// bucket is an exact token bucket in virtual time.
type bucket struct {
	limit
	level float64 // tokens at the time at; below 0: a debt
	at    int64
}

func newBucket(l limit) *bucket { return &bucket{limit: l, level: float64(l.burst)} }

func (b *bucket) refill(now int64) {
	b.level = min(float64(b.burst), b.level+b.rate*float64(now-b.at)/1e6)
	b.at = now
}

func (b *bucket) take(now int64) bool {
	b.refill(now)
	if b.level < 1-1e-9 {
		return false
	}
	b.level--
	return true
}

// trial is a limit, a fleet and what happens to it.
type trial struct {
	limit
	nodes     int
	length    time.Duration
	roundTrip time.Duration // of a call, on average
	arrivals  func(*fleet)  // schedules the requests
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
	requests, admitted, waited, calls int
	exact                             int     // admitted by the exact bucket
	refused                           int     // of those, not by the design
	over                              float64 // tokens above burst + rate*t, in the worst span of time
	overBurst                         float64 // the same, in percent of the burst
	longest                           int64   // wait for a decision
}

// falselyRefused is the share of requests that the design refused and the exact bucket did not.
func (o outcome) falselyRefused() float64 { return share(o.refused, o.requests) }

// used is what the design admitted of what the exact bucket did.
func (o outcome) used() float64 { return share(o.admitted, o.exact) }

// waiting is the share of requests that waited for Redis.
func (o outcome) waiting() float64 { return share(o.waited, o.requests) }

func (o outcome) callsPerRequest() float64 { return share(o.calls, o.requests) / 100 }

// share of n in of, in percent.
func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// fleet is a trial under way, in the virtual world of the limiter's tests. All times are
// microseconds.
//
//	arrivals ─┬─> exact bucket ─> the right decision ──┐
//	          └─> node of a design ─> its decision ────┴─> outcome
//	                └─ call ═ OneWay ═> Redis ═ OneWay ═> answer
type fleet struct {
	*leasetest.World
	trial
	random *rand.Rand // of the arrivals: the same ones whatever the design
	exact  *bucket
	oracle leasetest.Oracle
	decide decider
	ended  bool
	outcome
}

// decider has a node of a design decide a request. It calls decided once: at once, or later.
type decider func(node int, decided func(allowed bool))

// simulate lets a design decide a trial's requests.
func simulate(d design, t trial) outcome {
	policy, err := lease.NewPolicy(t.rate, t.burst)
	if err != nil {
		panic(err)
	}
	f := &fleet{World: leasetest.New(nil, 5, policy, t.nodes), trial: t, random: rand.New(rand.NewPCG(3, uint64(t.nodes))), exact: newBucket(t.limit)}
	f.oracle.Policy = policy
	f.OneWay = func() int64 { return int64(float64(t.roundTrip.Microseconds()) / 2 * (.8 + .4*f.Random.Float64())) }
	f.decide = d.open(f)
	f.After(beforeFault.Microseconds(), func() {
		f.cut(true)
		f.After(t.fault.length.Microseconds(), func() { f.cut(false) })
		if t.fault.stopped {
			f.Hang(t.fault.length.Microseconds())
		}
	})
	f.After(warmUp.Microseconds(), func() { t.arrivals(f) })
	f.Run(t.length.Microseconds())
	f.ended = true
	f.Run(f.Now + time.Second.Microseconds()) // the last ones are answered
	f.calls, f.overBurst = int(f.Calls), 100*f.over/float64(t.burst)
	return f.outcome
}

func (f *fleet) cut(off bool) {
	for _, n := range f.Nodes[:f.fault.cut] {
		n.Cut = off
	}
}

// request arrives at a node.
func (f *fleet) request(node int) {
	began, allowedByExact := f.Now, f.exact.take(f.Now)
	f.requests++
	if allowedByExact {
		f.outcome.exact++
	}
	f.decide(node, func(allowed bool) {
		if waited := f.Now - began; waited > 0 {
			f.waited++
			f.longest = max(f.longest, waited)
		}
		if allowed {
			f.admitted++
			f.over = max(f.over, f.oracle.Admit(f.Now))
		} else if allowedByExact {
			f.refused++
		}
	})
}

// poisson makes requests that arrive independently of one another, at load times
// the rate, each at the node that the function chooses.
func poisson(load float64, node func(*fleet) int) func(*fleet) {
	return func(f *fleet) {
		var next func()
		next = func() {
			if f.ended {
				return
			}
			f.request(node(f))
			f.After(int64(f.random.ExpFloat64()*1e6/(load*f.rate)+.5), next)
		}
		next()
	}
}

// betweenBursts a bucket lies full, so that no node holds leases of it.
const betweenBursts = 15 * time.Second

func anyNode(f *fleet) int { return f.random.IntN(f.nodes) }
func oneNode(*fleet) int   { return 0 }

// bursts makes a whole burst of requests again and again, each time on a full
// bucket: so far apart, spread over the nodes.
func bursts(apart time.Duration) func(*fleet) {
	return func(f *fleet) {
		fill := int64(float64(f.burst) / f.rate * 1e6)
		var burst func()
		burst = func() {
			for i := range f.burst {
				f.After(i*apart.Microseconds(), func() { f.request(anyNode(f)) })
			}
			f.After(fill+betweenBursts.Microseconds(), burst)
		}
		f.After(beforeFault.Microseconds(), burst)
	}
}
