// Package leasetest simulates a fleet in virtual time. The leases and the arithmetic of
// the bucket are real. The network between them delays and loses messages, and the
// clocks disagree. All times are microseconds.
package leasetest

import (
	"container/heap"
	"math/rand/v2"

	"listedge/limiter/lease"
)

const (
	Budget         = 10_000  // a request waits that long for Redis
	CallTimeout    = 250_000 // a call without an answer for that long has failed
	HeartbeatEvery = 500_000
	SilentFor      = 1_100_000 // a node without a heartbeat for that long is missing
)

type event struct {
	at, order int64
	do        func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// World is one bucket, its nodes and the network between them.
type World struct {
	Random *rand.Rand
	Now    int64
	order  int64
	agenda agenda

	Policy  lease.Policy
	Denies  bool // nodes deny without Redis
	Bucket  Bucket
	Clock   int64                    // the bucket's clock is Now + Clock
	OneWay  func() int64             // draws the delay of a message
	Lost    func() bool              // draws whether a message is lost
	Execute func(*lease.Call, int64) // executes a call to the bucket
	Nodes   []*Node
	Decided func(n *Node, ok bool) // called for every decision

	hungUntil  int64           // until then the server of the bucket executes nothing, like a process after SIGSTOP
	heartbeats map[int64]int64 // by node: when its last one arrived

	Offered, Admitted, Calls, Waited int64
	Broken                           int // times that a breaker opened

	Over   float64 // tokens above the promise, in the worst span so far
	oracle Oracle
}

// Far makes a world whose calls take roundTrip, 20 % more or less.
func Far(seed uint64, p lease.Policy, nodes int, roundTrip int64) *World {
	return New(seed, p, nodes).far(roundTrip)
}

func (w *World) far(roundTrip int64) *World {
	w.OneWay = func() int64 { return roundTrip*4/10 + w.Random.Int64N(max(1, roundTrip/5)) }
	return w
}

// New makes a world of so many nodes. Each knows the number of nodes.
func New(seed uint64, p lease.Policy, nodes int) *World {
	w := &World{Random: rand.New(rand.NewPCG(seed, 23)), Policy: p, heartbeats: map[int64]int64{}, oracle: Oracle{Policy: p}}
	w.Clock = 1_000_000_000_000_000 + w.Random.Int64N(lease.Slice)
	w.Bucket = Full(p, w.Clock)
	w.OneWay = func() int64 { return 40 + w.Random.Int64N(60) }
	w.Lost = func() bool { return false }
	w.Execute = func(c *lease.Call, now int64) { w.Bucket.Execute(c, now) }
	w.Decided = func(*Node, bool) {}
	for range nodes {
		w.Nodes = append(w.Nodes, w.newNode(1+w.Random.Int64N(1<<50)))
	}
	for _, n := range w.Nodes {
		n.fleet.Nodes = int64(nodes)
	}
	return w
}

func (w *World) After(delay int64, do func()) {
	w.order++
	heap.Push(&w.agenda, event{w.Now + delay, w.order, do})
}

func (w *World) Run(until int64) {
	for len(w.agenda) > 0 && w.agenda[0].at <= until {
		e := heap.Pop(&w.agenda).(event)
		w.Now = e.at
		e.do()
	}
	w.Now = until
}

// Hang stops the bucket for a while. After that it executes the calls that have arrived.
func (w *World) Hang(span int64) { w.hungUntil = w.Now + span }

// heartbeat is the heartbeat script. It records the node's heartbeat if the node is
// present. It counts the nodes, and those that are missing.
func (w *World) heartbeat(id int64, present bool) (nodes, missing int64) {
	if present {
		w.heartbeats[id] = w.Now
	}
	for id, at := range w.heartbeats {
		switch {
		case w.Now-at >= lease.MemberLife:
			delete(w.heartbeats, id)
			continue
		case w.Now-at > SilentFor:
			missing++
		}
		nodes++
	}
	return nodes, missing
}

// Crash restarts a node. Its lease is lost.
func (w *World) Crash(i int) {
	w.Nodes[i].dead = true
	w.Nodes[i] = w.newNode(w.Nodes[i].ID)
}

// Traffic makes requests arrive until end. The shape draws the times and the nodes.
func (w *World) Traffic(s Shape, end int64) {
	var next func()
	next = func() {
		if w.Now > end {
			return
		}
		gap, node := s(w)
		if w.Nodes[node].NoTraffic {
			node = w.AnyNode()
		}
		w.Nodes[node].Request()
		w.After(gap, next)
	}
	w.After(0, next)
}

// InFlight returns how many tokens are in answers on their way: granted ones, and leased ones.
func (w *World) InFlight() (granted, leased int64) {
	for _, n := range w.Nodes {
		if n.answer != nil {
			granted, leased = granted+n.answer.Granted, leased+n.answer.Leased
		}
	}
	return granted, leased
}

// Remaining returns how many requests the fleet may still admit: the tokens in the bucket,
// those in answers, and those that nodes hold.
func (w *World) Remaining() int64 {
	granted, leased := w.InFlight()
	left := granted + leased + max(0, w.Bucket.LevelAt(w.Now+w.Clock))/lease.Token
	for _, n := range w.Nodes {
		left += n.Lease.Holds(n.Now())
	}
	return left
}
