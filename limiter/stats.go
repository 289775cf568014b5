package limiter

import (
	"context"
	"errors"
	"net"
	"sync"
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
	RedisTimeouts uint64 // those that took longer than a request waits, or timed out

	Breaker  string        // closed, half-open or open, of several the worst; empty without Redis
	Degraded time.Duration // for which a breaker was not closed
	Failure  error         // why limits are not kept in Redis; nil = they are

	Leases       int    // buckets of which this node holds tokens
	LeasedHeld   int64  // these tokens
	TokensLeased uint64 // ever
	Prefetches   uint64 // leases asked for before the last one was spent
	Settles      uint64 // visits that gave leased tokens back
	OffLedger    uint64 // requests admitted that no bucket knew of at that time
	Nodes        int64  // in the fleet, as last counted; 0 = not known, or no Redis

	Returned       uint64 // tokens given back
	ReturnsDropped uint64 // tokens that were to go back, and may not have arrived
	DebtSettled    uint64 // tokens spent locally and debited in Redis since
	Owing          int    // buckets that still have such tokens
	Buckets        int    // held by the in-process store
}

// BySource counts decisions by who made them.
type BySource struct{ Unlimited, Blocked, Memory, Redis, Lease, LocalFallback uint64 }

// stripes spread the counts of decisions over cache lines.
const stripes = 32

// tally is what Stats is made of.
type tally struct {
	stripes [stripes]stripe
	next    atomic.Uint32

	errors, timeouts, returned, dropped, settled, leased, prefetches, settles, offLedger atomic.Uint64
}

type stripe struct {
	decisions [2][sources]atomic.Uint64 // refused, allowed
	_         [32]byte
}

// stripe hands the counters out in turn, to buckets.
func (t *tally) stripe() uint8 { return uint8(t.next.Add(1) % stripes) }

func (s *stripe) count(d Decision) {
	result := 0
	if d.Allowed {
		result = 1
	}
	s.decisions[result][d.Source].Add(1)
}

func (t *tally) bySource(result int) (by BySource) {
	for i := range t.stripes {
		n := &t.stripes[i].decisions[result]
		by.Unlimited += n[SourceUnlimited].Load()
		by.Blocked += n[SourceBlocked].Load()
		by.Memory += n[SourceMemory].Load()
		by.Redis += n[SourceRedis].Load()
		by.Lease += n[SourceLease].Load()
		by.LocalFallback += n[SourceLocalFallback].Load()
	}
	return by
}

// departed and landed count what calls carry.
func (t *tally) departed(c *call) {
	if c.need == 0 && c.ret > 0 && c.rel0+c.rel1 > 0 {
		t.settles.Add(1)
	}
}

func (t *tally) landed(c *call) {
	t.leased.Add(uint64(c.leased))
	t.settled.Add(uint64(c.debt))
}

// fail counts a failed visit to Redis and keeps its reason.
func (l *Limiter) fail(err error) {
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		l.tally.timeouts.Add(1)
	} else {
		l.tally.errors.Add(1)
	}
	l.outage.mu.Lock()
	l.outage.last = err
	l.outage.mu.Unlock()
}

// outage adds up the time for which a breaker was not closed.
type outage struct {
	mu    sync.Mutex // guards all below
	away  int        // Redis nodes that are
	since int64      // microseconds
	past  int64
	last  error // why Redis last failed
}

func (o *outage) turn(away bool, now int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if away {
		if o.away++; o.away == 1 {
			o.since = now
		}
		return
	}
	if o.away--; o.away == 0 {
		o.past += now - o.since
	}
}

func (o *outage) total(now int64) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away == 0 {
		return micros(o.past)
	}
	return micros(o.past + now - o.since)
}

func (o *outage) why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// Stats returns a snapshot.
func (l *Limiter) Stats() Stats {
	s := Stats{
		Refused:        l.tally.bySource(0),
		Allowed:        l.tally.bySource(1),
		RedisErrors:    l.tally.errors.Load(),
		RedisTimeouts:  l.tally.timeouts.Load(),
		TokensLeased:   l.tally.leased.Load(),
		Prefetches:     l.tally.prefetches.Load(),
		Settles:        l.tally.settles.Load(),
		OffLedger:      l.tally.offLedger.Load(),
		Returned:       l.tally.returned.Load(),
		ReturnsDropped: l.tally.dropped.Load(),
		DebtSettled:    l.tally.settled.Load(),
	}
	now := l.now()
	for _, d := range l.dispatchers() {
		for _, b := range d.watched() {
			if held := b.lease.holds(now); held > 0 {
				s.Leases++
				s.LeasedHeld += held
			}
			if b.lease.owing(now) {
				s.Owing++
			}
		}
		if state := d.breaker.State().String(); l.local == nil && (s.Breaker == "" || s.Breaker == "closed" || state == "open") {
			s.Breaker = state
		}
	}
	if l.local != nil {
		s.Buckets = l.local.size()
		return s
	}
	if l.redis != nil {
		s.RedisTrips, s.RedisCalls = l.redis.trips.Load(), l.redis.calls.Load()
	}
	if l.fleet != nil {
		s.Nodes = l.fleet.size.Load()
		if err := l.fleet.failed.Load(); err != nil && *err != nil {
			s.Failure = *err
		} else if s.Breaker != "closed" {
			s.Failure = l.outage.why()
		}
	}
	s.Degraded = l.outage.total(now)
	return s
}

func (l *Limiter) dispatchers() []*dispatcher {
	all := []*dispatcher{l.router}
	if l.cluster != nil {
		all = append(all, l.cluster.all()...)
	}
	return all
}
