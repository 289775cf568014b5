package limiter

import (
	"cmp"
	"context"
	"slices"
	"time"

	"listedge/limiter/lease"
)

// part is the part of a decision that one bucket makes. If there is no such bucket, it is
// Granted.
type part struct {
	bucket *Bucket
	reply
	replies  chan reply // the request waits here for Redis' answer; nil = it does not wait
	fallback bool       // this node decided without Redis
}

// parts are a decision's two parts: of the key's bucket and of the workspace's.
type parts [2]part

// refused reports whether a bucket refused the request.
func (all *parts) refused() bool {
	return slices.ContainsFunc(all[:], func(p part) bool { return p.outcome == lease.Denied })
}

// decideRates takes a token from each bucket, or none from any. Without cost it takes none, and
// refuses nothing.
func (l *Limiter) decideRates(now int64, buckets [2]*Bucket, cost int64) Decision {
	var all parts
	needRemote, refused := false, false
	r := Decision{Allowed: true, Source: SourceLease}
	for i, b := range buckets {
		p := &all[i]
		if p.bucket, p.outcome = b, lease.Granted; b != nil {
			l.takePart(p, now, cost, refused)
			needRemote = needRemote || p.outcome == lease.NeedRemote
			refused = refused || p.outcome == lease.Denied
			if p.fallback {
				r.Source = l.alone
			}
		}
	}
	if needRemote && !refused {
		r.Source = l.decideRemote(&all)
		now, refused = l.now(), all.refused()
	}
	for i := range all {
		p := &all[i]
		if p.bucket == nil {
			continue
		}
		if refused && p.outcome == lease.Granted { // the refusal of another bucket makes the token useless
			l.refund(p.bucket, now, p.fallback)
			p.status.Remaining++
		}
		r.add(Which(i+1), p.status)
	}
	return r
}

// refuses reports whether no new calls are made: the shard is down or closed.
func (s *shard) refuses() bool { return s.down.Load() || s.l.closed.Load() } // mutation: a heartbeat opens the way after Close

// takePart lets one bucket decide at once: its lease has a token, or knows that there is none, or
// Redis is down. If refused, because another bucket refuses the request, it takes no token: the
// outcome is NeedRemote or Denied.
func (l *Limiter) takePart(p *part, now, cost int64, refused bool) {
	b := p.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	outcome := lease.NeedRemote
	switch {
	case cost == 0:
		outcome = lease.Granted
	case !refused:
		outcome = b.lease.Take(now)
	case b.lease.Denies(now):
		outcome = lease.Denied
	}
	switch {
	case outcome == lease.NeedRemote && !refused && b.shard.refuses():
		l.takeFallback(p, now)
	case (outcome == lease.NeedRemote || cost == 0) && b.shard.refuses():
		p.fallback, p.reply = true, reply{outcome, b.lease.FallbackStatus(now, b.shard.fleet())}
	default:
		p.reply = b.replyOf(outcome, now)
		l.prefetch(b, now)
	}
}

// prefetch requests a call if one is due, before a request has to wait. b.mu is held.
func (l *Limiter) prefetch(b *Bucket, now int64) {
	if b.lease.Due(now) {
		l.requestCall(b)
	}
}

// requestCall queues a call for which no request waits. It does not, and reports false, if
// the bucket has a call already or its shard is down. b.mu is held.
func (l *Limiter) requestCall(b *Bucket) bool {
	if b.pending || b.shard.refuses() {
		return false
	}
	l.markPending(b)
	b.shard.enqueue(b)
	return true
}

// markPending marks a bucket for a call, which the caller queues at the bucket's shard.
// It looks the shard up, because the Cluster may have moved the slot. b.mu is held.
func (l *Limiter) markPending(b *Bucket) {
	b.pending, b.shard = true, l.shardOf(b.key)
}

// refund takes a token back into the lease, or else sends it to the bucket: at once if the
// bucket is not leased from, otherwise with the next call.
func (l *Limiter) refund(b *Bucket, now int64, fallback bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lease.Refund(now, fallback) {
		l.active.add(b)
		if !b.lease.Policy.Leased() {
			l.requestCall(b)
		}
	}
}

