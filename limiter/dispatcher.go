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

	// tripAfter failed pipelines in a row, or a callTimeout of silence, and Redis is
	// away: nobody waits for it until a heartbeat arrives.
	tripAfter = 3

	sweepEvery = 100 * time.Millisecond // leases are looked at

	// mostCalls are in a pipeline, which takes a millisecond of Redis, and
	// mostPipelines are under way. While one is, the next leaves when it is full, or
	// so long after the one before.
	mostCalls     = 32
	mostPipelines = 8
	gatherFor     = time.Millisecond

	// mostSwept calls are begun by a sweep, so that requests do not wait for what can.
	mostSwept = 64
)

// dispatcher is the only way to Redis: it owns the waiting and knows whether Redis
// is away. Buckets that want a call at a moment travel in one pipeline; what comes
// meanwhile takes the next.
//
//	enqueue ──> queue ──> Begin ══ store.visit ══> Complete, or Fail
type dispatcher struct {
	l     *Limiter
	d     *leased
	store store

	away  atomic.Bool // Redis is
	owing atomic.Bool // it was, and debts of that time may be unsent

	mu       sync.Mutex // guards all below; taken after a bucket's
	queue    []*Bucket
	active   map[*Bucket]struct{} // that hold or owe something
	flying   int                  // pipelines under way
	failures int                  // in a row
	degraded outage

	silence    atomic.Int64 // since when an answer is waited for and none has come; MaxInt64 = none is
	answeredAt atomic.Int64 // when a call was last carried out
	wake       chan struct{}
	stop       chan struct{}
	stopped    sync.Once
	ended      chan struct{}
	flights    sync.WaitGroup

	// The dispatcher's goroutine's own.
	departed time.Time   // the last pipeline did
	gather   *time.Timer // wakes it when the next should
}

// outage adds up the time for which Redis was away.
type outage struct {
	since, past int64 // microseconds
	last        error // why Redis last failed
}

func newDispatcher(l *Limiter, d *leased, s store) *dispatcher {
	q := &dispatcher{l: l, d: d, store: s, active: make(map[*Bucket]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	q.silence.Store(math.MaxInt64)
	q.gather = time.AfterFunc(time.Hour, q.nudge)
	q.gather.Stop()
	return q
}

// enqueue has the buckets visited, in one pipeline. The caller has set wanted.
func (q *dispatcher) enqueue(buckets ...*Bucket) {
	if len(buckets) == 0 {
		return
	}
	q.mu.Lock()
	q.queue = append(q.queue, buckets...)
	for _, b := range buckets {
		q.list(b)
	}
	q.mu.Unlock()
	q.nudge()
}

// nudge wakes the dispatcher, if it sleeps.
func (q *dispatcher) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// watch has the bucket looked at by the sweeps.
func (q *dispatcher) watch(b *Bucket) {
	q.mu.Lock()
	first := len(q.active) == 0
	q.list(b)
	q.mu.Unlock()
	if first {
		q.nudge() // the sweeps may have ceased
	}
}

func (q *dispatcher) list(b *Bucket) {
	if !b.listed {
		b.listed = true
		q.active[b] = struct{}{}
	}
}

// watched are the buckets that hold or owe something.
func (q *dispatcher) watched() []*Bucket {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make([]*Bucket, 0, len(q.active))
	for b := range q.active {
		all = append(all, b)
	}
	return all
}

// run is the dispatcher's life. It sleeps while there is nothing to sweep.
func (q *dispatcher) run() {
	defer close(q.ended)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	asleep := false
	for {
		q.mu.Lock()
		quiet := len(q.active)+len(q.queue) == 0
		if quiet && !asleep {
			q.active = make(map[*Bucket]struct{}) // the memory of many is not kept for none
		}
		q.mu.Unlock()
		if quiet != asleep {
			if asleep = quiet; asleep {
				tick.Stop()
			} else {
				tick.Reset(sweepEvery)
			}
		}
		select {
		case <-q.wake:
		case <-tick.C:
			q.sweep()
		case <-q.stop:
			q.leave()
			return
		}
		for q.mayDepart() && q.next() {
		}
	}
}

// silent reports whether nobody should wait for Redis: it is away, or has not
// answered for longer than a request waits.
func (q *dispatcher) silent() bool {
	return q.away.Load() || q.l.now()-q.silence.Load() >= q.d.link.Wait()
}

// mayDepart reports whether what is queued should be sent now: else it goes when
// an answer comes, or has the dispatcher woken when it should.
func (q *dispatcher) mayDepart() bool {
	q.mu.Lock()
	flying, queued := q.flying, len(q.queue)
	q.mu.Unlock()
	switch {
	case flying == 0 || q.away.Load():
		return true
	case flying >= mostPipelines:
		return false
	}
	wait := gatherFor - time.Since(q.departed)
	if queued >= mostCalls || wait <= 0 {
		return true
	}
	if queued > 0 {
		q.gather.Reset(wait)
	}
	return false
}

// next sends off what is queued and reports whether there was anything.
func (q *dispatcher) next() bool {
	q.mu.Lock()
	n := min(len(q.queue), mostCalls)
	batch := slices.Clone(q.queue[:n])
	q.queue = slices.Delete(q.queue, 0, n)
	q.mu.Unlock()
	if n > 0 {
		q.fly(batch, false)
	}
	return n > 0
}

// fly takes a batch of wanted buckets to Redis. all: what they hold goes back.
func (q *dispatcher) fly(batch []*Bucket, all bool) {
	now, fleet := q.l.now(), q.d.fleet()
	calls := make([]*visit, 0, len(batch))
	for _, b := range batch {
		v := &visit{bucket: b}
		b.mu.Lock()
		switch {
		case !q.away.Load() && b.lease.Begin(&v.call, b.waiting(), now, fleet, all):
			calls = append(calls, v)
			if v.call.Need == 0 && v.call.Ret > 0 {
				q.l.counts.settles.Add(1)
			}
		default:
			b.wanted = false
			b.serve(now, true)
		}
		b.mu.Unlock()
	}
	if len(calls) == 0 {
		return
	}
	q.departed = time.Now()
	q.mu.Lock()
	q.silence.CompareAndSwap(math.MaxInt64, now)
	q.flying++
	q.mu.Unlock()
	q.flights.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		err := q.store.visit(ctx, calls)
		q.answered(err, now)
		for _, v := range calls {
			q.land(v, now)
		}
		q.nudge()
	})
}

