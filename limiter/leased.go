package limiter

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"listedge/limiter/lease"
)

const (
	sweepEvery = 100 * time.Millisecond // buckets that hold something are looked at

	// maxSwept calls are begun by a sweep, so that requests do not wait for what can.
	maxSwept = 64
)

// leased decides by tokens that are leased from Redis.
type leased struct {
	l      *Limiter
	store  store
	mode   FailureMode
	budget int64 // a request waits for Redis so long at least: microseconds
	id     string

	closed  atomic.Bool
	running sync.WaitGroup // heartbeats, and what ends them
	shards  [maxShards]atomic.Pointer[shard]

	mu     sync.Mutex           // guards all below; taken after a bucket's
	active map[*Bucket]struct{} // that hold something or have a debt
	sweeps *time.Timer          // runs while there are any
}

func newLeased(l *Limiter, o Options, s store) *leased {
	d := &leased{l: l, store: s, mode: o.FailureMode, budget: cmp.Or(o.Budget, DefaultBudget).Microseconds(),
		id: cmp.Or(o.NodeID, rand.Text()), active: make(map[*Bucket]struct{})}
	d.sweeps = time.AfterFunc(time.Hour, d.sweep)
	d.sweeps.Stop()
	d.shardOf(0)
	return d
}

// shardOf returns the shard of that index. The first one always exists.
func (d *leased) shardOf(index uint8) *shard {
	if s := d.shards[index].Load(); s != nil {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return d.shards[0].Load()
	}
	s := d.shards[index].Load()
	if s == nil {
		s = newShard(d, int(index))
		d.shards[index].Store(s)
	}
	return s
}

// findShards begins heartbeats at all masters of a Cluster. It does so before this node
// needs their buckets, so that the other nodes count it there.
func (d *leased) findShards() {
	for i := range maxShards {
		if index := d.store.shardOf(membersKey(i)); int(index) == i {
			d.shardOf(index)
		}
	}
}

func (d *leased) open(b *Bucket, _ int64) { b.shard = d.store.shardOf(b.key) }

func (d *leased) idle(b *Bucket) bool {
	return b.waiters == nil && !b.pending && b.lease.Forgettable(d.l.now())
}

func (d *leased) setPolicy(b *Bucket, p Policy) {
	b.lease.SetPolicy(p)
	d.fetchIfDue(b, d.l.now())
}

// markPending marks a bucket for a call and returns its shard, where the caller
// enqueues it. It looks the shard up, because the Cluster may have moved the slot.
// b.mu is held, as below.
func (d *leased) markPending(b *Bucket) *shard {
	b.pending, b.shard = true, d.store.shardOf(b.key)
	d.track(b)
	return d.shardOf(b.shard)
}

// fetchIfDue queues a call for which no request waits, if one is due.
func (d *leased) fetchIfDue(b *Bucket, now int64) {
	if !b.pending && b.lease.Due(now) && !d.shardOf(b.shard).refuses() {
		d.l.counts.prefetches.Add(1)
		d.markPending(b).enqueue(b)
	}
}

// needed: Redis has the bucket.
func (d *leased) needed(*Bucket) bool { return false }

// part is one of a request's buckets. If there is no such bucket, its outcome is
// Granted.
type part struct {
	bucket *Bucket
	answer
	answers  chan answer // the request waits here for the bucket's answer
	fallback bool        // this node decided without Redis
	untaken  bool        // no token was taken
	soon     bool        // refused without Redis, although the quota may not be used up

	// unknownQuota: this node does not know what is left of the quota. While Redis answers
	// others, it does not take the quota for full because one answer is late.
	unknownQuota bool
}

// parts are those of the key, of the workspace and of its quota. The quota comes last: it
// loses no token to a request that a rate is known to refuse.
type parts [3]part

// refused reports whether a bucket refused the request.
func (p *parts) refused() bool {
	return p[0].outcome == lease.Denied || p[1].outcome == lease.Denied || p[2].outcome == lease.Denied
}