// decideRemote decides the parts that need Redis, while no bucket refuses the request: by
// Redis' answer, or without Redis if none comes in time or there is a sign that it will be late.
func (l *Limiter) decideRemote(all *parts) (by Source) {
	var s *shard // has all buckets of a request: see KeyBucket
	by, calls := SourceLease, make([]*Bucket, 0, len(all))
	for i := range all {
		if p := &all[i]; p.outcome == lease.NeedRemote {
			s = cmp.Or(l.startWaiting(p, &calls), s)
		}
	}
	if s != nil {
		by = SourceRedis
		s.enqueue(calls...)                                     // mutation: two buckets, two trips
		wait := time.Duration(s.link.Wait()) * time.Microsecond // mutation: requests wait for ever
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		for i := range all {
			if p := &all[i]; p.replies != nil {
				select {
				case p.reply = <-p.replies:
				case <-ctx.Done():
					p.bucket.leave(p)
				}
			}
		}
	}
	now := l.now()
	for i := range all {
		if p := &all[i]; p.outcome == lease.NeedRemote && !all.refused() {
			p.bucket.mu.Lock()
			l.takeFallback(p, now)
			p.bucket.mu.Unlock()
			by = SourceLocalFallback
		}
	}
	return by
}

// startWaiting tries the lease once more. If Redis is still needed, the part waits for the
// bucket, and startWaiting returns the shard; nil = it does not wait. If the bucket has no call
// yet, startWaiting appends it to calls.
func (l *Limiter) startWaiting(p *part, calls *[]*Bucket) *shard {
	b := p.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	now := l.now()
	p.reply = b.replyOf(b.lease.Retry(now), now)
	if p.outcome != lease.NeedRemote || b.shard.unreachable() || b.lease.Unanswered(now, b.shard.fleet()) {
		return nil
	}
	p.replies = make(chan reply, 1)
	b.waiters = append(b.waiters, p.replies)
	if !b.pending {
		l.markPending(b)
		*calls = append(*calls, b)
	}
	return b.shard
}

// takeFallback decides a part without Redis, by the failure mode. The bucket's mu is held.
func (l *Limiter) takeFallback(p *part, now int64) {
	b, ok, retry := p.bucket, false, heartbeatInterval.Microseconds()
	f := b.shard.fleet()
	if l.mode != FailDeny {
		ok, retry = b.lease.TakeFallback(now, f, l.mode == FailAllow)
		l.active.add(b)
	}
	p.fallback = true
	p.reply = reply{lease.Granted, b.lease.FallbackStatus(now, f)}
	if !ok {
		p.reply = reply{lease.Denied, lease.Refused(retry)}
	}
}

// Close waits for the calls in flight, gives back what this node holds, sends its debts, leaves
// the fleet, and ends the limiter's goroutines. No more calls, sweeps and shards begin. If ctx
// ends first, it gives no more back, and waits only for calls in flight, which callTimeout
// bounds. A Take after Close is decided by the fallback.
func (l *Limiter) Close(ctx context.Context) error {
	l.mu.Lock()
	before := l.closed.Swap(true)
	l.mu.Unlock()
	if before {
		return nil
	}
	l.running.Go(func() { l.quotas.close(ctx) })
	for _, s := range l.allShards() {
		l.running.Go(func() { s.close(ctx) })
	}
	l.running.Wait()
	return ctx.Err()
}

// shardOf returns the shard that has a key. After close there are no new ones.
func (l *Limiter) shardOf(key string) *shard {
	index := uint8(0)
	if l.store != nil {
		index = l.store.shardOf(key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shards[index] != nil:
	case l.closed.Load():
		index = 0
	default:
		l.shards[index] = newShard(l, int(index))
	}
	return l.shards[index]
}

func (l *Limiter) allShards() []*shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.shards[:]), func(s *shard) bool { return s == nil })
}
