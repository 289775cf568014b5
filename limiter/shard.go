package limiter

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"listedge/limiter/lease"
)

// The bounds of calls to Redis, and when a shard counts as down.
const (
	// callTimeout ends a pipeline without an answer and takes the shard down at once. A
	// request waits for less than that, so a shorter delay affects only the requests
	// that wait.
	callTimeout = 250 * time.Millisecond

	// A shard is down after maxFailures failed pipelines in a row, or after one that got
	// no answer within callTimeout. No request waits for it until a heartbeat is
	// answered.
	maxFailures = 3

	// A pipeline has at most maxCalls, which take Redis about a millisecond. At most
	// maxPipelines are in flight.
	maxCalls     = 32
	maxPipelines = 8
)

// shard is one Redis server that has buckets: the only one, or a master of a Cluster.
// It sends the calls of its buckets in pipelines and knows whether the server is down.
// Calls that are queued while maxPipelines are in flight go into the next one. Each server
// has its own shard, so a server that hangs does not delay the buckets of others.
//
//	enqueue ──> queue ──> Begin ══ store.execute ══> Complete, or Fail
type shard struct {
	l     *Limiter
	index int // its number in the store
	link  lease.Link
	known atomic.Pointer[lease.Fleet]

	down     atomic.Bool
	hasDebts atomic.Bool // it was down, and debts of that time may not have been debited yet

	waitingSince atomic.Int64 // since when there is no answer to a call in flight; MaxInt64 = no call is in flight
	answeredAt   atomic.Int64 // when a pipeline or a heartbeat was last answered

	mu       sync.Mutex // guards all below; taken after a bucket's
	queue    []*Bucket
	inFlight int             // pipelines in flight
	idle     sync.Cond       // signalled when no pipeline is in flight
	failures int             // failed pipelines in a row
	downAt   int64           // when it last went down, in microseconds
	downFor  int64           // sum of its past outages, in microseconds
	failure  error           // the last error
	silence  error           // why the last heartbeat failed; nil = it did not
	nodes    int64           // as last counted; 0 = not yet
	closing  context.Context // of close, while held tokens are given back; nil before

	// Only the goroutine of beat uses these.
	counts  [4]int64      // of nodes, the latest first
	missing int64         // nodes, at the latest count
	contact int64         // when the last heartbeat with the state present was sent, in microseconds
	ahead   int64         // Redis' clock is ahead of this node's by at most so much; lease.Forever = unknown
	stop    chan struct{} // closed when the node leaves
}

// newShard makes the shard of that index in the store, and begins its heartbeats.
func newShard(l *Limiter, index int) *shard {
	s := &shard{l: l, index: index, link: lease.Link{Budget: l.budget}, contact: l.now(), ahead: lease.Forever, stop: make(chan struct{})}
	s.waitingSince.Store(math.MaxInt64)
	s.idle.L = &s.mu
	if s.publish(); l.store != nil {
		l.running.Go(s.beat)
	} else {
		s.down.Store(true)
		s.known.Store(&lease.Fleet{Nodes: 1, Link: &s.link})
	}
	return s
}

// fleet is what this node knows about the nodes that share the buckets.
func (s *shard) fleet() *lease.Fleet { return s.known.Load() }

// unreachable reports whether no request should wait for the shard: it is down, or has
// not answered for longer than a request waits.
func (s *shard) unreachable() bool {
	return s.refuses() || s.l.now()-s.waitingSince.Load() >= s.link.Wait()
}

// enqueue queues calls to the buckets. The caller has called markPending for each.
func (s *shard) enqueue(buckets ...*Bucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, buckets...)
	s.startSend()
}

// startSend sends the next pipeline, or leaves that to the next answer. s.mu is held.
func (s *shard) startSend() {
	if len(s.queue) > 0 && s.inFlight < maxPipelines { // mutation: all go back at once
		s.inFlight++
		go s.send()
	}
}