func (d *leased) decide(now int64, q request) Decision {
	var all parts
	needRemote, refused := false, false
	for i, b := range q.buckets {
		p := &all[i]
		if p.bucket, p.outcome = b, lease.Granted; b != nil {
			d.decidePart(p, now, q.cost, refused)
			needRemote = needRemote || p.outcome == lease.NeedRemote
			refused = refused || p.outcome == lease.Denied
		}
	}
	r := Decision{Allowed: true, Source: SourceLease}
	if needRemote && !refused {
		r.Source = d.decideRemote(&all)
		now = d.l.now()
	}
	d.conclude(&r, &all, now, &q)
	return r
}

// decidePart is the fast path: a lease that has a token, or one that knows there is
// none. refused: the request is anyway, so that no token is taken. A request of no
// cost is not refused.
func (d *leased) decidePart(p *part, now, cost int64, refused bool) {
	b := d.l.buckets.lock(p.bucket)
	defer b.mu.Unlock()
	p.bucket = b
	if cost == 0 {
		p.untaken, p.status = true, b.lease.Status(now, d.shardOf(b.shard).down.Load())
		return
	}
	switch {
	case !refused:
		p.outcome = b.lease.Take(now)
	case b.lease.Denies(now):
		p.outcome = lease.Denied
	default:
		p.untaken = true
	}
	p.answer = b.answerOf(p.outcome, now)
	d.fetchIfDue(b, now)
}

// conclude makes the decision of the outcomes, and gives tokens back that another
// bucket's refusal made useless.
func (d *leased) conclude(r *Decision, all *parts, now int64, q *request) {
	refused := all.refused()
	for i := range all {
		p := &all[i]
		if p.bucket == nil {
			continue
		}
		r.add(Which(i+1), p.bucket.within(p.status, now, q, p.soon))
		if refused && p.outcome == lease.Granted && !p.untaken {
			d.refund(p.bucket, now, p.fallback)
		} else if !refused && p.fallback {
			d.l.counts.fallback.Add(1)
		}
	}
}

// refund takes a token back into the lease, or sends it to the bucket: at once
// where the bucket is small, else with what goes there next.
func (d *leased) refund(b *Bucket, now int64, fallback bool) {
	b = d.l.buckets.lock(b)
	defer b.mu.Unlock()
	if !b.lease.Refund(now, fallback) {
		return
	}
	if !b.lease.Policy.Leased() && !b.pending && !d.shardOf(b.shard).refuses() {
		d.markPending(b).enqueue(b)
	} else {
		d.track(b)
	}
}

// decideRemote brings all parts, of which none was refused, to an outcome: by Redis,
// or by this node where that does not answer in time.
func (d *leased) decideRemote(all *parts) (by Source) {
	by = SourceLease
	if d.wait(all) {
		by = SourceRedis
	}
	now := d.l.now()
	for i := range all {
		if p := &all[i]; p.outcome == lease.NeedRemote && !all.refused() {
			d.decideFallback(p, now)
			by = SourceLocalFallback
		}
	}
	return by
}