// answered notes what an answer to a pipeline says of Redis, or that there was
// none. err: no call of it was carried out.
func (q *dispatcher) answered(err error, sent int64) {
	now := q.l.now()
	late := now - sent
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying--
	if err != nil {
		q.degraded.last = err
		if isTimeout(err) {
			q.l.counts.timeouts.Add(1)
		} else {
			q.l.counts.errors.Add(1)
		}
		if q.failures++; (q.failures >= tripAfter || late >= callTimeout.Microseconds()) && !q.away.Load() {
			q.degraded.since = now
			q.away.Store(true)
			q.owing.Store(true)
		}
		if q.flying == 0 { // an error is an answer: the next call may go at once
			q.silence.Store(math.MaxInt64)
		}
		return
	}
	q.failures = 0
	q.answeredAt.Store(now)
	q.d.link.Note(late)
	if late > q.d.link.Budget {
		q.l.counts.timeouts.Add(1)
	}
	if q.flying == 0 {
		now = math.MaxInt64
	}
	q.silence.Store(now)
}

// returned notes that a heartbeat has arrived.
func (q *dispatcher) returned() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away.Load() {
		q.degraded.past += q.l.now() - q.degraded.since
		q.failures = 0
		if q.flying == 0 {
			q.silence.Store(math.MaxInt64)
		}
		q.away.Store(false)
		q.nudge()
	}
}

// owes reports whether debts of an outage are unsent: until then this node does
// not count as present, so that what others withhold for it pays for them.
func (q *dispatcher) owes() bool {
	if !q.owing.Load() {
		return false
	}
	if !q.away.Load() && !slices.ContainsFunc(q.watched(), func(b *Bucket) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.lease.Owes() || b.lease.InFlight()
	}) {
		q.owing.Store(false)
	}
	return q.owing.Load()
}

// land hands an answer to the lease, and then to those who wait.
func (q *dispatcher) land(v *visit, sent int64) {
	b, c := v.bucket, &v.call
	now, fleet := q.l.now(), q.d.fleet()
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.err != nil {
		q.l.counts.dropped.Add(uint64(b.lease.Fail(c, now)))
		b.serve(now, true)
	} else {
		b.lease.Complete(c, sent, now, fleet)
		q.l.counts.leased.Add(uint64(c.Leased))
		q.l.counts.debts.Add(uint64(c.Debt))
		b.serve(now, false)
	}
	if b.wanted = b.waiting() > 0 || v.err == nil && b.lease.Due(now); b.wanted {
		q.enqueue(b)
	}
}

// sweep looks at the leases that hold or owe something.
func (q *dispatcher) sweep() {
	now, fleet := q.l.now(), q.d.fleet()
	var due []*Bucket
	for _, b := range q.watched() {
		b.mu.Lock()
		want, active := b.lease.Sweep(now, fleet)
		if want && !b.wanted && !q.away.Load() && len(due) < mostSwept {
			b.wanted = true
			due = append(due, b)
		}
		if !active && !b.wanted {
			q.mu.Lock()
			b.listed = false
			delete(q.active, b)
			q.mu.Unlock()
		}
		b.mu.Unlock()
	}
	q.enqueue(due...)
}

// end has the dispatcher leave; ended is closed when it has.
func (q *dispatcher) end() { q.stopped.Do(func() { close(q.stop) }) }

// leave ends the dispatcher: what waits is answered, what is held goes back.
func (q *dispatcher) leave() {
	for q.next() {
	}
	q.flights.Wait()
	for batch := range slices.Chunk(q.watched(), mostCalls) {
		q.fly(batch, true)
	}
	q.flights.Wait()
	q.away.Store(true)
	for q.next() {
	}
}

// store is where buckets live.
type store interface {
	// visit carries out the calls, each atomic in its own bucket, and fills in their
	// replies. A call whose err is not nil afterwards was carried out or not, nobody
	// knows. The error it returns is that of a pipeline in which none was.
	visit(ctx context.Context, calls []*visit) error

	// beat sends a heartbeat of a node, and returns how many nodes there are and how
	// many of them are missing.
	beat(ctx context.Context, id, state string) (nodes, missing int64, err error)
}

// visit is one call to one bucket.
type visit struct {
	bucket *Bucket
	call   lease.Call
	err    error
}
