package limiter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	sweepEvery = 100 * time.Millisecond // leases are looked at, and Redis is probed, as often
	atOnce     = 1024                   // buckets in a pipeline

	// recovery is how long after Redis' return every node of the fleet has
	// found it, and has sent what it owes.
	recovery = probeEvery + sweepEvery
)

// dispatcher is the only way to one Redis node: it owns the connections, the
// breaker and the waiting. All buckets that want something at a moment travel
// in one pipeline; what comes meanwhile takes the next.
//
//	want ──> queue ──> depart ══ store.visit ══> land
//	                              └ over budget: lose; then, if ever, late
type dispatcher struct {
	l       *Limiter
	store   store
	address string                                                     // of the node, in a Cluster
	route   func(ctx context.Context, key string) (*dispatcher, error) // a Cluster's: finds the node; it has no store

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	away    atomic.Bool // the breaker is not closed: nobody waits for this node
	retired atomic.Bool // the Cluster has no such node any more

	mu     sync.Mutex // guards all below
	queue  []*Bucket
	active map[*Bucket]struct{} // that hold or owe something

	wake    chan struct{}
	stop    chan struct{}
	ended   chan struct{}
	flights sync.WaitGroup // flights that were given up, and may answer yet

	probed time.Time // by the dispatcher's goroutine alone
	spare  []*Bucket
}

func (l *Limiter) newDispatcher(s store) *dispatcher {
	d := &dispatcher{l: l, store: s, active: make(map[*Bucket]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	d.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     probeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		// Runs under the breaker's lock: nothing here may wait.
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if away := to != gobreaker.StateClosed; d.away.Swap(away) != away {
				l.outage.turn(away, l.now())
			}
		},
	})
	return d
}