// send sends one pipeline with the calls that are first in the queue.
func (s *shard) send() {
	s.mu.Lock()
	n := min(len(s.queue), maxCalls)
	batch := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	all := s.closing != nil && s.closing.Err() == nil && !s.down.Load()
	s.startSend()
	s.mu.Unlock()
	now := s.l.now()
	if calls := s.begin(batch, now, all); len(calls) > 0 {
		s.waitingSince.CompareAndSwap(math.MaxInt64, now)
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		s.l.counts.trips.Add(1)
		s.l.counts.calls.Add(uint64(len(calls)))
		s.recordAnswer(s.l.store.execute(ctx, calls), now)
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

// begin makes the calls of a batch. With giveBack, they return the tokens that are held.
// If a bucket needs no call, its waiting requests are answered.
func (s *shard) begin(batch []*Bucket, now int64, giveBack bool) []*bucketCall {
	calls := make([]*bucketCall, 0, len(batch))
	for _, b := range batch {
		v := &bucketCall{bucket: b}
		b.mu.Lock()
		if (giveBack || !s.refuses()) && b.lease.Begin(&v.call, int64(len(b.waiters)), now, s.fleet(), giveBack) {
			calls = append(calls, v)
		} else {
			b.pending = false
			b.deliver(now, everyWaiter)
		}
		b.mu.Unlock()
	}
	return calls
}

// recordAnswer records the answer to a pipeline or to a call to a quota. It takes the shard
// down if need be. err != nil: no call of the pipeline was answered.
func (s *shard) recordAnswer(err error, sent int64) {
	now, c := s.l.now(), &s.l.counts
	late := now - sent
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.failures = 0
		if s.inFlight > 0 {
			s.waitingSince.Store(now)
		}
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
		s.down.Store(true) // mutation: the breaker never opens
		s.hasDebts.Store(true)
	}
}

// complete applies an answer to the lease, and then answers the waiting requests.
func (s *shard) complete(v *bucketCall, sent int64) {
	b, c := v.bucket, &v.call
	now := s.l.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.err != nil {
		b.lease.Fail(c, now)
	} else {
		b.lease.Complete(c, sent, now, s.fleet())
		s.l.counts.leased.Add(uint64(c.Leased))
	}
	b.deliver(now, v.err != nil)
	if b.pending = false; b.lease.IsActive() {
		s.l.active.add(b)
	}
	if len(b.waiters) > 0 || v.err == nil && b.lease.Due(now) {
		s.l.markPending(b)
		b.shard.enqueue(b)
	}
}

// recovered takes the shard up again, after a heartbeat was answered.
func (s *shard) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down.Load() {
		return
	}
	s.downFor += s.l.now() - s.downAt
	s.failures = 0
	s.down.Store(false)
	s.startSend()
}

// owesDebts reports whether debts of an outage have not been debited yet. Meanwhile this
// node does not report itself present. So the others go on withholding its part, and the
// debts are paid from that.
func (s *shard) owesDebts() bool {
	if !s.hasDebts.Load() || s.down.Load() {
		return s.hasDebts.Load()
	}
	owes := false
	s.l.active.each(func(b *Bucket) { owes = owes || b.shard == s && b.lease.Owes() })
	s.hasDebts.Store(owes)
	return owes
}

// close calls each active bucket for the last time and gives back the tokens that are held,
// the most first. It stops giving back when ctx ends or the shard is down. Then the node
// leaves the fleet.
func (s *shard) close(ctx context.Context) {
	drained := func() {
		for s.inFlight > 0 || len(s.queue) > 0 {
			s.idle.Wait()
		}
	}
	s.mu.Lock()
	drained()
	s.mu.Unlock()
	held := map[*Bucket]int64{}
	s.l.active.each(func(b *Bucket) {
		if b.shard == s {
			held[b] = b.lease.Holds(s.l.now())
		}
	})
	s.mu.Lock()
	s.closing = ctx
	s.queue = slices.SortedFunc(maps.Keys(held), func(a, b *Bucket) int { return cmp.Compare(held[b], held[a]) }) // mutation: the fewest tokens go back first
	s.startSend()
	drained()
	s.mu.Unlock()
	close(s.stop)
}
