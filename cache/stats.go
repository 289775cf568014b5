package cache

import (
	"time"

	"github.com/sony/gobreaker/v2"

	"listedge/cache/replica"
)

// Stats are the counts and the state of a cache, for metrics.
type Stats struct {
	Fills, FillErrors          uint64
	Evicted                    uint64
	MemoryBytes, MemoryBudget  int64
	RedisCalls, RedisFailures  uint64
	RedisCorrupt, RedisDropped uint64
	RedisBreakerOpen           bool
	RedisFailure               error // why entries are not read from Redis or not stored there; nil = they are

	Mode     Mode
	Bound    time.Duration // --freshness-bound
	ProofAge time.Duration // since the moment of the last proof: all changes before it are applied

	Cut     uint64 // pages made of the replica's rows
	Replica replica.Stats
}

// Stats returns the counts since the start and the current state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
		Mode: c.Mode(), Bound: c.options.Bound, Cut: c.cuts.Load(), Replica: c.replica.Stats(),
	}
	s.MemoryBytes += int64(s.Replica.Bytes)
	if r := c.redis; r != nil {
		s.RedisCalls, s.RedisFailures = r.calls.Load(), r.failures.Load()
		s.RedisCorrupt, s.RedisDropped = r.corrupt.Load(), r.dropped.Load()
		s.RedisBreakerOpen, s.RedisFailure = r.breaker.State() != gobreaker.StateClosed, r.failure()
	}
	if c.options.Bound > 0 {
		s.ProofAge = c.ProofAge()
	}
	s.Replica.Fills[replica.WrongServer] += c.wrongServers.Load()
	return s
}
