package main

import (
	"slices"

	"listedge/limiter/lease"
	"listedge/limiter/lease/leasetest"
)

// listedge is the product's own leases and bucket, in the virtual fleet of its
// tests: that has the nodes' heartbeats, time limits and breakers, too.
type listedge struct {
	s     *simulation
	world *leasetest.World
	waits map[*leasetest.Node][]decided // the oldest first
	asks  decided                       // of the request that arrives now; nil = none
}

func openListedge(s *simulation, t trial) taker {
	policy, err := lease.NewPolicy(t.rate, int64(t.burst))
	if err != nil {
		panic(err)
	}
	l := &listedge{s: s, world: leasetest.New(nil, 5, policy, t.nodes), waits: map[*leasetest.Node][]decided{}}
	l.world.OneWay = s.oneWay
	l.world.Decided = l.decided
	l.world.After(beforeFault.Microseconds(), func() {
		l.cut(t.fault.cut, true)
		l.world.After(t.fault.length.Microseconds(), func() { l.cut(t.fault.cut, false) })
		if t.fault.stopped {
			l.world.Hang(t.fault.length.Microseconds())
		}
	})
	return l
}

func (l *listedge) cut(nodes int, off bool) {
	for _, n := range l.world.Nodes[:nodes] {
		n.Cut = off
	}
}

func (l *listedge) take(node int, d decided) {
	l.advance(l.s.now)
	n := l.world.Nodes[node]
	l.asks = d
	n.Request()
	if l.asks != nil {
		l.waits[n] = append(l.waits[n], d)
		l.asks = nil
	}
}

// decided passes a decision on: of the request that arrives now, or else of the
// one that waits longest.
func (l *listedge) decided(n *leasetest.Node, allowed bool) {
	d := l.asks
	if d != nil {
		l.asks = nil
	} else {
		d = l.waits[n][0]
		l.waits[n] = slices.Delete(l.waits[n], 0, 1)
	}
	d(l.world.Now, allowed)
}

// advance brings the world to now.
func (l *listedge) advance(now int64) {
	l.world.Run(now)
	l.s.calls = int(l.world.Calls)
}
