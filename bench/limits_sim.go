package main

import (
	"fmt"
	"math/rand/v2"
)

// limit is what a token bucket holds a client to.
type limit struct {
	rate  float64 // tokens a second
	burst int
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

// simulation is a fleet of nodes, a Redis and the network between them, as
// events in virtual time. All times are microseconds.
//
//	traffic ─┬─> exact bucket ─> the right decision ──┐
//	         └─> node of a design ─> its decision ────┴─> outcome
//	               └─ call ═ oneWay ═> Redis ═ oneWay ═> answer
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

// after runs f in so many microseconds.
func (s *simulation) after(delay int64, f func()) {
	s.order++
	s.events.push(event{s.now + max(0, delay), s.order, f})
}

// every runs f once a period.
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

// call has Redis run do for a node, and then the node run answered. Where a
// message is lost neither may happen: the caller has a time limit of its own.
func (s *simulation) call(node int, do, answered func()) {
	s.calls++
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

// arrive runs f now, or once Redis goes on.
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
