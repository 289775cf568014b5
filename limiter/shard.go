package limiter

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"listedge/limiter/lease"
)

// The times of the remote call and its failure policy.
const (
	// callTimeout ends a visit to Redis: a silence that long is a failure of
	// Redis, and a shorter one only of the requests that waited.
	callTimeout = 250 * time.Millisecond

	// maxFailures failed pipelines in a row, or a callTimeout of silence, and a shard
	// is down: nobody waits for it until a heartbeat arrives.
	maxFailures = 3

	// maxCalls are in a pipeline, which takes a millisecond of Redis, and
	// maxPipelines are in flight. While one is, the next is sent when it is full, or
	// so long after the one before.
	maxCalls     = 32
	maxPipelines = 8
	batchWait    = time.Millisecond
)

// shard is one server that has buckets: the only one, or a master of a Cluster. It
// sends the calls and knows whether the server is down. Buckets that want a call at
// a moment travel in one pipeline; what comes meanwhile takes the next. So one
// server that hangs costs the buckets of others nothing.
//
//	enqueue ──> queue ──> Begin ══ store.visit ══> Complete, or Fail
type shard struct {
	d       *leased
	link    lease.Link
	members *membership

	down     atomic.Bool
	hasDebts atomic.Bool // it was down, and debts of that time may be unsent

	waitingSince atomic.Int64 // for an answer, and none has come; MaxInt64 = for none
	answeredAt   atomic.Int64 // when a call was last carried out

	mu       sync.Mutex // guards all below; taken after a bucket's
	queue    []*Bucket
	inFlight int             // pipelines
	sentAt   time.Time       // the last pipeline
	wake     *time.Timer     // sends the next
	idle     sync.Cond       // nothing is in flight
	failures int             // in a row
	downAt   int64           // when it went down last; microseconds
	downFor  int64           // in all, the present time not counted
	failure  error           // the last
	closing  context.Context // while what is held goes back; nil = it does not
}

// newShard makes the shard of that index in the store, and begins its heartbeats.
func newShard(d *leased, index int) *shard {
	s := &shard{d: d, link: lease.Link{Budget: d.budget}}
	s.waitingSince.Store(math.MaxInt64)
	s.wake = time.AfterFunc(time.Hour, func() { s.enqueue() })
	s.wake.Stop()
	s.idle.L = &s.mu
	s.members = newMembership(s, index)
	d.running.Go(s.members.run)
	return s
}

// fleet is what this node knows of those that share the buckets.
func (s *shard) fleet() *lease.Fleet { return s.members.fleet.Load() }

// unreachable reports whether nobody should wait for the shard: it is down, or has
// not answered for longer than a request waits.
func (s *shard) unreachable() bool {
	return s.refuses() || s.d.l.now()-s.waitingSince.Load() >= s.link.Wait()
}

// refuses reports whether no calls are begun.
func (s *shard) refuses() bool { return s.down.Load() || s.d.closed.Load() }

// enqueue has the buckets visited, in one pipeline. The caller has called want.
func (s *shard) enqueue(buckets ...*Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, buckets...)
	s.startSend()
}

// startSend sends what is queued, if it should go now: else it goes when an answer
// comes, or when it is time. s.mu is held.
func (s *shard) startSend() {
	if len(s.queue) == 0 {
		return
	}
	if s.inFlight >= maxPipelines {
		return
	}
	if s.inFlight > 0 && !s.refuses() {
		if wait := batchWait - time.Since(s.sentAt); wait > 0 && len(s.queue) < maxCalls {
			s.wake.Reset(wait)
			return
		}
	}
	s.inFlight++
	s.sentAt = time.Now()
	go s.send()
}