// want queues a bucket. Its lease's wanted flag is set, and the caller set it.
func (d *dispatcher) want(b *Bucket) {
	d.mu.Lock()
	d.queue = append(d.queue, b)
	d.list(b)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// watch has the bucket looked at by the sweeps.
func (d *dispatcher) watch(b *Bucket) {
	if !b.listed.Load() {
		d.mu.Lock()
		d.list(b)
		d.mu.Unlock()
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

// run is the dispatcher's life.
func (d *dispatcher) run() {
	defer close(d.ended)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	logged := false
	for {
		select {
		case <-d.wake:
		case <-tick.C:
			if d.away.Load() || d.breaker.Counts().ConsecutiveFailures > 0 {
				d.probe() // a single bucket would take long to find out
			}
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
		for d.next() {
		}
		if away := d.away.Load(); away != logged {
			logged = away
			d.logTurn(away)
			if !away {
				until := d.l.now() + int64(recovery/time.Microsecond)
				for _, b := range d.watched() {
					b.lease.convalesce(until)
				}
				d.sweep()
			}
		}
	}
}

func (d *dispatcher) logTurn(away bool) {
	if away {
		d.l.logger.Warn("redis is away: this node limits alone", "node", d.address, "error", d.l.outage.why())
		return
	}
	d.l.logger.Info("redis is back: limits are shared again", "node", d.address)
}

// next sends off what is queued and reports whether there was anything.
func (d *dispatcher) next() bool {
	d.mu.Lock()
	n := min(len(d.queue), atOnce)
	batch := append(d.spare[:0], d.queue[:n]...)
	rest := copy(d.queue, d.queue[n:])
	clear(d.queue[rest:])
	d.queue = d.queue[:rest]
	d.mu.Unlock()
	d.spare = batch
	if n == 0 {
		return false
	}
	d.fly(batch, false)
	clear(batch)
	return true
}

// flight is one pipeline.
type flight struct {
	buckets []*Bucket
	calls   []call
	sent    int64
	over    atomic.Bool // set by whoever comes first, the answer or the budget
	done    chan struct{}
	err     error
}

// fly takes a batch of wanted buckets to Redis. all: everything goes back.
func (d *dispatcher) fly(batch []*Bucket, all bool) {
	if d.route != nil {
		d.hand(batch)
		return
	}
	if d.away.Load() {
		d.forsake(batch)
		return
	}
	f := &flight{buckets: make([]*Bucket, 0, len(batch)), calls: make([]call, 0, len(batch)), done: make(chan struct{})}
	now := d.l.now()
	for _, b := range batch {
		c := call{key: b.key}
		switch {
		case b.lease.depart(&c, b.Policy(), now, 0, all):
			f.buckets, f.calls = append(f.buckets, b), append(f.calls, c)
			d.l.tally.departed(&c)
		default:
			d.settle(b, false)
		}
	}
	if len(f.calls) == 0 {
		return
	}
	report, err := d.breaker.Allow()
	if err != nil {
		for i, b := range f.buckets {
			b.lease.abort(&f.calls[i], now, d.l.nodes())
		}
		d.forsake(f.buckets)
		return
	}
	report(d.await(f))
}

// await sends f and lands it, or gives it up when the budget is over. It
// returns why Redis failed.
func (d *dispatcher) await(f *flight) error {
	f.sent = d.l.now()
	d.flights.Add(1)
	go func() {
		defer d.flights.Done()
		ctx, cancel := context.WithTimeout(context.Background(), max(flightTimeout, d.l.budget))
		defer cancel()
		f.err = d.store.visit(ctx, f.calls)
		if f.over.Swap(true) {
			d.landLate(f)
		}
		close(f.done)
	}()
	timer := time.NewTimer(d.l.budget)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-timer.C:
		if !f.over.Swap(true) {
			d.l.fail(errBudget)
			for i, b := range f.buckets {
				d.lose(b, f.call(i), true)
			}
			return errBudget
		}
		<-f.done // it landed at this very moment
	}
	return d.land(f)
}

// call is a copy of the i-th: the answer may yet be written into the original.
func (f *flight) call(i int) *call {
	c := &f.calls[i]
	return &call{key: c.key, ret: c.ret, debt: c.debt}
}

// land hands the answers to the leases. An error of one call is an error of its
// bucket; it is the node's as well, unless it was that the bucket is elsewhere.
func (d *dispatcher) land(f *flight) error {
	now := d.l.now()
	for i, b := range f.buckets {
		c := &f.calls[i]
		switch {
		case f.err != nil && c.err == nil:
			c.err = f.err
			fallthrough
		case c.err != nil && !errors.Is(c.err, errNotHere):
			d.lose(b, c, false)
		case c.err != nil:
			b.lease.abort(c, now, d.l.nodes())
			d.l.cluster.moved()
			d.give(b, nil)
		default:
			again := b.lease.land(c, f.sent, now, 0)
			d.l.tally.landed(c)
			d.settle(b, again)
		}
	}
	if f.err != nil {
		d.l.fail(f.err)
	}
	return f.err
}

func (d *dispatcher) landLate(f *flight) {
	now := d.l.now()
	for i, b := range f.buckets {
		if c := &f.calls[i]; c.err == nil && f.err == nil {
			b.lease.late(c, f.sent, now)
			d.l.tally.landed(c)
		} else {
			b.lease.vain()
		}
		d.watch(b)
	}
}

func (d *dispatcher) lose(b *Bucket, c *call, overdue bool) {
	dropped, again := b.lease.lose(c, d.l.now(), d.l.nodes(), overdue)
	d.l.tally.dropped.Add(uint64(dropped))
	d.settle(b, again)
}

// settle ends a bucket's turn: it is queued again, or wanted no more.
func (d *dispatcher) settle(b *Bucket, again bool) {
	if again {
		d.want(b)
		return
	}
	b.lease.wanted.Store(false)
	if b.lease.waits() { // somebody came in between, and saw the flag set
		d.l.want(b)
	}
}

// forsake tells those who wait that this node must decide alone.
func (d *dispatcher) forsake(batch []*Bucket) {
	for _, b := range batch {
		b.lease.wanted.Store(false)
		b.lease.forsake()
	}
}

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

// probe tries a node that is away, at most every probeEvery, so that no request
// has to. It writes: a replica that only reads does not close the breaker.
func (d *dispatcher) probe() {
	if d.away.Load() && time.Since(d.probed) < probeEvery {
		return
	}
	d.probed = time.Now()
	if d.route != nil {
		if report, err := d.breaker.Allow(); err == nil {
			report(d.l.cluster.answers())
		}
		return
	}
	key := "rl:{probe}"
	if d.l.cluster != nil {
		key = d.l.cluster.rehome(d)
		if key == "" {
			d.retire()
			return
		}
	}
	report, err := d.breaker.Allow()
	if err != nil {
		return
	}
	p := Policy{Rate: microsPerSecond, Burst: 1, r: 1, p: 1}
	report(d.await(&flight{calls: []call{{key: key, policy: p, life: leaseLife, need: 1}}, done: make(chan struct{})}))
}

// leave ends the dispatcher: what waits is answered, what is held goes back.
func (d *dispatcher) leave() {
	for d.next() {
	}
	if !d.away.Load() && d.store != nil {
		all := d.watched()
		for len(all) > 0 && !d.away.Load() {
			n := min(len(all), atOnce)
			d.fly(all[:n], true)
			all = all[n:]
		}
	}
	d.away.Store(true)
	for d.next() {
	}
	d.flights.Wait()
}

// retire ends the dispatcher of a node that the Cluster has no more: its breaker
// would stay open for ever, and say so.
func (d *dispatcher) retire() {
	d.retired.Store(true)
	d.l.cluster.drop(d)
}

// end has the dispatcher leave; ended is closed when it has.
func (d *dispatcher) end() { close(d.stop) }
