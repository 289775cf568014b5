package limiter

import (
	"context"
	"hash/maphash"
	"sync"
)

// shards spread the in-process buckets over locks; a power of two.
const shards = 64

// sweepFrom is the smallest size at which a shard looks for full buckets.
const sweepFrom = 64

// localStore keeps the buckets of a single node in its memory. As in Redis an
// absent bucket is a full one, so full buckets are dropped at will; it stays
// bounded even if none is full.
type localStore struct {
	now      func() int64 // microseconds, never backwards
	seed     maphash.Seed
	perShard int // buckets a shard may hold
	shards   [shards]shard
}

type shard struct {
	mu      sync.Mutex // guards all below
	buckets map[string]*state
	sweepAt int      // size at which to drop the full ones, so that sweeping costs O(1) a new bucket
	_       [64]byte // keeps neighbours' locks off this cache line
}

func newLocalStore(now func() int64, maxBuckets int) *localStore {
	s := &localStore{now: now, seed: maphash.MakeSeed(), perShard: max(1, maxBuckets/shards)}
	for i := range s.shards {
		s.shards[i].buckets = make(map[string]*state)
		s.shards[i].sweepAt = min(sweepFrom, s.perShard)
	}
	return s
}

// visit never fails and, for buckets it holds, allocates nothing.
func (s *localStore) visit(_ context.Context, calls []call) error {
	for i := range calls {
		c := &calls[i]
		sh := &s.shards[maphash.String(s.seed, c.key)%shards]
		sh.mu.Lock()
		now := s.now() // under the lock: times of one bucket never go back
		if b, ok := sh.buckets[c.key]; ok {
			b.visit(c, now)
		} else if fresh := fullState(c.policy, now); fresh.visit(c, now) && fresh.untilAbsent(0) > 0 {
			sh.insert(c.key, fresh, s.perShard)
		}
		sh.mu.Unlock()
	}
	return nil
}

// insert adds a bucket, dropping others first when there are many.
func (sh *shard) insert(key string, b state, limit int) {
	if len(sh.buckets) >= sh.sweepAt {
		sh.sweep(b.ts)
		for len(sh.buckets) >= max(1, limit-limit/16) { // a few at a time, or every insert would sweep
			sh.evict(b.ts)
		}
		sh.sweepAt = min(limit, max(sweepFrom, 2*len(sh.buckets)))
	}
	sh.buckets[key] = &b
}

// sweep drops the buckets that are full by now.
func (sh *shard) sweep(now int64) {
	for key, b := range sh.buckets {
		if b.untilAbsent(0) <= now-b.ts {
			delete(sh.buckets, key)
		}
	}
}

// evict drops, of a few buckets, the one that is full soonest. That one comes
// back full: as in Redis, a lost bucket costs at most one burst.
func (sh *shard) evict(now int64) {
	victim, soonest, looked := "", int64(0), 0
	for key, b := range sh.buckets {
		left := b.untilAbsent(0) - (now - b.ts)
		if looked == 0 || left < soonest {
			victim, soonest = key, left
		}
		if looked++; looked == 8 {
			break
		}
	}
	delete(sh.buckets, victim)
}

// size is the number of buckets held.
func (s *localStore) size() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.buckets)
		sh.mu.Unlock()
	}
	return n
}
