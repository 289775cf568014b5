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
	hung   bool               // the bucket does not answer
	inbox  []func()           // what has come to it since
	visit  func(*call, int64) // the bucket's rule; nil = state.visit
	nodes  []*simNode
	admit  func(n *simNode) // sees every admission
	check  func(c *call)    // sees every call after it was carried out

	fleet   int64 // how many nodes the nodes reckon with; 0 = as many as there are
	granted int64 // tokens in answers that are on their way

	offered, admitted, calls, waited, alone int64
	broken                                  int // times that a breaker opened
}

// simNode does with a lease what the dispatcher does, and its breaker.
type simNode struct {
	w        *world
	p        Policy // as far as it has heard
	lease    *lease
	ahead    int64   // of its clock
	pace     float64 // of it
	stale    int64   // how old a moment it decides by may be
	dead     bool
	ambush   int64    // it is to be stopped for so long as soon as an answer is on its way
	stopped  bool     // like a process that got SIGSTOP
	cut      bool     // nothing it sends arrives
	shunned  bool     // no requests come to it
	backlog  []func() // what it has missed
	waiting  []*waiter
	link     *roundTrip
	failures int
	away     bool
}

func newWorld(t testing.TB, seed uint64, p Policy, nodes int) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 23)), p: p}
	w.clock = 1_000_000_000_000_000 + w.random.Int64N(leaseLife)
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
	n := &simNode{w: w, p: w.p, ahead: w.random.Int64N(1_000_000_000), pace: 1, link: &roundTrip{budget: simBudget}}
	n.lease = &lease{life: leaseLife, link: n.link, policy: n.p, demand: demand{at: n.now()}}
	n.sweep()
	return n
}

func (n *simNode) now() int64 { return int64(float64(n.w.now)*n.pace) + n.ahead }

// do is what happens in the node: later, where it is stopped, and never, where it is dead.
func (n *simNode) do(f func()) {
	switch {
	case n.dead:
	case n.stopped:
		n.backlog = append(n.backlog, f)
	default:
		f()
	}
}

// stop freezes the node for a while. Its clock goes on.
func (n *simNode) stop(span int64) {
	n.stopped = true
	n.w.after(span, func() {
		n.stopped = false
		missed := n.backlog
		n.backlog = nil
		for _, f := range missed {
			n.do(f)
		}
	})
}

// hears of another policy.
func (n *simNode) hears(p Policy) {
	n.p = p
	n.lease.shut()
	n.want()
}

func (n *simNode) nodes() int64 {
	if n.w.fleet > 0 {
		return n.w.fleet
	}
	return int64(len(n.w.nodes))
}

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
	n.w.offered++
	n.do(n.decide)
}

func (n *simNode) decide() {
	moment := n.now()
	if n.stale > 0 {
		moment -= n.w.random.Int64N(n.stale)
	}
	v, prefetch := n.lease.spend(moment)
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
		switch v, queued := n.lease.enter(r, n.p, n.now()); {
		case v == spent:
			n.admits()
		case queued:
			n.w.waited++
			n.await(r)
			n.want()
		case v == empty:
			n.decideAlone()
		}
	}
}

