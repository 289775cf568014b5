// Package leasetest is a fleet in virtual time: real leases on a real bucket,
// between them a network that delays and loses, and clocks that disagree. All
// times are microseconds.
package leasetest

import (
	"container/heap"
	"math/rand/v2"

	"listedge/limiter/lease"
)

const (
	Budget      = 10_000  // a request waits that long for Redis
	CallTimeout = 250_000 // a call without an answer for that long has failed
	BeatEvery   = 500_000
	SilentFor   = 1_100_000 // a node without a heartbeat for that long is missing
)

// Failer is what the world fails a test by; *testing.T is one.
type Failer interface {
	Fatalf(format string, args ...any)
}

// FailureMode is what nodes do without Redis.
type FailureMode uint8

const (
	FailLocal FailureMode = iota
	FailAllow
	FailDeny
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

// World is one bucket, its nodes and what lies between.
type World struct {
	Random *rand.Rand
	Now    int64
	t      Failer
	order  int64
	agenda agenda

	Policy lease.Policy
	Mode   FailureMode
	Bucket Bucket
	Clock  int64                    // the bucket's, ahead of Now
	OneWay func() int64             // delay of a message
	Lost   func() bool              // whether it does not arrive
	Rule   func(*lease.Call, int64) // the bucket's; nil = Bucket.Visit
	Nodes  []*Node
	Admit  func(n *Node)          // sees every admission
	Check  func(c *lease.Call)    // sees every call after it was carried out
	Asked  func(n *Node, ok bool) // sees every decision

	hung  bool     // the bucket does not answer
	inbox []func() // what has come to it since
	beats map[int64]int64

	InFlight int64 // tokens granted in answers that are on their way
	leasing  int64 // tokens leased in them

	Offered, Admitted, Calls, Waited, Fallback int64
	Broken                                     int // times that a breaker opened
}

// New makes a world of so many nodes that know one another. t may be nil.
func New(t Failer, seed uint64, p lease.Policy, nodes int) *World {
	w := &World{t: t, Random: rand.New(rand.NewPCG(seed, 23)), Policy: p, beats: map[int64]int64{}}
	w.Clock = 1_000_000_000_000_000 + w.Random.Int64N(lease.Epoch)
	w.Bucket = Full(p, w.Clock)
	w.OneWay = func() int64 { return 40 + w.Random.Int64N(60) }
	w.Lost = func() bool { return false }
	w.Admit, w.Check, w.Asked = func(*Node) {}, func(*lease.Call) {}, func(*Node, bool) {}
	for range nodes {
		w.Nodes = append(w.Nodes, w.NewNode())
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

// Hang stops the bucket for a while. What came meanwhile it does then.
func (w *World) Hang(span int64) {
	w.hung = true
	w.After(span, func() {
		w.hung = false
		inbox := w.inbox
		w.inbox = nil
		for _, arrive := range inbox {
			arrive()
		}
	})
}

// arrive has the bucket do something, when it does anything.
func (w *World) arrive(do func()) {
	if w.hung { // like a process that got SIGSTOP
		w.inbox = append(w.inbox, func() { w.arrive(do) })
		return
	}
	do()
}

// beat is the heartbeat script: it notes that a node lives, or only counts, and
// counts the nodes, and those that are missing.
func (w *World) beat(n *Node, present bool) (nodes, missing int64) {
	if present {
		w.beats[n.ID] = w.Now
	}
	for id, at := range w.beats {
		switch {
		case w.Now-at >= lease.MemberLife:
			delete(w.beats, id)
			continue
		case w.Now-at > SilentFor:
			missing++
		}
		nodes++
	}
	return nodes, missing
}

// Crash loses a node and all it holds; another takes its place.
func (w *World) Crash(i int) {
	w.Nodes[i].dead = true
	w.Nodes[i] = w.NewNode()
}

// Traffic has requests arrive until end, each on a node of the shape's choice.
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
