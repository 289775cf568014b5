package limiter

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A fleet in virtual time: real leases on a real bucket, between them a network
// that delays and loses, and clocks that disagree. All times in microseconds.

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

const simBudget = 10_000

// world is one bucket, its nodes and what lies between.
type world struct {
	t      testing.TB
	random *rand.Rand
	now    int64
	order  int64
	agenda agenda

	p      Policy
	mode   FailureMode
	bucket state
	clock  int64              // the bucket's, ahead of now
	oneWay func() int64       // delay of a message
	lost   func() bool        // whether it arrives at all
	hung   bool               // the bucket does not answer, and takes nothing in
	visit  func(*call, int64) // the bucket's rule; nil = state.visit
	nodes  []*simNode
	admit  func(n *simNode) // sees every admission
	check  func(c *call)    // sees every call after it was carried out

	offered, admitted, calls, waited, alone int64
}

// simNode does with a lease what the dispatcher does, and its breaker.
type simNode struct {
	w        *world
	lease    *lease
	ahead    int64 // of its clock
	dead     bool
	waiting  []*waiter
	failures int
	away     bool
}

func newWorld(t testing.TB, seed uint64, p Policy, nodes int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 23)), p: p, clock: 1_000_000_000_000_000}
	w.bucket = fullState(p, w.clock)
	w.oneWay = func() int64 { return 40 + w.random.Int64N(60) }
	w.lost = func() bool { return false }
	w.admit, w.check = func(*simNode) {}, func(*call) {}
	for range nodes {
		w.nodes = append(w.nodes, w.newNode())
	}
	return w
}

func (w *world) newNode() *simNode {
	n := &simNode{w: w, ahead: w.random.Int64N(1_000_000_000)}
	n.lease = &lease{life: leaseLife, policy: w.p, demand: demand{at: n.now()}}
	n.sweep()
	return n
}

func (n *simNode) now() int64 { return n.w.now + n.ahead }

func (w *world) after(delay int64, do func()) {
	w.order++
	heap.Push(&w.agenda, event{w.now + delay, w.order, do})
}

func (w *world) run(until int64) {
	for len(w.agenda) > 0 && w.agenda[0].at <= until {
		e := heap.Pop(&w.agenda).(event)
		w.now = e.at
		e.do()
	}
	w.now = until
}

// request is one arrival.
func (n *simNode) request() {
	w := n.w
	w.offered++
	v, prefetch := n.lease.spend(n.now())
	if prefetch {
		n.want()
	}
	switch {
	case v == spent:
		n.admits()
	case v == denied:
	case n.away || n.now() < n.lease.ill.Load():
		n.decideAlone()
	default:
		r := &waiter{done: make(chan struct{}, 1)}
		switch n.lease.enter(r, w.p, n.now()) {
		case spent:
			n.admits()
		case empty:
			w.waited++
			n.await(r)
			n.want()
		}
	}
}

// await watches r until it is answered or its budget is over.
func (n *simNode) await(r *waiter) {
	n.waiting = append(n.waiting, r)
	n.w.after(simBudget, func() {
		i := slices.Index(n.waiting, r)
		if i < 0 || n.dead {
			return
		}
		n.waiting = slices.Delete(n.waiting, i, i+1)
		if n.lease.leave(r) != waiting {
			n.w.t.Fatal("an answer without a signal")
		}
		n.decideAlone()
	})
}

// wake serves those who were answered.
func (n *simNode) wake() {
	n.waiting = slices.DeleteFunc(n.waiting, func(r *waiter) bool {
		select {
		case <-r.done:
		default:
			return false
		}
		switch n.lease.leave(r) {
		case given:
			n.admits()
		case missed:
			n.decideAlone()
		}
		return true
	})
}

func (n *simNode) admits() {
	n.w.admitted++
	n.w.admit(n)
}

func (n *simNode) decideAlone() {
	ok := n.w.mode == FailAllow
	if n.w.mode == FailLocal {
		ok, _ = n.lease.alone(n.w.p, n.now(), int64(len(n.w.nodes)))
	}
	if ok {
		n.w.alone++
		n.admits()
	}
}

func (n *simNode) want() {
	if !n.away && n.lease.wanted.CompareAndSwap(false, true) {
		n.w.after(0, n.fly)
	}
}

