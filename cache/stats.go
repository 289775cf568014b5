package cache

import (
	"time"

	"github.com/sony/gobreaker/v2"
)

// Stats is a snapshot for metrics.
type Stats struct {
	Fills, FillErrors          uint64
	Evicted                    uint64
	MemoryBytes, MemoryBudget  int64
	RedisCalls, RedisFailures  uint64
	RedisCorrupt, RedisDropped uint64
	RedisBreakerOpen           bool
	RedisFailure               error // why pages do not go through Redis, or not both ways; nil = they do

	Mode     Mode
	Bound    time.Duration     // --freshness-bound
	ProofAge time.Duration     // since the moment up to which everything is known to be applied
	Pairs    int               // whose changes are known
	Rejected map[string]uint64 // pages read and not kept, by why
	Lag      Histogram         // from commit to applied

	Refreshes, RefreshesDropped uint64 // pages read ahead of their readers; not read for want of room
	NextPages, NextPagesDropped uint64 // the same of walks
}

// Rejections are the reasons for not keeping a page: the keys of Stats.Rejected.
func Rejections() (all []string) {
	for v := kept + 1; v < verdicts; v++ {
		all = append(all, v.String())
	}
	return all
}

// Stats returns the counts since the start and the present state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
	}
	if r := c.redis; r != nil {
		s.RedisCalls, s.RedisFailures = r.calls.Load(), r.failures.Load()
		s.RedisCorrupt, s.RedisDropped = r.corrupt.Load(), r.dropped.Load()
		s.RedisBreakerOpen, s.RedisFailure = r.breaker.State() != gobreaker.StateClosed, r.failure()
	}
	s.Mode = c.Mode()
	if c.follow != nil {
		c.follow.describe(&s)
	}
	s.Refreshes, s.RefreshesDropped = c.ahead.done.Load(), c.ahead.dropped.Load()
	s.NextPages, s.NextPagesDropped = c.ahead.nextDone.Load(), c.ahead.nextDropped.Load()
	return s
}

// Mode is what the freshness of pages rests on at the moment.
func (c *Cache) Mode() Mode {
	switch {
	case !c.follow.on():
		return ModeTTL
	case c.follow.trusted(time.Now()):
		return ModeFollowed
	}
	return ModeUntrusted
}

// SetTTLMode says that changes cannot be followed, so that pages are judged
// by their age, or that they can again. A page goes from the one to the other
// as if it were new.
func (c *Cache) SetTTLMode(cannot bool) {
	if c.follow != nil {
		c.follow.ttl.Store(cannot)
	}
}
