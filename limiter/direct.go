package limiter

import (
	"context"
	"time"

	"listedge/limiter/lease"
)

// direct is the decider without Redis: the buckets are in this process. A request
// takes its tokens from them.
type direct struct {
	l *Limiter
}

func (d *direct) open(b *Bucket, now int64) {
	b.lease.View = lease.View{Level: b.lease.Policy.Units(), At: now}
}

// idle reports whether the bucket is full, so that a new one would be the same, and was
// not used for idleAfter. A bucket in use that was evicted would be registered again by
// its next request, which costs more than the request's decision.
func (d *direct) idle(b *Bucket) bool {
	now := d.l.now()
	if now-b.lease.At < idleAfter.Microseconds() {
		return false
	}
	b.lease.Refill(&b.lease.Policy, now)
	return b.lease.Level >= b.lease.Policy.Units()
}

const idleAfter = 10 * time.Second

func (d *direct) decide(now int64, key, workspace *Bucket, cost int64) Decision {
	r := Decision{Allowed: true, Source: SourceMemory}
	key, workspace = d.l.buckets.lockBoth(key, workspace)
	defer unlock(key, workspace)
	buckets, refused := [2]*Bucket{key, workspace}, [2]bool{}
	for i, b := range buckets {
		if b != nil {
			b.lease.Refill(&b.lease.Policy, now)
			refused[i] = b.lease.Level < cost*lease.Token
		}
	}
	for i, b := range buckets {
		if b == nil {
			continue
		}
		if !refused[0] && !refused[1] { // take from both buckets or from none
			b.lease.Level -= cost * lease.Token
		}
		s := lease.StatusOf(&b.lease.Policy, b.lease.Level)
		if refused[i] {
			s = s.Refused(b.lease.Policy.TimeFor(cost*lease.Token - b.lease.Level))
		}
		r.add(Which(i+1), s)
	}
	return r
}

func (d *direct) refund(b *Bucket, _ int64, _ bool) {
	b = d.l.buckets.lock(b)
	defer b.mu.Unlock()
	b.lease.Level = min(b.lease.Level+lease.Token, b.lease.Policy.Units())
}

// setPolicy refills the bucket at the old rate up to now, then sets the new policy.
func (d *direct) setPolicy(b *Bucket, p lease.Policy) {
	b.lease.Refill(&b.lease.Policy, d.l.now())
	b.lease.SetPolicy(p)
}

func (d *direct) stats(s *Stats) { s.Buckets = d.l.buckets.size() }

func (d *direct) close(context.Context) error { return nil }