// wait has all parts wait for their buckets, no longer than the shard's link says,
// and reports whether any did.
func (d *leased) wait(all *parts) bool {
	var s *shard // of all: see KeyBucket
	call := make([]*Bucket, 0, len(all))
	for i := range all {
		if p := &all[i]; p.outcome == lease.NeedRemote {
			if to := d.enter(p, &call); to != nil {
				s = to
			}
		}
	}
	if s == nil {
		return false
	}
	if len(call) > 0 {
		s.enqueue(call...)
	}
	wait := s.link.Wait()
	for i := range all {
		if all[i].unknownQuota { // without its answer the request is refused
			wait = lease.MaxWait
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(wait)*time.Microsecond)
	defer cancel()
	for i := range all {
		p := &all[i]
		if p.answers == nil {
			continue
		}
		select {
		case p.answer = <-p.answers:
		case <-ctx.Done():
			if !p.bucket.leave(p.answers) {
				p.answer = <-p.answers // at the very moment the wait was over
			}
		}
	}
	return true
}

// enter tries once more, and where there is nothing, has the part wait, and returns
// for which shard: unless an answer has taken longer than anybody waits. call gains
// the bucket where no call of it is on its way.
func (d *leased) enter(p *part, call *[]*Bucket) *shard {
	b := d.l.buckets.lock(p.bucket)
	defer b.mu.Unlock()
	p.bucket = b
	now, s := d.l.now(), d.shardOf(b.shard)
	late := s.unreachable() || b.lease.Unanswered(now, s.fleet())
	if p.unknownQuota = b.until != 0 && b.lease.IsUnknown(); p.unknownQuota {
		late = s.refuses()
	}
	if p.answer = b.answerOf(b.lease.Retry(now), now); p.outcome != lease.NeedRemote || late {
		return nil
	}
	p.answers = make(chan answer, 1)
	if b.waiters == nil {
		b.waiters = new(waiters)
	}
	b.waiters.all = append(b.waiters.all, p.answers)
	if !b.pending {
		s = d.markPending(b)
		*call = append(*call, b)
	}
	return s
}

// decideFallback is what becomes of a request that Redis cannot be asked about.
func (d *leased) decideFallback(p *part, now int64) {
	b := d.l.buckets.lock(p.bucket)
	defer b.mu.Unlock()
	p.bucket, p.fallback = b, true
	ok, retry := false, heartbeatInterval.Microseconds()
	s := d.shardOf(b.shard)
	if p.unknownQuota = p.unknownQuota && b.lease.IsUnknown() && !s.refuses(); d.mode != FailDeny && (d.mode == FailAllow || !p.unknownQuota) {
		ok, retry = b.lease.TakeFallback(now, s.fleet(), d.mode == FailAllow)
	}
	p.outcome, p.status = lease.Granted, b.lease.Status(now, true)
	if !ok {
		if p.soon = b.until != 0 && (p.unknownQuota || !b.lease.UsedUp(now)); p.soon {
			retry = heartbeatInterval.Microseconds()
		}
		p.outcome, p.status = lease.Denied, p.status.Refused(retry)
		return
	}
	d.track(b)
}

// track has the bucket looked at by the sweeps. b.mu is held.
func (d *leased) track(b *Bucket) {
	if b.tracked {
		return
	}
	b.tracked = true
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.active) == 0 && !d.closed.Load() {
		d.sweeps.Reset(sweepEvery)
	}
	d.active[b] = struct{}{}
}

// tracked are the buckets that hold something or have a debt.
func (d *leased) tracked() []*Bucket {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*Bucket, 0, len(d.active))
	for b := range d.active {
		all = append(all, b)
	}
	return all
}

// sweep looks at the tracked buckets: what is idle goes back, and debts are sent.
func (d *leased) sweep() {
	now, begun := d.l.now(), 0
	for _, b := range d.tracked() {
		b.mu.Lock()
		s := d.shardOf(b.shard)
		due, active := b.lease.Sweep(now, s.fleet())
		if due && !b.pending && begun < maxSwept && !s.refuses() {
			d.markPending(b).enqueue(b)
			begun++
		}
		if !active && !b.pending {
			b.tracked = false
			d.mu.Lock()
			delete(d.active, b)
			d.mu.Unlock()
		}
		b.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(d.active) == 0:
		d.active = make(map[*Bucket]struct{}) // the memory of many is not kept for none
	case !d.closed.Load():
		d.sweeps.Reset(sweepEvery)
	}
}

// close has no more calls, sweeps and shards begin, gives back what this node holds,
// the most tokens first, and leaves the fleet. Where ctx ends first, what is in
// flight ends by its own timeout.
func (d *leased) close(ctx context.Context) error {
	d.mu.Lock()
	before := d.closed.Swap(true)
	d.sweeps.Stop()
	d.mu.Unlock()
	if before {
		return nil
	}
	buckets, held := map[*shard][]*Bucket{}, map[*Bucket]int64{}
	for _, b := range d.tracked() {
		b.mu.Lock()
		s := d.shardOf(b.shard)
		buckets[s], held[b] = append(buckets[s], b), b.lease.Holds(d.l.now())
		b.mu.Unlock()
	}
	d.eachShard(func(s *shard) {
		slices.SortFunc(buckets[s], func(a, b *Bucket) int { return cmp.Compare(held[b], held[a]) })
		d.running.Go(func() { s.close(ctx, buckets[s]) })
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.running.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *leased) eachShard(do func(s *shard)) {
	for i := range d.shards {
		if s := d.shards[i].Load(); s != nil {
			do(s)
		}
	}
}
