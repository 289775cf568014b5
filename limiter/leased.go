package limiter

import (
	"context"
	"slices"
	"sync"
	"time"

	"listedge/limiter/lease"
)

// leased decides by tokens that are leased from Redis.
type leased struct {
	l          *Limiter
	mode       FailureMode
	link       lease.Link
	membership *membership
	dispatcher *dispatcher
	trips      sync.Pool // *trip
}

func newLeased(l *Limiter, o Options, s store) *leased {
	d := &leased{l: l, mode: o.FailureMode}
	if o.Budget <= 0 {
		o.Budget = DefaultBudget
	}
	d.link.Budget = o.Budget.Microseconds()
	d.trips.New = func() any { return newTrip() }
	d.dispatcher = newDispatcher(l, d, s)
	d.membership = newMembership(s, o.NodeID, d)
	go d.dispatcher.run()
	go d.membership.run()
	return d
}

func (d *leased) open(*Bucket, int64) {}

func (d *leased) idle(b *Bucket) bool {
	return b.waiters == nil && !b.wanted && b.lease.Forgettable(d.l.now())
}

func (d *leased) setPolicy(b *Bucket, p Policy) {
	b.lease.SetPolicy(p)
	d.callIfDue(b, d.l.now())
}

// callIfDue queues a call that nobody waits for. b.mu is held.
func (d *leased) callIfDue(b *Bucket, now int64) {
	if !b.wanted && b.lease.Due(now) && !d.dispatcher.away.Load() {
		b.wanted = true
		d.l.counts.prefetches.Add(1)
		d.dispatcher.enqueue(b)
	}
}

func (d *leased) decide(now int64, key, workspace *Bucket, cost int64) Decision {
	r := Decision{Allowed: true, Source: SourceLease}
	legs := [2]leg{{bucket: key, verdict: lease.Granted}, {bucket: workspace, verdict: lease.Granted}}
	for i := range legs {
		g := &legs[i]
		switch {
		case g.bucket == nil:
		case cost == 0:
			d.peek(g, now)
		case i == 1 && legs[0].verdict == lease.Denied:
			d.check(g, now)
		default:
			d.take(g, now)
		}
	}
	if legs[0].verdict != lease.Denied && legs[1].verdict != lease.Denied {
		for i := range legs {
			if legs[i].verdict == lease.Ask {
				return d.wait(&legs)
			}
		}
	}
	d.conclude(&r, &legs, now)
	return r
}

// leg is one bucket of a request; verdict Granted where there is no bucket.
type leg struct {
	bucket  *Bucket
	verdict lease.Verdict
	status  lease.Status
	retry   int64  // refused: microseconds until there is a token
	waiter  waiter // in the bucket's queue, where queued
	queued  bool
	alone   bool // this node decided alone
	untaken bool // no token was taken
}

// take is the fast path: a lease that has a token, or one that knows there is none.
func (d *leased) take(g *leg, now int64) {
	b := d.l.buckets.lock(g.bucket)
	defer b.mu.Unlock()
	g.bucket = b
	if g.verdict = b.lease.Take(now); g.verdict == lease.Denied {
		g.retry = b.lease.RetryIn(now)
	}
	g.status = b.lease.Status(now, false)
	d.callIfDue(b, now)
}

// check refuses what Take would, and takes nothing.
func (d *leased) check(g *leg, now int64) {
	b := d.l.buckets.lock(g.bucket)
	defer b.mu.Unlock()
	g.untaken, g.status = true, b.lease.Status(now, false)
	if b.lease.Denies(now) {
		g.verdict, g.retry = lease.Denied, b.lease.RetryIn(now)
	}
}

// peek looks, and refuses nothing.
func (d *leased) peek(g *leg, now int64) {
	b := d.l.buckets.lock(g.bucket)
	defer b.mu.Unlock()
	g.status = b.lease.Status(now, d.dispatcher.away.Load())
}

// conclude makes the decision of two verdicts, and gives a token back that the
// other bucket's refusal made useless.
func (d *leased) conclude(r *Decision, legs *[2]leg, now int64) {
	refused := legs[0].verdict == lease.Denied || legs[1].verdict == lease.Denied
	for i := range legs {
		g := &legs[i]
		s := &r.Key
		if i == 1 {
			s = &r.Workspace
		}
		switch {
		case g.bucket == nil:
			continue
		case g.verdict == lease.Denied:
			s.show(g.status)
			r.refuse(Which(i+1), g.retry)
			continue
		case refused && g.verdict == lease.Granted && !g.untaken:
			if g.alone {
				d.l.counts.alone.Add(^uint64(0))
			}
			d.giveBack(g.bucket, now, g.alone)
		}
		s.Allowed = true
		s.show(g.status)
	}
}

func (d *leased) refund(b *Bucket, now int64) { d.giveBack(b, now, false) }

// giveBack takes a token back into the lease, or sends it to the bucket: at once
// where the bucket is small, else with what goes there next.
func (d *leased) giveBack(b *Bucket, now int64, alone bool) {
	b = d.l.buckets.lock(b)
	defer b.mu.Unlock()
	travels, urgent := b.lease.Refund(now, alone)
	switch {
	case !travels:
	case urgent && !b.wanted && !d.dispatcher.away.Load():
		b.wanted = true
		d.dispatcher.enqueue(b)
	default:
		d.dispatcher.watch(b)
	}
}

// queue is the requests that wait for a bucket, whose mu guards it.
type queue struct{ waiters []*waiter }

// waiter is a request's place in a queue.
type waiter struct {
	done    chan struct{} // of its request; room for both its waiters
	decided bool
	verdict lease.Verdict // Ask: this node must decide alone
	status  lease.Status
	retry   int64
}

