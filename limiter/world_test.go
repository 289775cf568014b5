//go:build !race

package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// The simulations: a fleet of real limiters in fake time, and one bucket that they share. The network
// between them delays and loses messages, nodes freeze and crash, and the clocks disagree. All times
// are microseconds. The race detector has its tests elsewhere: here it is ten times as slow.

// world is a bucket, its nodes and the network between them.
type world struct {
	t        *testing.T
	*virtual            // its mutex guards all below, too
	random   *rand.Rand // of arrivals and faults, so that they are the same each time
	network  *rand.Rand
	mode     FailureMode
	policy   Policy
	began    time.Time
	nodes    []*node

	delay    func() int64              // draws that of a message
	loses    func() bool               // draws whether a message is lost
	hung     time.Time                 // until then the server of the bucket does nothing, like a process after SIGSTOP
	executed func(c *lease.Call)       // called for each call
	decided  func(n *node, d Decision) // called for each decision

	offered, admitted, waited int64

	over   float64 // tokens above the promise, in the worst span so far
	oracle oracle
}

// node is one of the fleet, and its connection to the bucket.
type node struct {
	w            *world
	id           string
	limiter      *Limiter
	bucket       *Bucket
	machine      *boottimetest.Machine
	maxAge       int64 // how old the time may be that a request is decided at
	stopInFlight int64 // if not 0, its next call stops it for so long, with the answer on its way
	lateBeat     int64 // if not 0, it is cut off once it has sent its next heartbeat, which arrives so late
	cut          bool  // no message from it arrives
	deaf         bool  // no answer to it arrives
	noTraffic    bool  // it gets no requests
	dead         bool
	stopped      time.Time   // until then it is like a process after SIGSTOP
	answer       lease.Reply // to its last call
	run, spent   int64       // of a quota: what it calls itself in it, and what it admitted
}

// locked lets goroutines share a source of random numbers.
type locked struct {
	mu sync.Mutex
	rand.PCG
}

func (l *locked) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.PCG.Uint64()
}

// simulate has f play with a fleet of so many nodes that have counted one another.
func simulate(t *testing.T, seed uint64, p Policy, nodes int, mode FailureMode, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, virtual: newVirtual(), random: rand.New(&locked{PCG: *rand.NewPCG(seed, 23)}),
			network: rand.New(&locked{PCG: *rand.NewPCG(seed, 29)}), mode: mode, policy: p}
		w.clock = w.random.Int64N(lease.Slice)
		w.far(100)
		w.loses = func() bool { return false }
		w.executed, w.decided = func(*lease.Call) {}, func(*node, Decision) {}
		w.join(nodes)
		boottimetest.Pass(3 * time.Second)
		w.began, w.oracle = time.Now(), oracle{policy: p}
		f(w)
		for _, n := range w.nodes {
			n.kill()
		}
		boottimetest.Pass(time.Hour) // whatever waits has ended
	})
}

// fleets has f play with fleets of each size under each limit.
func fleets(t *testing.T, seed uint64, limits []simLimit, sizes []int, f func(w *world)) {
	t.Helper()
	for _, l := range limits {
		for _, nodes := range sizes {
			simulate(t, seed, l.policy(), nodes, FailLocal, f)
		}
	}
}

// errorf reports a failure of this fleet.
func (w *world) errorf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s, %d nodes: "+format, append([]any{simLimit{perSecond(w.policy), w.policy.Burst}, len(w.nodes)}, args...)...)
}

// far has calls take roundTrip, 20 % more or less.
func (w *world) far(roundTrip int64) *world {
	w.delay = func() int64 { return roundTrip*4/10 + w.network.Int64N(max(1, roundTrip/5)) }
	return w
}

// join has so many nodes join the fleet.
func (w *world) join(nodes int) {
	for range nodes {
		w.nodes = append(w.nodes, w.newNode(fmt.Sprint(len(w.nodes))))
		time.Sleep(span(w.random.Int64N(heartbeats.Microseconds() / int64(nodes)))) // they do not beat all at once
	}
}

func (w *world) newNode(id string) *node {
	n := &node{w: w, id: id, machine: boottimetest.NewMachine()}
	n.limiter = newLimiter(Options{NodeID: id, FailureMode: w.mode, Clock: n.machine.Clock}, n)
	n.bucket = n.limiter.Bucket("k", w.policy)
	return n
}

// now is the time since the world began.
func (w *world) now() int64 { return time.Since(w.began).Microseconds() }

func span(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

// after has f happen then, with w.mu held.
func (w *world) after(delay int64, f func()) {
	time.AfterFunc(span(delay), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		f()
	})
}

// run lets time pass.
func (w *world) run(until int64) { boottimetest.Pass(span(until - w.now())) }

// traffic makes requests arrive until end. The shape draws the times and the nodes.
func (w *world) traffic(s shape, end int64) {
	for w.now() <= end {
		w.mu.Lock()
		gap, i := s(w)
		if w.nodes[i].noTraffic {
			i = w.anyNode()
		}
		w.mu.Unlock()
		w.nodes[i].request()
		boottimetest.Pass(span(min(gap, end+1-w.now())))
	}
}

