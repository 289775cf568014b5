package limiter

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	sweepEvery = 100 * time.Millisecond // leases are looked at, and Redis is probed, as often
	atOnce     = 32                     // buckets in a pipeline: it takes a millisecond of Redis

	// recovery is how long after Redis' return every node of the fleet has
	// found it, and has sent what it owes.
	recovery = flightTimeout + probeEvery + sweepEvery
)

// dispatcher is the only way to one Redis node: it owns the connections, the
// breaker and the waiting. Buckets that want something at a moment travel
// in one pipeline; what comes meanwhile takes the next.
//
//	want ──> queue ──> depart ══ store.visit ══> land, or lose
type dispatcher struct {
	l       *Limiter
	store   store
	address string                                                     // of the node, in a Cluster
	route   func(ctx context.Context, key string) (*dispatcher, error) // a Cluster's: finds the node; it has no store

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	away    atomic.Bool // from when the breaker opens until Redis' return is noticed: nobody waits for this node
	retired atomic.Bool // the Cluster has no such node any more

	mu     sync.Mutex // guards all below
	queue  []*Bucket
	active map[*Bucket]struct{} // that hold or owe something
	flying int                  // pipelines under way

	wake    chan struct{}
	stop    chan struct{}
	ended   chan struct{}
	flights sync.WaitGroup
	silence atomic.Int64 // since when an answer is waited for and none has come; MaxInt64 = none is; mu guards writes

	// The dispatcher's goroutine's own.
	probed   time.Time
	probing  atomic.Bool
	departed time.Time // the last pipeline did
}

func (l *Limiter) newDispatcher(s store) *dispatcher {
	d := &dispatcher{l: l, store: s, active: make(map[*Bucket]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	d.silence.Store(math.MaxInt64)
	d.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout: probeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= tripAfter || l.now()-d.silence.Load() >= int64(flightTimeout/time.Microsecond)
		},
		// Runs under the breaker's lock: nothing here may wait.
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen && !d.away.Swap(true) {
				l.outage.turn(true, l.now())
				d.nudge()
			}
		},
	})
	return d
}

// want queues buckets, for one pipeline. Their leases' wanted flags are set, and
// the caller set them.
func (d *dispatcher) want(buckets ...*Bucket) {
	d.mu.Lock()
	d.queue = append(d.queue, buckets...)
	for _, b := range buckets {
		d.list(b)
	}
	d.mu.Unlock()
	d.nudge()
}

// nudge wakes the dispatcher, if it sleeps.
func (d *dispatcher) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// watch has the bucket looked at by the sweeps.
func (d *dispatcher) watch(b *Bucket) {
	if !b.listed.Load() {
		d.mu.Lock()
		first := len(d.active) == 0
		d.list(b)
		d.mu.Unlock()
		if first {
			d.nudge() // the sweeps may have ceased
		}
	}
}

func (d *dispatcher) list(b *Bucket) {
	if d.route == nil && !b.listed.Swap(true) {
		d.active[b] = struct{}{}
	}
}

// watched are the buckets that hold or owe something.
func (d *dispatcher) watched() []*Bucket {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*Bucket, 0, len(d.active))
	for b := range d.active {
		all = append(all, b)
	}
	return all
}

// quiet says whether there is nothing to sweep and nothing to probe: then a
// dispatcher sleeps until it is woken.
func (d *dispatcher) quiet() bool {
	if d.failing() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.active)+len(d.queue) == 0
}

// failing says whether Redis has not answered since it last failed.
func (d *dispatcher) failing() bool {
	return d.away.Load() || d.breaker.Counts().ConsecutiveFailures > 0
}

// run is the dispatcher's life.
func (d *dispatcher) run() {
	defer close(d.ended)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	asleep := false
	for {
		if quiet := d.quiet(); quiet != asleep {
			if asleep = quiet; asleep {
				tick.Stop()
			} else {
				tick.Reset(sweepEvery)
			}
		}
		select {
		case <-d.wake:
		case <-tick.C:
			if d.failing() {
				d.probe() // a single bucket would take long to find out
			}
			d.noticeReturn()
			d.sweep()
			if d.retired.Load() {
				d.l.outage.turn(false, d.l.now())
				d.leave()
				return
			}
		case <-d.stop:
			d.leave()
			return
		}
		for d.mayDepart() && d.next() {
		}
	}
}

