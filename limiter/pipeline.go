package limiter

import (
	"context"
	"sync/atomic"
	"time"
)

// pipeline is one trip: the calls of a moment, a call per bucket.
type pipeline struct {
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
	f := &pipeline{buckets: make([]*Bucket, 0, len(batch)), calls: make([]call, 0, len(batch)), done: make(chan struct{})}
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
func (d *dispatcher) await(f *pipeline) error {
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
func (f *pipeline) call(i int) *call {
	c := &f.calls[i]
	return &call{key: c.key, ret: c.ret, debt: c.debt}
}

// land hands the answers to the leases. An error of one call is an error of its
// bucket; it is the node's as well, unless it was that the bucket is elsewhere.
func (d *dispatcher) land(f *pipeline) error {
	now := d.l.now()
	for i, b := range f.buckets {
		c := &f.calls[i]
		if f.err != nil && c.err == nil {
			c.err = f.err
		}
		switch moved, elsewhere := c.err.(movedTo); {
		case elsewhere:
			b.lease.abort(c, now, d.l.nodes())
			d.give(b, d.l.cluster.movedTo(moved.address))
		case c.err != nil:
			d.lose(b, c, false)
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

func (d *dispatcher) landLate(f *pipeline) {
	now := d.l.now()
	for i, b := range f.buckets {
		if c := &f.calls[i]; c.err == nil && f.err == nil {
			b.lease.late(c, f.sent, now)
			d.l.tally.landed(c)
		} else {
			b.lease.vain()
		}
		d.watch(b)
		if b.lease.owing(now) {
			d.l.want(b)
		}
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
