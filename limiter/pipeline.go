package limiter

import (
	"context"
	"math"
	"time"
)

// pipeline is one trip: the calls of a moment, a call per bucket.
type pipeline struct {
	buckets []*Bucket
	calls   []call
	sent    int64
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
	f := &pipeline{buckets: make([]*Bucket, 0, len(batch)), calls: make([]call, 0, len(batch))}
	now, nodes := d.l.now(), d.l.nodes()
	for _, b := range batch {
		c := call{key: b.key}
		switch {
		case b.lease.depart(&c, b.Policy(), now, nodes, 0, all):
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
	d.departed = time.Now()
	d.launch(f, report)
}

// launch sends f, and reports to the breaker how it ended.
func (d *dispatcher) launch(f *pipeline, report func(error)) {
	f.sent = d.l.now()
	d.mu.Lock()
	d.silence.CompareAndSwap(math.MaxInt64, f.sent)
	d.flying++
	d.mu.Unlock()
	d.flights.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), flightTimeout)
		defer cancel()
		err := d.store.visit(ctx, f.calls)
		d.answered(f, err)
		report(err)
		d.land(f, err)
		d.nudge()
	})
}

// answered notes what an answer says of Redis, or that there was none.
func (d *dispatcher) answered(f *pipeline, err error) {
	now := d.l.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flying--
	if err != nil {
		return
	}
	d.l.link.note(now - f.sent)
	if now-f.sent > d.l.link.budget {
		d.l.tally.timeouts.Add(1)
	}
	if d.flying == 0 {
		now = math.MaxInt64
	}
	d.silence.Store(now)
}

// land hands the answers to the leases. An error of one call is an error of its
// bucket; it is the node's as well, unless it was that the bucket is elsewhere.
func (d *dispatcher) land(f *pipeline, err error) {
	now := d.l.now()
	for i, b := range f.buckets {
		c := &f.calls[i]
		if err != nil && c.err == nil {
			c.err = err
		}
		switch moved, elsewhere := c.err.(movedTo); {
		case elsewhere:
			b.lease.abort(c, now, d.l.nodes())
			d.give(b, d.l.cluster.movedTo(moved.address))
		case c.err != nil:
			d.lose(b, c)
		default:
			again := b.lease.land(c, f.sent, now, 0)
			d.l.tally.landed(c)
			d.settle(b, again)
		}
	}
	if err != nil {
		d.l.fail(err)
	}
}

func (d *dispatcher) lose(b *Bucket, c *call) {
	dropped, again := b.lease.lose(c, d.l.now(), d.l.nodes())
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
