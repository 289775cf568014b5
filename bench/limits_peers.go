package main

import "time"

// design is a way to hold a fleet to one limit.
type design struct {
	name string
	open func(*simulation, trial) taker
}

// taker decides requests. It calls decided once for each: at once, or later.
type taker interface {
	take(node int, decided decided)
}

type decided func(now int64, allowed bool)

// designs as their papers describe them; listedge is its own code.
var designs = []design{
	{"listedge", openListedge},
	{"a trip per request", func(s *simulation, t trial) taker { return &central{s, newBucket(t.limit), t.fault.length > 0} }},
	{"GCRA (redis_rate)", func(s *simulation, t trial) taker { return &central{s, newGCRA(t.limit), t.fault.length > 0} }},
	{"equal parts", openParts},
	{"reports every 100 ms", func(s *simulation, t trial) taker { return openReports(s, t, 100*time.Millisecond) }},
	{"reports every 1 s", func(s *simulation, t trial) taker { return openReports(s, t, time.Second) }},
}

// central asks Redis about every request: envoyproxy/ratelimit, redis_rate,
// Stripe, Kong with sync_rate 0. Without an answer in time it admits, which is
// the default of envoy and Kong.
type central struct {
	s     *simulation
	rule  interface{ take(now int64) bool }
	fault bool // there may be no answer
}

const centralTimeout = 100 * time.Millisecond

func (c *central) take(node int, decided decided) {
	allowed, done := false, false
	end := func(allowed bool) {
		if !done {
			done = true
			decided(c.s.now, allowed)
		}
	}
	c.s.call(node, func() { allowed = c.rule.take(c.s.now) }, func() { end(allowed) })
	if c.fault {
		c.s.after(centralTimeout.Microseconds(), func() { end(true) })
	}
}

// gcra is the generic cell rate algorithm as redis_rate has it: instead of a
// level it keeps the time at which the bucket is full again.
type gcra struct {
	interval float64 // between tokens
	burst    float64 // the same for all of them
	full     float64
}

func newGCRA(l limit) *gcra {
	return &gcra{interval: 1e6 / l.rate, burst: 1e6 / l.rate * float64(l.burst)}
}

func (g *gcra) take(now int64) bool {
	full := max(g.full, float64(now)) + g.interval
	if float64(now) < full-g.burst-1e-3 {
		return false
	}
	g.full = full
	return true
}

// parts gives each node rate/N and burst/N, at least one token: Kong's local
// strategy, Doorman's safe capacity.
type parts struct {
	s     *simulation
	nodes []*bucket
}

func openParts(s *simulation, t trial) taker {
	p := &parts{s: s}
	for range t.nodes {
		p.nodes = append(p.nodes, newBucket(limit{t.rate / float64(t.nodes), max(1, t.burst/t.nodes)}))
	}
	return p
}

func (p *parts) take(node int, decided decided) { decided(p.s.now, p.nodes[node].take(p.s.now)) }

// reports keeps a copy of the bucket in each node, which decides alone. Every
// period it reports what it admitted to Redis, and reads what the others did:
// Kong with a sync_rate, gubernator's GLOBAL behaviour, Databricks' batches. The
// bucket in Redis remembers a debt, and a lost report is repeated: without that
// they admit more.
type reports struct {
	s      *simulation
	shared *bucket
	nodes  []*reporter
}

type reporter struct {
	copy               *bucket
	admitted, reported int  // since the start
	visited            bool // by a request since the last report
}

func openReports(s *simulation, t trial, period time.Duration) taker {
	r := &reports{s: s, shared: newBucket(t.limit)}
	for i := range t.nodes {
		n := &reporter{copy: newBucket(t.limit)}
		r.nodes = append(r.nodes, n)
		s.after(s.network.Int64N(period.Microseconds()), func() {
			s.every(period.Microseconds(), func() { r.report(i, n) })
		})
	}
	return r
}

func (r *reports) take(node int, decided decided) {
	n := r.nodes[node]
	n.visited = true
	allowed := n.copy.take(r.s.now)
	if allowed {
		n.admitted++
	}
	decided(r.s.now, allowed)
}

func (r *reports) report(node int, n *reporter) {
	if !n.visited {
		return
	}
	n.visited = false
	admitted, level := n.admitted, 0.
	r.s.call(node, func() {
		r.shared.level -= float64(admitted - n.reported) // first: they were spent while it refilled
		r.shared.refill(r.s.now)
		n.reported, level = admitted, r.shared.level
	}, func() {
		n.copy.refill(r.s.now)
		n.copy.level = min(n.copy.level, level-float64(n.admitted-admitted))
	})
}
