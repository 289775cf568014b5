package cache

import (
	"time"

	"github.com/sony/gobreaker/v2"

	"listedge/cache/replica"
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

	Mode     Mode
	Bound    time.Duration // --freshness-bound
	ProofAge time.Duration // since the moment of the last proof: all changes before it are applied

	Cut     uint64            // pages made of the replica's rows
	Merges  map[string]uint64 // by what became of their rows
	Replica replica.Stats
}

// Outcomes are the keys of Stats.Merges.
func Outcomes() (all []string) {
	for o := range replica.Outcomes {
		if o != replica.Parked { // it has another one later
			all = append(all, o.String())
		}
	}
	return all
}

// Stats returns the counts since the start and the current state.
func (c *Cache) Stats() Stats {
	s := Stats{
		Fills: c.fills.Load(), FillErrors: c.fillErrors.Load(),
		Evicted: c.memory.evicted.Load(), MemoryBytes: c.memory.used(), MemoryBudget: c.options.Memory,
		Mode: c.Mode(), Bound: c.options.Bound, Cut: c.cuts.Load(), Merges: map[string]uint64{}, Replica: c.replica.Stats(),
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
	for o, n := range s.Replica.Fills {
		s.Merges[replica.Outcome(o).String()] = n
	}
	s.Merges[replica.WrongServer.String()] += c.wrongServers.Load()
	return s
}
