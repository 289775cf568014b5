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
	mu      sync.Mutex // guards all below; taken before a cell's
	cells   map[string]*cell
	sweepAt int      // size at which to drop the full ones, so that sweeping costs O(1) a new bucket
	_       [64]byte // keeps neighbours' locks off this cache line
}

// cell is where a bucket lies. It fills two cache lines, and the handle that
// keeps it is spared the look-up by key.
type cell struct {
	mu     sync.Mutex // guards all below
	gone   bool       // from the store: what is visited next is another cell, and full
	kept   bool       // by a handle: to drop it when it is full would save nothing
	policy *Policy    // of the handle, if the last visit went by it: see sip
	state  state
	key    string
}

func newLocalStore(now func() int64, maxBuckets int) *localStore {
	s := &localStore{now: now, seed: maphash.MakeSeed(), perShard: max(1, maxBuckets/shards)}
	for i := range s.shards {
		s.shards[i].cells = make(map[string]*cell)
		s.shards[i].sweepAt = min(sweepFrom, s.perShard)
	}
	return s
}

// visit never fails and, for buckets it holds, allocates nothing.
func (s *localStore) visit(_ context.Context, calls []call) error {
	for i := range calls {
		s.call(nil, nil, &calls[i])
	}
	return nil
}

// call carries out c, of a handle whose policy is p (nil = of none), and returns
// the bucket's cell: was, if it is not gone.
func (s *localStore) call(was *cell, p *Policy, c *call) (is *cell) {
	is = s.lock(was, c)
	defer is.mu.Unlock()
	is.kept, is.policy = is.kept || p != nil, nil
	if p != nil && c.policy == *p {
		is.policy = p
	}
	is.state.visit(c, s.now()) // read under the lock: times of one bucket never go back
	return is
}

// leave notes that the bucket's handle is gone.
func (s *localStore) leave(key string) {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.cells[key]; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept = false
		sh.dropFull(c, s.now())
	}
}

// lock returns the bucket's cell with its lock held.
func (s *localStore) lock(was *cell, c *call) *cell {
	for {
		if was != nil {
			if was.mu.Lock(); !was.gone {
				return was
			}
			was.mu.Unlock()
		}
		was = s.find(c)
	}
}

// find returns the bucket's cell, which is made where it is absent.
func (s *localStore) find(c *call) *cell {
	sh := s.shard(c.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	found := sh.cells[c.key]
	if found == nil {
		now := s.now()
		sh.makeRoom(now, s.perShard)
		found = &cell{key: c.key, state: fullState(c.policy, now)}
		sh.cells[c.key] = found
	}
	return found
}

func (s *localStore) shard(key string) *shard { return &s.shards[maphash.String(s.seed, key)%shards] }

// makeRoom for another bucket drops others when there are many.
func (sh *shard) makeRoom(now int64, limit int) {
	if len(sh.cells) < sh.sweepAt {
		return
	}
	for _, c := range sh.cells {
		c.mu.Lock()
		sh.dropFull(c, now)
		c.mu.Unlock()
	}
	for len(sh.cells) >= max(1, limit-limit/16) { // a few at a time, or every new one would sweep
		sh.evict(now)
	}
	sh.sweepAt = min(limit, max(sweepFrom, 2*len(sh.cells)))
}

// dropFull drops a bucket that is full by now and has no handle. Both locks are
// held, as in drop.
func (sh *shard) dropFull(c *cell, now int64) {
	if !c.kept && c.state.untilAbsent(0) <= now-c.state.ts {
		sh.drop(c)
	}
}

// evict drops, of a few buckets, the one that is full soonest. That one comes
// back full: as in Redis, a lost bucket costs at most one burst.
func (sh *shard) evict(now int64) {
	var victim *cell
	soonest, looked := int64(0), 0
	for _, c := range sh.cells {
		c.mu.Lock()
		left := c.state.untilAbsent(0) - (now - c.state.ts)
		c.mu.Unlock()
		if looked == 0 || left < soonest {
			victim, soonest = c, left
		}
		if looked++; looked == 8 {
			break
		}
	}
	victim.mu.Lock()
	sh.drop(victim)
	victim.mu.Unlock()
}

// drop makes a bucket absent.
func (sh *shard) drop(c *cell) {
	c.gone = true
	delete(sh.cells, c.key)
}

// size is the number of buckets held.
func (s *localStore) size() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.cells)
		sh.mu.Unlock()
	}
	return n
}