// send takes the next of the queue to Redis.
func (s *shard) send() {
	s.mu.Lock()
	n := min(len(s.queue), maxCalls)
	batch := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	all := s.closing != nil && s.closing.Err() == nil && !s.down.Load()
	s.startSend()
	s.mu.Unlock()
	now := s.d.l.now()
	if calls := s.begin(batch, now, all); len(calls) > 0 {
		s.waitingSince.CompareAndSwap(math.MaxInt64, now)
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		s.noteAnswer(s.d.store.visit(ctx, calls), now)
		for _, v := range calls {
			s.complete(v, now)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight--; s.inFlight == 0 { // an error is an answer, too: the next call may go at once
		s.waitingSince.Store(math.MaxInt64)
		s.idle.Broadcast()
	}
	s.startSend()
}

// begin makes the calls of a batch; all: what the buckets hold goes back. Requests
// that wait for a bucket of which there is none are answered.
func (s *shard) begin(batch []*Bucket, now int64, all bool) []*visit {
	calls := make([]*visit, 0, len(batch))
	for _, b := range batch {
		v := &visit{bucket: b}
		b.mu.Lock()
		if (all || !s.refuses()) && b.lease.Begin(&v.call, b.waiting(), now, s.fleet(), all) {
			calls = append(calls, v)
			if v.call.Need == 0 && v.call.Ret > 0 {
				s.d.l.counts.settles.Add(1)
			}
		} else {
			b.pending = false
			b.answer(now, true)
		}
		b.mu.Unlock()
	}
	return calls
}

// noteAnswer notes what an answer to a pipeline says of the server, or that there
// was none. err: no call of it was carried out.
func (s *shard) noteAnswer(err error, sent int64) {
	now, c := s.d.l.now(), &s.d.l.counts
	late := now - sent
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.failures = 0
		s.waitingSince.Store(now)
		s.answeredAt.Store(now)
		if s.link.Record(late); late > s.link.Budget {
			c.timeouts.Add(1)
		}
		return
	}
	if isTimeout(err) {
		c.timeouts.Add(1)
	} else {
		c.errors.Add(1)
	}
	s.failure = err
	if s.failures++; (s.failures >= maxFailures || late >= callTimeout.Microseconds()) && !s.down.Load() {
		s.downAt = now
		s.down.Store(true)
		s.hasDebts.Store(true)
	}
}

// complete hands an answer to the lease, and then to those who wait.
func (s *shard) complete(v *visit, sent int64) {
	b, c := v.bucket, &v.call
	now := s.d.l.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.err != nil {
		s.d.l.counts.dropped.Add(uint64(b.lease.Fail(c, now)))
	} else {
		b.lease.Complete(c, sent, now, s.fleet())
		s.d.l.counts.leased.Add(uint64(c.Leased))
		s.d.l.counts.debts.Add(uint64(c.Debt))
	}
	b.answer(now, v.err != nil)
	b.pending = false
	if b.waiting() > 0 || v.err == nil && b.lease.Due(now) {
		s.d.want(b).enqueue(b)
	}
}

// recovered notes that a heartbeat has arrived.
func (s *shard) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down.Load() {
		return
	}
	s.downFor += s.d.l.now() - s.downAt
	s.failures = 0
	s.down.Store(false)
	s.startSend()
}

// owesDebts reports whether debts of an outage are unsent: until then this node does
// not count as present, so that what others withhold for it pays for them.
func (s *shard) owesDebts() bool {
	if s.hasDebts.Load() && !s.down.Load() && !slices.ContainsFunc(s.d.tracked(), func(b *Bucket) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return s.d.shards[b.shard].Load() == s && (b.lease.HasDebt() || b.lease.InFlight())
	}) {
		s.hasDebts.Store(false)
	}
	return s.hasDebts.Load()
}

// close has the buckets visited for the last time and gives back what they hold, until
// ctx ends or the shard is down. Then it leaves the fleet.
func (s *shard) close(ctx context.Context, buckets []*Bucket) {
	drained := func() {
		for s.inFlight > 0 || len(s.queue) > 0 {
			s.idle.Wait()
		}
	}
	s.mu.Lock()
	drained()
	s.closing = ctx
	s.queue = buckets
	s.startSend()
	drained()
	s.mu.Unlock()
	close(s.members.stop)
}
