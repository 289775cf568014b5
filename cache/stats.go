package cache

import (
	"time"

	"listedge/cache/replica"
)

// Mode is how the freshness of pages is judged.
type Mode uint8

const (
	ModeTTL       Mode = iota // by their age: changes cannot be followed
	ModeUntrusted             // by changes, but there is no proof that is young enough
	ModeFollowed              // by changes
)

func (m Mode) String() string { return [...]string{"ttl", "untrusted", "followed"}[m] }

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
	Proven  uint64 // pages for requests with no-cache that memory had
	Replica replica.Stats
}