// await watches r until it is answered or its wait is over.
func (n *simNode) await(r *waiter) {
	n.waiting = append(n.waiting, r)
	n.w.after(n.link.wait(), func() {
		n.do(func() {
			i := slices.Index(n.waiting, r)
			if i < 0 {
				return
			}
			n.waiting = slices.Delete(n.waiting, i, i+1)
			switch n.lease.leave(r) {
			case given:
				n.admits() // answered while the node stood still
			case waiting, missed:
				n.decideAlone()
			}
		})
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

// gives a token back, as a request does that turned out to cost nothing.
func (n *simNode) gives() {
	if travels, urgent := n.lease.refund(n.now(), false); travels && urgent {
		n.want()
	}
}

func (n *simNode) decideAlone() {
	ok := n.w.mode == FailAllow
	if n.w.mode == FailLocal {
		ok, _ = n.lease.alone(n.p, n.now(), n.nodes())
	}
	if ok {
		n.w.alone++
		n.admits()
	}
}

func (n *simNode) want() {
	if !n.away && n.lease.wanted.CompareAndSwap(false, true) {
		n.w.after(0, func() { n.do(n.fly) })
	}
}

// fly is dispatcher.fly, await and land.
func (n *simNode) fly() {
	w := n.w
	c := new(call)
	if n.away || !n.lease.depart(c, n.p, n.now(), n.nodes(), 0, false) {
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
	w.after(int64(flightTimeout/time.Microsecond), func() {
		n.do(func() {
			if over {
				return
			}
			over = true
			if n.failures++; n.failures >= tripAfter {
				n.trip()
			}
			_, again := n.lease.lose(c, n.now(), n.nodes())
			end(again)
			if n.away {
				n.lease.forsake()
			}
			n.wake()
		})
	})
	if n.ambush > 0 {
		n.stop(n.ambush)
		n.ambush = 0
	}
	if w.lost() || n.cut {
		return
	}
	var arrive func()
	arrive = func() {
		if w.hung { // like a process that got SIGSTOP
			w.inbox = append(w.inbox, arrive)
			return
		}
		answered := *c
		if w.visit != nil {
			w.visit(&answered, w.now+w.clock)
		} else {
			w.bucket.visit(&answered, w.now+w.clock)
		}
		w.check(&answered)
		back := w.oneWay()
		if w.lost() || n.cut {
			return
		}
		if n.now()-sent+back > int64(flightTimeout/time.Microsecond) {
			return // nobody waits for it any more: see the timeout
		}
		w.granted += answered.granted
		w.after(back, func() {
			n.do(func() {
				if over {
					return
				}
				over, n.failures = true, 0
				n.link.note(n.now() - sent)
				end(n.lease.land(&answered, sent, n.now(), 0))
				n.wake()
				n.books()
			})
			w.granted -= answered.granted
		})
	}
	w.after(w.oneWay(), arrive)
}

// hang stops the bucket for a while. What came meanwhile it does then.
func (w *world) hang(span int64) {
	w.hung = true
	w.after(span, func() {
		w.hung = false
		inbox := w.inbox
		w.inbox = nil
		for _, arrive := range inbox {
			arrive()
		}
	})
}

// trip opens the breaker; probes close it.
func (n *simNode) trip() {
	n.w.broken++
	n.away = true
	var probe func()
	probe = func() {
		if n.w.hung || n.cut {
			n.w.after(100_000+n.w.random.Int64N(150_000), func() { n.do(probe) }) // each at its own time
			return
		}
		n.away, n.failures = false, 0
		n.lease.convalesce(n.now() + int64(recovery/time.Microsecond))
		n.want()
	}
	n.w.after(100_000+n.w.random.Int64N(150_000), func() { n.do(probe) }) // each at its own time
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
		n.do(func() {
			n.books()
			if want, _ := n.lease.sweep(n.now()); want {
				n.want()
			}
		})
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
		if w.nodes[node].shunned {
			node = w.anyNode()
		}
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

// ramp: from next to nothing to three times the rate, in ten seconds.
func ramp(w *world) (int64, int64) {
	return w.gap((.05 + 3*float64(w.now%10_000_000)/10_000_000) * perSecond(w.p)), w.anyNode()
}

// relay: half a second at nearly twice the rate on one node, half a second of
// peace, and then on the next.
func relay(w *world) (int64, int64) {
	node := w.now / 1_000_000 % int64(len(w.nodes))
	if w.now%1_000_000 < 500_000 {
		return w.gap(1.9 * perSecond(w.p)), node
	}
	return w.gap(.1 * perSecond(w.p)), node
}

// waking: five seconds of hardly anything, and one at ten times the rate.
func waking(w *world) (int64, int64) {
	if w.now%6_000_000 < 5_000_000 {
		return w.gap(.02 * perSecond(w.p)), w.anyNode()
	}
	return w.gap(10 * perSecond(w.p)), w.anyNode()
}

// herd: at one moment, every other fill of the bucket, half as many again as it holds.
func herd(w *world) (int64, int64) {
	every := 2 * w.p.units() / w.p.r
	if w.offered%(w.p.Burst*3/2) != 0 {
		return 0, w.anyNode()
	}
	return every - w.now%every, w.anyNode()
}

// simShapes are the traffic of the tables.
var simShapes = []struct {
	name string
	shape
}{{"80 %", steady_(.8)}, {"100 %", steady_(1)}, {"150 %", steady_(1.5)}, {"bursty", bursty}, {"skewed", skewed},
	{"moving", moving}, {"ramp", ramp}, {"relay", relay}, {"waking", waking}, {"flood", steady_(10)}}
