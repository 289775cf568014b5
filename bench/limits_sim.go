package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// limit is what a token bucket holds a client to.
type limit struct {
	rate  float64 // tokens a second
	burst int
}

func (l limit) String() string { return fmt.Sprintf("%g/s b%d", l.rate, l.burst) }

// bucket is an exact token bucket, in virtual time.
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

// simulation is a fleet of nodes, a Redis and the network between them, as
// events in virtual time. All times are microseconds.
//
//	arrivals ─┬─> exact bucket ──────────────> what is right
//	          └─> node of the design under test ─> what it does
//	                └── call: oneWay ─> Redis ─ oneWay ─> answer
type simulation struct {
	now     int64
	events  events
	order   int64
	network *rand.Rand

	roundTrip int64   // of a call, on average
	jitter    float64 // share of it by which one differs, up or down
	cut       []bool  // nodes whose messages are lost
	stopped   bool    // Redis keeps what arrives and answers later
	inbox     []func()
	calls     int
}

type event struct {
	at, order int64
	do        func()
}

func (e event) before(f event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

// events is a heap, the next one first. (container/heap allocates at every step.)
type events []event

func (h *events) push(e event) {
	*h = append(*h, e)
	q := *h
	i := len(q) - 1
	for ; i > 0 && e.before(q[(i-1)/2]); i = (i - 1) / 2 {
		q[i] = q[(i-1)/2]
	}
	q[i] = e
}

func (h *events) pop() event {
	q := *h
	first, last := q[0], q[len(q)-1]
	q[len(q)-1] = event{}
	q = q[:len(q)-1]
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if child >= len(q) || !q[child].before(last) {
			break
		}
		q[i] = q[child]
		i = child
	}
	if len(q) > 0 {
		q[i] = last
	}
	*h = q
	return first
}

// after does f in so many microseconds.
func (s *simulation) after(delay int64, f func()) {
	s.order++
	s.events.push(event{s.now + max(0, delay), s.order, f})
}

// every does f again and again, so often.
func (s *simulation) every(period int64, f func()) {
	s.after(period, func() {
		f()
		s.every(period, f)
	})
}

func (s *simulation) run(until int64) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := s.events.pop()
		s.now = e.at
		e.do()
	}
	s.now = until
}

// call has Redis do something for a node. answered comes back, or nothing does:
// the caller has its own time limit.
func (s *simulation) call(node int, do, answered func()) {
	s.calls++
	s.send(node, do, answered)
}

// send is a call that is not counted among those that requests cause.
func (s *simulation) send(node int, do, answered func()) {
	if s.cut[node] {
		return
	}
	s.after(s.oneWay(), func() {
		s.arrive(func() {
			if s.cut[node] {
				return
			}
			do()
			s.after(s.oneWay(), func() {
				if !s.cut[node] {
					answered()
				}
			})
		})
	})
}

func (s *simulation) oneWay() int64 {
	return int64(float64(s.roundTrip) / 2 * (1 + s.jitter*(2*s.network.Float64()-1)))
}

// arrive does f now, or once Redis goes on.
func (s *simulation) arrive(f func()) {
	if s.stopped {
		s.inbox = append(s.inbox, f)
		return
	}
	f()
}

// stop stops Redis for a while, as SIGSTOP does. Calls wait in its sockets.
func (s *simulation) stop(length int64) {
	s.stopped = true
	s.after(length, func() {
		s.stopped = false
		waiting := s.inbox
		s.inbox = nil
		for _, f := range waiting {
			f()
		}
	})
}

// cutOff loses all messages of the first n nodes for a while.
func (s *simulation) cutOff(n int, length int64) {
	set := func(to bool) {
		for i := range n {
			s.cut[i] = to
		}
	}
	set(true)
	s.after(length, func() { set(false) })
}

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

const beforeFault = 5 * time.Second

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
	t.arrivals(a)
	s.run(t.length.Microseconds())
	a.ended = true
	s.run(s.now + time.Second.Microseconds()) // the last ones are answered
	a.calls = s.calls
	return a.outcome
}

// traffic is the requests of a trial, and the judge of what becomes of them.
type traffic struct {
	s      *simulation
	trial  trial
	random *rand.Rand
	taker  taker
	bucket *bucket // the exact one
	ended  bool
	lowest float64 // the least that admitted - rate*now has been
	outcome
}

// request arrives at a node.
func (a *traffic) request(node int) {
	began, right := a.s.now, a.bucket.take(a.s.now)
	a.requests++
	if right {
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
		case right:
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

// poisson has requests arrive independently of one another, load times the
// rate, each at any of the nodes that spread them.
func poisson(load float64, nodes func(*traffic) int) func(*traffic) {
	return func(a *traffic) {
		var next func()
		next = func() {
			if a.ended {
				return
			}
			a.request(nodes(a))
			a.s.after(int64(a.random.ExpFloat64()*1e6/(load*a.trial.rate)+.5), next)
		}
		a.s.after(0, next)
	}
}

func anyNode(a *traffic) int { return a.random.IntN(a.trial.nodes) }
func oneNode(*traffic) int   { return 0 }

// bursts has a client spend its whole burst again and again, each time on a
// full bucket: requests so far apart, spread over the nodes.
func bursts(apart time.Duration) func(*traffic) {
	return func(a *traffic) {
		fill := int64(float64(a.trial.burst) / a.trial.rate * 1e6)
		var burst func()
		burst = func() {
			for i := range a.trial.burst {
				a.s.after(int64(i)*apart.Microseconds(), func() { a.request(anyNode(a)) })
			}
			a.s.after(fill+15_000_000, burst)
		}
		a.s.after(3_000_000, burst)
	}
}
