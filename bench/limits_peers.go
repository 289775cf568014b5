package main

import (
	"time"

	"listedge/limiter/lease/leasetest"
)

// design is a way to hold a fleet to one limit.
type design struct {
	name string
	open func(*fleet) decider
}

// designs as their papers describe them; listedge is its own code.
var designs = []design{
	{"listedge", openListedge},
	{"a trip per request", openCentral},
	{"equal parts", openParts},
	{"reports every 100 ms", func(f *fleet) decider { return openReports(f, 100*time.Millisecond) }},
	{"reports every 1 s", func(f *fleet) decider { return openReports(f, time.Second) }},
}

// openListedge opens the product's own leases and bucket, with the nodes' heartbeats, time
// limits and breakers. A decision is for the request that arrives now, or else for the one
// that waits longest.
func openListedge(f *fleet) decider {
	waits := map[*leasetest.Node][]func(bool){}
	var arrives func(bool) // the request that arrives now; nil = none
	f.Decided = func(n *leasetest.Node, allowed bool) {
		decided := arrives
		if arrives = nil; decided == nil {
			decided, waits[n] = waits[n][0], waits[n][1:]
		}
		decided(allowed)
	}
	return func(node int, decided func(bool)) {
		n := f.Nodes[node]
		arrives = decided
		if n.Request(); arrives != nil {
			arrives, waits[n] = nil, append(waits[n], decided)
		}
	}
}

// call has Redis run do for a node, and then the node run answered. Where a
// message is lost neither may happen: the caller has a time limit of its own.
func (f *fleet) call(node int, do, answered func()) {
	n := f.Nodes[node]
	if f.Calls++; n.Cut {
		return
	}
	f.After(f.OneWay(), func() {
		f.Arrive(func() {
			if n.Cut {
				return
			}
			do()
			f.After(f.OneWay(), func() {
				if !n.Cut {
					answered()
				}
			})
		})
	})
}

const centralTimeout = 100 * time.Millisecond

// openCentral asks Redis about every request: envoyproxy/ratelimit, redis_rate,
// Stripe, Kong with sync_rate 0. Without an answer in time it admits, which is
// the default of envoy and Kong.
func openCentral(f *fleet) decider {
	shared := newBucket(f.limit)
	return func(node int, decided func(bool)) {
		allowed, done := false, false
		end := func(allowed bool) {
			if !done {
				done = true
				decided(allowed)
			}
		}
		f.call(node, func() { allowed = shared.take(f.Now) }, func() { end(allowed) })
		if f.fault.length > 0 {
			f.After(centralTimeout.Microseconds(), func() { end(true) })
		}
	}
}

// openParts gives each node rate/N and burst/N, at least one token: Kong's local
// strategy, Doorman's safe capacity.
func openParts(f *fleet) decider {
	parts := make([]*bucket, f.nodes)
	for i := range parts {
		parts[i] = newBucket(limit{f.rate / float64(f.nodes), max(1, f.burst/int64(f.nodes))})
	}
	return func(node int, decided func(bool)) { decided(parts[node].take(f.Now)) }
}

// reporter is a node with a copy of the bucket.
type reporter struct {
	copy               *bucket
	admitted, reported int  // since the start
	visited            bool // by a request since the last report
}

// openReports keeps a copy of the bucket in each node, which decides alone. Every
// period it reports what it admitted to Redis, and reads what the others did:
// Kong with a sync_rate, gubernator's GLOBAL behaviour, Databricks' batches. The
// bucket in Redis remembers a debt, and a lost report is repeated: without that
// they admit more.
func openReports(f *fleet, period time.Duration) decider {
	shared, nodes := newBucket(f.limit), make([]*reporter, f.nodes)
	for i := range nodes {
		n := &reporter{copy: newBucket(f.limit)}
		nodes[i] = n
		var report func()
		report = func() {
			f.After(period.Microseconds(), report)
			if !n.visited {
				return
			}
			n.visited = false
			admitted, level := n.admitted, 0.
			f.call(i, func() {
				shared.level -= float64(admitted - n.reported) // first: they were spent while it refilled
				shared.refill(f.Now)
				n.reported, level = admitted, shared.level
			}, func() {
				n.copy.refill(f.Now)
				n.copy.level = min(n.copy.level, level-float64(n.admitted-admitted))
			})
		}
		f.After(f.Random.Int64N(period.Microseconds()), report)
	}
	return func(node int, decided func(bool)) {
		n := nodes[node]
		n.visited = true
		allowed := n.copy.take(f.Now)
		if allowed {
			n.admitted++
		}
		decided(allowed)
	}
}
