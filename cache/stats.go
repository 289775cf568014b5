package cache

import (
	"time"

	"github.com/sony/gobreaker/v2"

	"listedge/cache/freshness"
	"listedge/internal/histogram"
)

// Stats is a snapshot for metrics.
type Stats struct {
	Fills, FillErrors          uint64
	Evicted                    uint64
	MemoryBytes, MemoryBudget  int64
	RedisCalls, RedisFailures  uint64
	RedisCorrupt, RedisDropped uint64
	RedisBreakerOpen           bool
	RedisFailure               error // why entries are not read from Redis or not stored there; nil = they are

	Mode                   Mode
	Bound                  time.Duration      // --freshness-bound
	ProofAge               time.Duration      // since the moment of the last proof: all changes before it are applied
	Lists                  int                // lists whose changes are known
	Changes                uint64             // changes of lists that were applied
	Compared               map[string]uint64  // comparisons of entries with later changes, by outcome: kept, or why the entry is not current
	RingBytes, RingChanges int                // the memory of the remembered changes, and their number
	Rejected               map[string]uint64  // entries that were read and not admitted, by reason
	Lag                    histogram.Snapshot // from a commit, by the primary's clock, until it was applied here, by this machine's clock

	Refreshes, RefreshesDropped uint64 // hot entries refreshed ahead of requests; those not refreshed because the queue was full
	Joined                      uint64 // pages that were joined from entries in memory
	NextPages, NextPagesDropped uint64 // next pages prefetched; those not prefetched because the queue was half full
}

// Rejections are the reasons for not admitting an entry: the keys of Stats.Rejected.
func Rejections() (all []string) {
	for a := freshness.Admitted + 1; a < freshness.Admissions; a++ {
		all = append(all, a.String())
	}
	return all
}

// Comparisons are the outcomes of comparing an entry with changes: the keys of
// Stats.Compared.
func Comparisons() (all []string) {
	for c := range freshness.Concerns {
		all = append(all, c.String())
	}
	return all
}

// Stats returns the counts since the start and the current state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
		Refreshes: c.refresher.refreshed.Load(), RefreshesDropped: c.refresher.dropped.Load(),
		Joined:    c.joiner.joined.Load(),
		NextPages: c.refresher.prefetched.Load(), NextPagesDropped: c.refresher.prefetchesDropped.Load(),
		Mode: c.Mode(), Bound: c.options.Bound, Rejected: map[string]uint64{}, Compared: map[string]uint64{},
	}
	s.Lag.Add(&c.lag)
	if r := c.redis; r != nil {
		s.RedisCalls, s.RedisFailures = r.calls.Load(), r.failures.Load()
		s.RedisCorrupt, s.RedisDropped = r.corrupt.Load(), r.dropped.Load()
		s.RedisBreakerOpen, s.RedisFailure = r.breaker.State() != gobreaker.StateClosed, r.failure()
	}
	if c.options.Bound > 0 {
		known := c.tracker.Stats()
		s.ProofAge, s.Lists = c.clock.Now()-known.Proof, known.Lists
		s.Changes, s.RingBytes, s.RingChanges = known.Changes, known.RingBytes, known.RingChanges
		for outcome, n := range known.Compared {
			s.Compared[freshness.Concern(outcome).String()] = n
		}
	}
	for a := freshness.Admitted + 1; a < freshness.Admissions; a++ {
		s.Rejected[a.String()] = c.admissions[a].Load()
	}
	return s
}

// ProofAge returns the time since the moment of the last proof: all changes before it are
// applied.
func (c *Cache) ProofAge() time.Duration { return c.clock.Now() - c.tracker.Stats().Proof }
