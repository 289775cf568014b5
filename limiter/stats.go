package limiter

import "time"

// Stats are counts since the start of a limiter, and its present state.
type Stats struct {
	Allowed BySource
	Refused BySource

	RedisTrips    uint64 // round trips to Redis
	RedisCalls    uint64 // script calls in them
	RedisErrors   uint64 // failed trips that did not time out
	RedisTimeouts uint64 // trips that took longer than a request waits, or timed out

	Breaker  string        // closed or open; empty without Redis
	Degraded time.Duration // how long it has been open, in sum
	Failure  error         // why limits are not kept in Redis; nil = they are

	Leases           int    // buckets of which this node holds leased tokens
	LeasedHeld       int64  // the tokens that it holds
	TokensLeased     uint64 // the tokens that it has leased since the start
	Prefetches       uint64 // calls made before the last lease was spent
	Settles          uint64 // calls that gave idle tokens back
	FallbackAdmitted uint64 // requests admitted by the fallback
	Nodes            int64  // in the fleet, as last counted; 0 = not known, or no Redis

	ReturnsDropped uint64 // tokens given back by a call that may not have arrived
	DebtPaid       uint64 // tokens that the fallback spent, and that were debited in Redis later
	Owing          int    // buckets and quotas with such tokens that have not been debited yet
	Buckets        int    // in this process, without Redis

	Quotas []QuotaUse // those that are used the most
}

// BySource counts decisions by who made them. What a quota refused that is used up is in
// Quota, whoever decided.
type BySource struct{ Unlimited, Blocked, Memory, Redis, Lease, LocalFallback, Quota uint64 }

func (c *counts) bySource(result int) BySource {
	n := &c.decisions[result]
	return BySource{Unlimited: n[SourceUnlimited].Load(), Blocked: n[SourceBlocked].Load(), Memory: n[SourceMemory].Load(),
		Redis: n[SourceRedis].Load(), Lease: n[SourceLease].Load(), LocalFallback: n[SourceLocalFallback].Load()}
}

// Stats returns a snapshot.
func (l *Limiter) Stats() Stats {
	c := &l.counts
	s := Stats{
		Refused:          c.bySource(0),
		Allowed:          c.bySource(1),
		RedisTrips:       c.trips.Load(),
		RedisCalls:       c.calls.Load(),
		RedisErrors:      c.errors.Load(),
		RedisTimeouts:    c.timeouts.Load(),
		TokensLeased:     c.leased.Load(),
		Prefetches:       c.prefetches.Load(),
		Settles:          c.settles.Load(),
		FallbackAdmitted: c.fallback.Load(),
		ReturnsDropped:   c.dropped.Load(),
		DebtPaid:         c.debts.Load(),
	}
	s.Refused.Quota = c.quota.Load()
	l.decider.stats(&s)
	l.quotas.stats(&s)
	return s
}

func (d *leased) stats(s *Stats) {
	now := d.l.now()
	d.active.each(func(b *Bucket) {
		if held := b.lease.Holds(now); held > 0 {
			s.Leases++
			s.LeasedHeld += held
		}
		if b.lease.HasDebt() {
			s.Owing++
		}
	})
	s.Breaker = "closed"
	for _, k := range d.allShards() {
		k.stats(s, now)
	}
}

// stats adds the state of a shard. If there are several, the worst one counts.
func (s *shard) stats(all *Stats, now int64) {
	all.Nodes = max(all.Nodes, s.members.nodes.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	degraded := s.downFor
	if s.down.Load() {
		all.Breaker, all.Failure = "open", s.failure
		degraded += now - s.downAt
	}
	all.Degraded = max(all.Degraded, time.Duration(degraded)*time.Microsecond)
	if err := s.members.failed.Load(); err != nil && *err != nil {
		all.Failure = *err
	}
}