// lose empties the bucket's server. w.mu is held.
func (w *world) lose() { clear(w.buckets) }

// hang stops the bucket for a while. After that it executes the calls that have arrived.
func (w *world) hang(micros int64) { w.hung = time.Now().Add(span(micros)) }

// crash restarts a node. Its lease is lost.
func (w *world) crash(i int) *node {
	w.nodes[i].kill()
	w.nodes[i] = w.newNode(w.nodes[i].id)
	return w.nodes[i]
}

// shared is the bucket. w.mu is held.
func (w *world) shared() *twin { return w.bucket("k", w.policy) }

// underWay returns how many tokens are in answers on their way to the node: granted ones, and leased ones.
func (n *node) underWay() (granted, leased int64) {
	if !n.bucket.Calls() {
		return 0, 0
	}
	return n.answer.Granted, n.answer.Leased
}

// remaining returns how many requests the fleet may still admit: the tokens in the bucket,
// those in answers, and those that nodes hold. w.mu is held.
func (w *world) remaining() int64 {
	left := max(0, w.shared().levelAt(w.virtual.now())) / lease.Token
	for _, n := range w.nodes {
		granted, leased := n.underWay()
		left += granted + leased + n.limiter.Stats().LeasedHeld
	}
	return left
}

// stop freezes the node for a while. Its clock goes on, and so do its timers.
func (n *node) stop(micros int64) { n.stopped = time.Now().Add(span(micros)) }

func (n *node) kill() {
	n.dead = true
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = n.limiter.Close(ended) }()
}

// wait waits until a time that may change meanwhile, and reports whether that is not past.
func (w *world) wait(until *time.Time) (waited bool) {
	for {
		w.mu.Lock()
		left := time.Until(*until)
		w.mu.Unlock()
		if left <= 0 {
			return waited
		}
		waited = true
		time.Sleep(left)
	}
}

func (n *node) awake() (waited bool) { return n.w.wait(&n.stopped) }

// request is one request that arrives at the node. It is decided at once if it need not wait.
func (n *node) request() {
	n.w.mu.Lock()
	n.w.offered++
	waits := time.Now().Before(n.stopped) || n.bucket.Waits()
	n.w.mu.Unlock()
	if waits {
		go n.ask()
	} else {
		n.ask()
	}
}

func (n *node) ask() Decision {
	if n.awake() {
		time.Sleep(time.Microsecond) // the answers that have come meanwhile are read before
	}
	w, began := n.w, time.Now()
	d := n.limiter.Take(began.Add(-span(w.network.Int64N(n.maxAge+1))), n.bucket, nil, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.dead {
		return d
	}
	if d.Source == SourceRedis || time.Since(began) > 0 {
		w.waited++
	}
	if d.Allowed {
		w.admitted++
		w.over = max(w.over, w.oracle.admit(w.now()))
	}
	w.decided(n, d)
	return d
}

// setPolicy makes the node read another policy.
func (n *node) setPolicy(p Policy) { n.limiter.Bucket("k", p) }

// exchange sends a message to the bucket's server, which serves it, and waits for the answer. Either
// may be lost. A node that is stopped sends and reads when it goes on.
func (n *node) exchange(ctx context.Context, stop, late *int64, serve func(lost bool)) error {
	n.awake()
	w, answered := n.w, make(chan struct{})
	w.mu.Lock()
	dead, lost, way := n.dead, w.loses() || n.cut, w.delay()+*late
	if *stop > 0 {
		n.stop(*stop)
		*stop = 0
	}
	if *late > 0 {
		n.cut, *late = true, 0
	}
	w.mu.Unlock()
	switch {
	case dead:
		return errMoody
	case ctx.Err() != nil: // nothing is sent after the deadline
		return ctx.Err()
	}
	go func() {
		if lost {
			return
		}
		time.Sleep(span(way))
		w.wait(&w.hung)
		w.mu.Lock()
		lost, way := w.loses() || n.cut || n.deaf, w.delay()
		serve(lost)
		w.mu.Unlock()
		if !lost {
			time.Sleep(span(way))
			close(answered)
		}
	}()
	var err error
	select {
	case <-answered:
	case <-ctx.Done():
		err = ctx.Err()
	}
	n.awake()
	return err
}

func (n *node) masterOf(string) int { return 0 }

func (n *node) execute(ctx context.Context, calls []*call) error {
	c, w := calls[0], n.w // there is one bucket, or one quota
	switch a := c.arguments.(type) {
	case *beat:
		return n.exchange(ctx, new(int64), &n.lateBeat, func(bool) { c.answer = w.serve(c) })
	case *count:
		n.run = a.run
		w.calls.Add(1)
		return n.exchange(ctx, new(int64), new(int64), func(bool) { c.answer = w.serve(c) })
	}
	w.calls.Add(1)
	w.mu.Lock()
	n.answer = lease.Reply{}
	w.mu.Unlock()
	a := c.arguments.(*lease.Call)
	return n.exchange(ctx, &n.stopInFlight, new(int64), func(lost bool) {
		w.shared().execute(a, w.virtual.now())
		w.executed(a)
		c.answer = answerOf(&a.Reply)
		if !lost {
			n.answer = a.Reply
		}
	})
}
