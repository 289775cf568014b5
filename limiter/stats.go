package limiter

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a limiter's life so far.
type Stats struct {
	Allowed BySource
	Refused BySource

	RedisTrips    uint64 // round trips to Redis
	RedisCalls    uint64 // script calls in them
	RedisErrors   uint64 // failed visits, other than
	RedisTimeouts uint64 // those that missed the budget or timed out

	Breaker  string        // closed, half-open or open; empty without Redis
	Degraded time.Duration // for which the breaker was not closed

	Returned       uint64 // tokens given back
	ReturnsDropped uint64 // tokens that were not, Redis being slow or away
	DebtSettled    uint64 // tokens spent locally and debited in Redis since
	Owing          int    // buckets that still have such tokens
	Buckets        int    // held by the in-process store
}

// BySource counts decisions by who made them.
type BySource struct{ Unlimited, Blocked, Memory, Redis, LocalFallback uint64 }

// tally is what Stats is made of.
type tally struct {
	decisions [2][sources]atomic.Uint64 // refused, allowed

	errors, timeouts, returned, dropped, settled atomic.Uint64
}

func (t *tally) count(d Decision) {
	result := 0
	if d.Allowed {
		result = 1
	}
	t.decisions[result][d.Source].Add(1)
}

func (t *tally) bySource(result int) BySource {
	n := &t.decisions[result]
	return BySource{
		Unlimited:     n[SourceUnlimited].Load(),
		Blocked:       n[SourceBlocked].Load(),
		Memory:        n[SourceMemory].Load(),
		Redis:         n[SourceRedis].Load(),
		LocalFallback: n[SourceLocalFallback].Load(),
	}
}

// fail counts a failed visit to Redis and keeps its reason.
func (l *Limiter) fail(err error) {
	var timeout net.Error
	if errors.Is(err, errBudget) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		l.tally.timeouts.Add(1)
	} else {
		l.tally.errors.Add(1)
	}
	l.outage.mu.Lock()
	l.outage.last = err
	l.outage.mu.Unlock()
}

// Stats returns a snapshot.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Refused:        l.tally.bySource(0),
		Allowed:        l.tally.bySource(1),
		RedisErrors:    l.tally.errors.Load(),
		RedisTimeouts:  l.tally.timeouts.Load(),
		Returned:       l.tally.returned.Load(),
		ReturnsDropped: l.tally.dropped.Load(),
		DebtSettled:    l.tally.settled.Load(),
	}
	if l.local != nil {
		s.Buckets = l.local.size()
		return s
	}
	if l.redis != nil {
		s.RedisTrips, s.RedisCalls = l.redis.trips.Load(), l.redis.calls.Load()
	}
	s.Breaker = l.breaker.State().String()
	s.Degraded = l.outage.total(l.clock())
	l.owingMu.Lock()
	s.Owing = len(l.owing)
	l.owingMu.Unlock()
	return s
}