// silent reports whether Redis has not answered for longer than a request waits.
func (d *dispatcher) silent(now int64) bool {
	return now-d.silence.Load() >= d.l.link.wait()
}

// mayDepart reports whether what is queued should be sent now: else it goes when
// an answer comes, or has the dispatcher woken when it should.
func (d *dispatcher) mayDepart() bool {
	d.mu.Lock()
	flying, queued := d.flying, len(d.queue)
	d.mu.Unlock()
	switch {
	case flying == 0 || d.route != nil || d.away.Load():
		return true
	case flying >= mostFlights:
		return false
	}
	wait := gatherFor - time.Since(d.departed)
	if queued >= atOnce || wait <= 0 {
		return true
	}
	if queued > 0 {
		time.AfterFunc(wait, d.nudge)
	}
	return false
}

// noticeReturn ends an outage that a probe has found to be over. The buckets
// that were decided alone convalesce first, and then somebody is let near Redis:
// it does not know yet what the other nodes owe it.
func (d *dispatcher) noticeReturn() {
	if !d.away.Load() || d.breaker.State() != gobreaker.StateClosed {
		return
	}
	until := d.l.now() + int64(recovery/time.Microsecond)
	for _, b := range d.watched() {
		b.lease.convalesce(until)
	}
	d.away.Store(false)
	d.l.outage.turn(false, d.l.now())
}

// next sends off what is queued and reports whether there was anything.
func (d *dispatcher) next() bool {
	d.mu.Lock()
	n := min(len(d.queue), atOnce)
	batch := slices.Clone(d.queue[:n])
	rest := copy(d.queue, d.queue[n:])
	clear(d.queue[rest:])
	d.queue = d.queue[:rest]
	d.mu.Unlock()
	if n == 0 {
		return false
	}
	d.fly(batch, false)
	return true
}

// leave ends the dispatcher: what waits is answered, what is held goes back.
func (d *dispatcher) leave() {
	d.drain()
	if d.store != nil {
		for all := range slices.Chunk(d.watched(), atOnce) {
			d.fly(all, true)
			d.flights.Wait()
		}
		d.drain()
	}
	d.away.Store(true)
	d.drain()
}

// drain sends what is queued, and what that leaves queued again, and waits for
// the answers.
func (d *dispatcher) drain() {
	for again := true; again; {
		for d.next() {
			d.flights.Wait()
		}
		d.mu.Lock()
		again = len(d.queue) > 0
		d.mu.Unlock()
	}
}

// end has the dispatcher leave; ended is closed when it has.
func (d *dispatcher) end() { close(d.stop) }

// sweep looks at the leases that hold or owe something.
func (d *dispatcher) sweep() {
	now := d.l.now()
	for _, b := range d.watched() {
		want, active := b.lease.sweep(now)
		if !active {
			d.mu.Lock()
			delete(d.active, b)
			b.listed.Store(false)
			d.mu.Unlock()
			if _, active = b.lease.sweep(now); active { // it came back in between
				d.watch(b)
			}
			continue
		}
		if want && !d.away.Load() {
			d.l.want(b)
		}
	}
}

// give hands a wanted bucket over to another dispatcher; nil = whoever finds out.
func (d *dispatcher) give(b *Bucket, to *dispatcher) {
	d.mu.Lock()
	delete(d.active, b)
	b.listed.Store(false)
	d.mu.Unlock()
	b.home.Store(to)
	if to == nil {
		to = d.l.router
	}
	to.want(b)
}

// forsake tells those who wait that this node must decide alone.
func (d *dispatcher) forsake(batch []*Bucket) {
	for _, b := range batch {
		b.lease.wanted.Store(false)
		b.lease.forsake()
	}
}
