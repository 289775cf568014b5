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

func (d *direct) open(*Bucket) {}

// evictable allows a bucket that is full and was not used for idleAfter: if a bucket in use
// were evicted, its next request would register it again, which costs more than the
// decision. If busy ones may be evicted, it allows any.
func (d *direct) evictable(b *Bucket, busy bool) bool {
	now, refilled := d.l.now(), b.lease.View
	refilled.Refill(&b.lease.Policy, now)
	return busy || refilled.Level >= b.lease.Policy.Units() && now-b.lease.At >= idleAfter.Microseconds()
}

const idleAfter = 10 * time.Second

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
			s = lease.Refused(b.lease.Policy.TimeFor(missing))
		}
		r.add(Which(i+1), s)
	}
	return r
}

// setPolicy refills the bucket at the old rate up to now, then sets the new policy.
func (d *direct) setPolicy(b *Bucket, p lease.Policy) {
	b.lease.Refill(&b.lease.Policy, d.l.now())
	b.lease.SetPolicy(p)
}

func (d *direct) stats(s *Stats) { s.Buckets = d.l.buckets.size() }

func (d *direct) close(context.Context) error { return nil }
