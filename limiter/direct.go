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

// idle reports whether a new bucket would be the same, and this one was not used for
// idleAfter. A bucket in use that was evicted would be registered again by its next
// request, which costs more than the request's decision.
func (d *direct) idle(b *Bucket) bool {
	now := d.l.now()
	return now-b.lease.At >= idleAfter.Microseconds() && !d.spent(b, now)
}

const idleAfter = 10 * time.Second

// needed reports whether requests have spent of a quota: a new one would be full.
func (d *direct) needed(b *Bucket) bool { return b.until != 0 && d.spent(b, d.l.now()) }

// spent reports whether the bucket is not full. A quota whose period is over is not used
// again.
func (d *direct) spent(b *Bucket, now int64) bool {
	b.lease.Refill(&b.lease.Policy, now)
	return b.lease.Level < b.lease.Policy.Units() && !b.over()
}

func (d *direct) decide(now int64, q request) Decision {
	r, buckets := Decision{Allowed: true, Source: SourceMemory}, q.buckets
	d.l.buckets.lockAll(&buckets)
	defer unlock(&buckets)
	refused := false
	for _, b := range buckets {
		if b != nil {
			b.lease.Refill(&b.lease.Policy, now)
			refused = refused || b.lease.Level < q.cost*lease.Token
		}
	}
	for i, b := range buckets {
		if b == nil {
			continue
		}
		missing := q.cost*lease.Token - b.lease.Level
		if !refused { // take from all buckets or from none
			b.lease.Level -= q.cost * lease.Token
		}
		s := lease.StatusOf(&b.lease.Policy, b.lease.Level)
		if q.cost > 0 && missing > 0 {
			s = s.Refused(b.lease.Policy.TimeFor(missing))
		}
		r.add(Which(i+1), b.within(s, now, &q, false))
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