// trip is a request that no lease could answer.
type trip struct {
	legs  [2]leg
	done  chan struct{}
	timer *time.Timer
}

func newTrip() *trip {
	t := &trip{done: make(chan struct{}, 2), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

// wait brings both legs, of which neither was refused, to a verdict.
func (d *leased) wait(legs *[2]leg) Decision {
	t := d.trips.Get().(*trip)
	t.legs = *legs
	defer func() {
		t.legs = [2]leg{}
		d.trips.Put(t)
	}()
	r := Decision{Allowed: true, Source: SourceLease}
	if d.ask(t) {
		r.Source = SourceRedis
	}
	now := d.l.now()
	for i := range t.legs {
		if t.legs[i].verdict == lease.Ask && t.legs[1-i].verdict != lease.Denied {
			d.decideAlone(&t.legs[i], now)
			r.Source = SourceLocalFallback
		}
	}
	for i := range t.legs {
		if t.legs[i].verdict == lease.Ask { // it does not matter any more
			t.legs[i].verdict, t.legs[i].untaken = lease.Granted, true
		}
	}
	d.conclude(&r, &t.legs, now)
	return r
}

// ask waits in the queues of both buckets, no longer than the link says, and
// reports whether it waited.
func (d *leased) ask(t *trip) bool {
	pending := 0
	call := make([]*Bucket, 0, 2)
	for i := range t.legs {
		g := &t.legs[i]
		if g.verdict != lease.Ask || d.dispatcher.silent() {
			continue
		}
		g.waiter = waiter{done: t.done}
		if g.queued = d.enter(g, &call); g.queued {
			pending++
		}
	}
	d.dispatcher.enqueue(call...)
	if pending == 0 {
		return false
	}
	t.timer.Reset(time.Duration(d.link.Wait()) * time.Microsecond)
	for over := false; pending > 0 && !over; {
		select {
		case <-t.done:
			pending--
		case <-t.timer.C:
			over = true
		}
	}
	t.timer.Stop()
	for i := range t.legs {
		if g := &t.legs[i]; g.queued && !leave(g) {
			pending--
		}
	}
	for ; pending > 0; pending-- { // answered at the very moment the wait was over
		<-t.done
	}
	return true
}

// enter tries once more, and where there is nothing, queues the leg: unless an
// answer has taken longer than anybody waits. call gains the bucket where no call
// of it is on its way.
func (d *leased) enter(g *leg, call *[]*Bucket) (queued bool) {
	b := d.l.buckets.lock(g.bucket)
	defer b.mu.Unlock()
	g.bucket = b
	now := d.l.now()
	g.verdict = b.lease.Retry(now)
	g.status, g.retry = b.lease.Status(now, false), b.lease.RetryIn(now)
	if g.verdict != lease.Ask || b.lease.Unanswered(now, d.fleet()) {
		return false
	}
	if b.waiters == nil {
		b.waiters = new(queue)
	}
	b.waiters.waiters = append(b.waiters.waiters, &g.waiter)
	if !b.wanted {
		b.wanted = true
		*call = append(*call, b)
	}
	return true
}

// leave ends the leg's wait and reports whether it was decided.
func leave(g *leg) bool {
	b := g.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &g.waiter
	if w.decided {
		g.verdict, g.status, g.retry = w.verdict, w.status, w.retry
		return true
	}
	b.waiters.waiters = slices.DeleteFunc(b.waiters.waiters, func(other *waiter) bool { return other == w })
	if len(b.waiters.waiters) == 0 {
		b.waiters = nil
	}
	return false
}

// waiting is how many requests wait for the bucket. b.mu is held, as below.
func (b *Bucket) waiting() int64 {
	if b.waiters == nil {
		return 0
	}
	return int64(len(b.waiters.waiters))
}

// serve answers those who wait, as far as the lease can; all: the others are to be
// decided alone.
func (b *Bucket) serve(now int64, all bool) {
	if b.waiters == nil {
		return
	}
	served := 0
	for _, w := range b.waiters.waiters {
		v := b.lease.Retry(now)
		if v == lease.Ask && !all {
			break
		}
		w.decided, w.verdict, w.status, w.retry = true, v, b.lease.Status(now, false), b.lease.RetryIn(now)
		w.done <- struct{}{}
		served++
	}
	b.waiters.waiters = slices.Delete(b.waiters.waiters, 0, served)
	if len(b.waiters.waiters) == 0 {
		b.waiters = nil
	}
}

// decideAlone is what becomes of a request that Redis cannot be asked about.
func (d *leased) decideAlone(g *leg, now int64) {
	b := d.l.buckets.lock(g.bucket)
	defer b.mu.Unlock()
	g.bucket, g.alone = b, true
	ok := d.mode == FailAllow
	switch d.mode {
	case FailLocal:
		ok, g.retry = b.lease.TakeAlone(now, d.fleet())
	case FailAllow:
		b.lease.AdmitAlone(now, d.fleet())
	case FailDeny:
		g.retry = beatEvery.Microseconds()
	}
	g.status = b.lease.Status(now, true)
	if g.verdict = lease.Denied; ok {
		g.verdict = lease.Granted
		d.l.counts.alone.Add(1)
		d.dispatcher.watch(b)
	}
}

// fleet is what this node knows of it.
func (d *leased) fleet() *lease.Fleet { return d.membership.fleet.Load() }

func (d *leased) close(ctx context.Context) error {
	d.dispatcher.end()
	ended := make(chan struct{})
	go func() { // ends with the last call, at most a few callTimeouts later
		defer close(ended)
		<-d.dispatcher.ended
		d.membership.end()
		<-d.membership.ended
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
