package limiter

import (
	"context"

	"listedge/limiter/lease"
)

// direct decides without Redis: the buckets are in this process, and a request
// takes its tokens from there.
type direct struct {
	l *Limiter
}

func (d *direct) open(b *Bucket, now int64) {
	p := b.lease.Policy()
	b.lease.View = lease.View{Level: p.Burst * lease.Token, At: now}
}

// idle: a full bucket is as good as a new one.
func (d *direct) idle(b *Bucket) bool {
	p := b.lease.Policy()
	b.lease.Refill(&p, d.l.now())
	return b.lease.Level >= p.Burst*lease.Token
}

func (d *direct) decide(now int64, key, workspace *Bucket, cost int64) Decision {
	r := Decision{Allowed: true, Source: SourceMemory}
	key, workspace = d.l.buckets.lockBoth(key, workspace)
	defer unlock(key, workspace)
	if key != nil {
		d.check(&r, Key, key, now, cost)
	}
	if workspace != nil {
		d.check(&r, Workspace, workspace, now, cost)
	}
	if !r.Allowed {
		cost = 0 // a token of both, or of neither
	}
	if key != nil && r.Key.RetryIn == 0 {
		d.spend(&r.Key, key, cost)
	}
	if workspace != nil && r.Workspace.RetryIn == 0 {
		d.spend(&r.Workspace, workspace, cost)
	}
	return r
}

// check refuses where the bucket has not so many tokens.
func (d *direct) check(r *Decision, which Which, b *Bucket, now, cost int64) {
	p := b.lease.Policy()
	b.lease.Refill(&p, now)
	if b.lease.Level < cost*lease.Token {
		s := lease.StatusOf(&p, b.lease.Level)
		r.refuse(which, s.Next)
	}
}

func (d *direct) spend(s *Status, b *Bucket, cost int64) {
	p := b.lease.Policy()
	b.lease.Level -= cost * lease.Token
	s.show(lease.StatusOf(&p, b.lease.Level))
}

func (d *direct) refund(b *Bucket, now int64) {
	b = d.l.buckets.lock(b)
	defer b.mu.Unlock()
	p := b.lease.Policy()
	b.lease.Level = min(b.lease.Level+lease.Token, p.Burst*lease.Token)
}

// setPolicy counts the time that has passed under the policy it passed under.
func (d *direct) setPolicy(b *Bucket, p lease.Policy) {
	before := b.lease.Policy()
	b.lease.Refill(&before, d.l.now())
	b.lease.SetPolicy(p)
}

func (d *direct) stats(s *Stats) { s.Buckets = d.l.buckets.size() }

func (d *direct) close(context.Context) error { return nil }