// fly is dispatcher.fly, await and land.
func (n *simNode) fly() {
	w := n.w
	c := new(call)
	if n.dead {
		return
	}
	if n.away || !n.lease.depart(c, w.p, n.now(), 0, false) {
		n.lease.wanted.Store(false)
		n.lease.forsake()
		n.wake()
		return
	}
	w.calls++
	sent, over := n.now(), false
	end := func(again bool) {
		n.lease.wanted.Store(false)
		if again || n.lease.waits() {
			n.want()
		}
	}
	w.after(simBudget, func() {
		if over || n.dead {
			return
		}
		over = true
		if n.failures++; n.failures >= tripAfter {
			n.trip()
		}
		_, again := n.lease.lose(c, n.now(), int64(len(w.nodes)), true)
		end(again)
		if n.away {
			n.lease.forsake()
		}
		n.wake()
	})
	inVain := func() { w.after(int64(flightTimeout/time.Microsecond)-(n.now()-sent), n.lease.vain) }
	if w.lost() || w.hung {
		inVain()
		return
	}
	w.after(w.oneWay(), func() {
		answered := *c
		if w.visit != nil {
			w.visit(&answered, w.now+w.clock)
		} else {
			w.bucket.visit(&answered, w.now+w.clock)
		}
		w.check(&answered)
		if w.lost() {
			inVain()
			return
		}
		w.after(w.oneWay(), func() {
			switch {
			case n.dead:
			case over:
				n.lease.late(&answered, sent, n.now())
			default:
				over, n.failures = true, 0
				end(n.lease.land(&answered, sent, n.now(), 0))
			}
			if !n.dead {
				n.wake()
				n.books()
			}
		})
	})
}

// trip opens the breaker; probes close it.
func (n *simNode) trip() {
	n.away = true
	var probe func()
	probe = func() {
		if n.w.hung {
			n.w.after(250_000, probe)
			return
		}
		n.away, n.failures = false, 0
		n.lease.convalesce(n.now() + int64(recovery/time.Microsecond))
		n.want()
	}
	n.w.after(250_000, probe)
}

// books checks the lease's invariant.
func (n *simNode) books() {
	if n.dead {
		return
	}
	n.lease.mu.Lock()
	defer n.lease.mu.Unlock()
	n.lease.trim(n.now())
	w := n.lease.word.Load()
	if balanceOf(w)+spentOf(w) != n.lease.cur+n.lease.prev {
		n.w.t.Fatalf("balance %d and spent %d, on the books %d and %d", balanceOf(w), spentOf(w), n.lease.cur, n.lease.prev)
	}
}

func (n *simNode) sweep() {
	n.w.after(100_000, func() {
		if n.dead {
			return
		}
		n.books()
		if want, _ := n.lease.sweep(n.now()); want {
			n.want()
		}
		n.sweep()
	})
}

// crash loses a node and all it holds; another takes its place.
func (w *world) crash(i int) {
	w.nodes[i].dead = true
	w.nodes[i] = w.newNode()
}

// traffic has requests arrive until end, each on a node of the shape's choice.
func (w *world) traffic(shape shape, end int64) {
	var next func()
	next = func() {
		if w.now > end {
			return
		}
		gap, node := shape(w)
		w.nodes[node].request()
		w.after(gap, next)
	}
	w.after(0, next)
}

// shape chooses the gap to the next request and the node it comes to.
type shape func(w *world) (gap, node int64)

func (w *world) gap(perSecond float64) int64 { return int64(w.random.ExpFloat64() * 1e6 / perSecond) }
func (w *world) anyNode() int64              { return w.random.Int64N(int64(len(w.nodes))) }

func perSecond(p Policy) float64 { return float64(p.r) / float64(p.p) * 1e6 }

// steady: load times the rate, evenly over the nodes.
func steady_(load float64) shape {
	return func(w *world) (int64, int64) { return w.gap(load * perSecond(w.p)), w.anyNode() }
}

// bursty: half a second at three times the rate, then two that are nearly still.
func bursty(w *world) (int64, int64) {
	if w.now%2_500_000 < 500_000 {
		return w.gap(3 * perSecond(w.p)), w.anyNode()
	}
	return w.gap(.1 * perSecond(w.p)), w.anyNode()
}

// skewed: nine of ten requests come to one node.
func skewed(w *world) (int64, int64) {
	if w.random.IntN(10) > 0 {
		return w.gap(1.2 * perSecond(w.p)), 0
	}
	return w.gap(1.2 * perSecond(w.p)), w.anyNode()
}

// moving: the busy node is another one every three seconds.
func moving(w *world) (int64, int64) {
	return w.gap(1.2 * perSecond(w.p)), w.now / 3_000_000 % int64(len(w.nodes))
}

// slack is an oracle that allows for what the rate brings while an answer is on
// its way: a token is taken from the bucket when it answers, and spent when the
// answer arrives.
func (o *oracle) admitWithin(now, reply int64) bool {
	o.lowest = min(o.lowest, o.admitted*o.p.p-now*o.p.r)
	o.admitted++
	return o.admitted*o.p.p-now*o.p.r-o.lowest <= o.p.units()+reply*o.p.r
}
