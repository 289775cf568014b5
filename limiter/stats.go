package limiter

import (
	"cmp"
	"time"
)

// Stats are counts since the start of a limiter, and its present state.
type Stats struct {
	Allowed, Refused [sources]uint64 // requests, by Source

	RedisTrips    uint64 // round trips to Redis
	RedisCalls    uint64 // script calls in them
	RedisErrors   uint64 // failed trips that did not time out
	RedisTimeouts uint64 // trips that took longer than a request waits, or timed out

	BreakerOpen bool          // no request waits for Redis
	Degraded    time.Duration // how long it has been open, in sum
	Failure     error         // why limits are not kept in Redis; nil = they are

	LeasedHeld   int64  // tokens that this node holds
	TokensLeased uint64 // since the start
	Nodes        int64  // in the fleet, as last counted; 0 = not known, or no Redis
	Owing        int    // buckets and quotas with tokens spent without Redis that it has not debited yet

	Quotas []QuotaUse // those that are used the most
}

// Stats returns a snapshot.
func (l *Limiter) Stats() Stats {
	c := &l.counts
	s := Stats{RedisTrips: c.trips.Load(), RedisCalls: c.calls.Load(), RedisErrors: c.errors.Load(), RedisTimeouts: c.timeouts.Load(),
		TokensLeased: c.leased.Load()}
	for source := range sources {
		s.Refused[source], s.Allowed[source] = c.decisions[0][source].Load(), c.decisions[1][source].Load()
	}
	l.quotas.stats(&s)
	if l.store == nil {
		return s
	}
	now := l.now()
	l.active.each(func(a account) {
		s.LeasedHeld += max(0, a.holds(now))
		if a.owes() {
			s.Owing++
		}
	})
	for _, k := range l.allShards() {
		k.stats(&s, now)
	}
	return s
}

// stats adds the state of a shard. If there are several, the worst one counts.
func (s *shard) stats(all *Stats, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all.Nodes = max(all.Nodes, s.nodes)
	degraded := s.downFor
	if s.down.Load() {
		all.BreakerOpen, all.Failure = true, s.failure
		degraded += now - s.downAt
	}
	all.Degraded = max(all.Degraded, time.Duration(degraded)*time.Microsecond)
	all.Failure = cmp.Or(s.silence, all.Failure)
}
