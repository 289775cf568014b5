package cache

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgraph-io/ristretto/v2/z"
)

// memory has finished pages, in a budget of bytes. While changes are followed, a page that it
// does not have is made anew from the rows of the replica.
//
// Ristretto identifies keys by their hashes alone and applies Sets later. Of two Sets
// in quick succession it may keep the older. For these reasons it stores slots, which
// have the key and a replaceable entry.
//
// Invariants:
//   - a slot has the whole key, which is compared on every hit;
//   - an entry is replaced in its slot, never by a Set of another slot, and only by
//     a newer one;
//   - put returns when its Set is applied.
type memory struct {
	ristretto *ristretto.Cache[[]byte, *slot]
	budget    int64          // bytes, of which replicaShare is the replica's while changes are followed
	puts      [64]sync.Mutex // by the key's hash: puts of one key are in sequence
	evicted   atomic.Uint64
	closing   sync.Once
}

// slot has a key and its current entry. Moments are those of boottime.Clock.
type slot struct {
	key   []byte
	entry atomic.Pointer[Entry] // never nil once the slot is stored
	cost  int64                 // the bytes that ristretto counts; guarded by the mutex of the key's puts

	pausedUntil atomic.Int64 // until this moment a stale entry is served at once, because a fill has failed
	storeAfter  atomic.Int64 // from this moment on a served entry is stored in Redis again
}

// size is what the slot and its entry occupy, in bytes.
func (s *slot) size() int64 { return s.entry.Load().size(len(s.key)) }

const (
	// budgetShare is the part of the memory budget that rows and entries may fill. The rest
	// is for the rounding of the allocator, an eighth, and for replaced entries that the
	// garbage collector has not freed yet.
	budgetShare = 0.75
	// replicaShare is the part of budgetShare that the replica's rows may fill. With 50 items
	// a page, entries and their compressed forms for as many pages take the rest.
	replicaShare = 0.8
	// releasedShare: rows that the replica has let go, and that entries may still hold, take
	// up to one releasedShare-th of the replica's part.
	releasedShare = 16
	// typicalEntry is the size of an entry, in bytes, for which ristretto's frequency
	// counters are dimensioned.
	typicalEntry = 4 << 10
)

func newMemory(budget int64) (*memory, error) {
	m := &memory{budget: int64(float64(budget) * budgetShare)}
	var err error
	m.ristretto, err = ristretto.NewCache(&ristretto.Config[[]byte, *slot]{
		NumCounters: max(1000, 10*m.budget/typicalEntry),
		MaxCost:     m.budget,
		BufferItems: 512,
		KeyToHash:   hash,
		OnReject:    func(*ristretto.Item[*slot]) { m.evicted.Add(1) },
		OnEvict: func(i *ristretto.Item[*slot]) {
			if i.Expiration.IsZero() && i.Value != nil { // otherwise it has expired or was deleted
				m.evicted.Add(1)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	return m, nil
}

// setShare leaves the replica its share of the budget, or none.
func (m *memory) setShare(following bool) {
	budget := m.budget
	if following {
		budget -= rowsBudget(m.budget)
	}
	m.ristretto.UpdateMaxCost(budget)
}

// rowsBudget is the replica's part of the memory for rows and entries.
func rowsBudget(budget int64) int64 { return int64(float64(budget) * replicaShare) }

// hash returns the hash by which ristretto finds a key, and the one by which it
// distinguishes keys whose first hashes collide. The first has a random seed, so that
// clients, who choose search terms, cannot choose collisions.
func hash(key []byte) (uint64, uint64) { return z.MemHash(key), xxhash.Sum64(key) }

// get returns the key's slot, or nil. It neither keeps nor changes key.
func (m *memory) get(key []byte) *slot {
	if s, ok := m.ristretto.Get(key); ok && bytes.Equal(s.key, key) {
		return s
	}
	return nil
}

func (m *memory) putMutex(key []byte) *sync.Mutex {
	return &m.puts[xxhash.Sum64(key)%uint64(len(m.puts))]
}

// put stores the entry for the rest of its life, and returns its slot. It does not
// replace a newer entry. After put, get finds the entry, except if ristretto rejects it.
func (m *memory) put(key []byte, e *Entry, life time.Duration) *slot {
	mu := m.putMutex(key)
	mu.Lock()
	defer mu.Unlock()
	s := m.get(key)
	if s != nil && s.entry.Load().newerThan(e) {
		return s
	}
	if s == nil {
		s = &slot{key: bytes.Clone(key)}
		s.storeAfter.Store(int64(e.ReadAt + storeInterval))
	}
	s.entry.Store(e)
	if s.size()-s.cost > m.ristretto.RemainingCost() && s.cost > 0 {
		m.ristretto.Del(key) // ristretto makes room only for a new key
	}
	s.cost = s.size()
	m.ristretto.SetWithTTL(s.key, s, s.cost, max(1, life))
	m.ristretto.Wait()
	return s
}

// replace puts the entry into a slot that memory has, unless the slot has a newer one.
func (m *memory) replace(s *slot, e *Entry, life time.Duration) {
	mu := m.putMutex(s.key)
	mu.Lock()
	grown := e.size(len(s.key)) > s.cost+s.cost/4
	if !grown && !s.entry.Load().newerThan(e) {
		s.entry.Store(e)
	}
	mu.Unlock()
	if grown {
		m.put(s.key, e, life)
	}
}

// dropOutdated removes the entries whose lists have changed since: they may be the last to
// hold rows that the replica has let go, and do not count them.
func (m *memory) dropOutdated() {
	var outdated []*slot
	m.ristretto.IterValues(func(s *slot) (stop bool) {
		if s.entry.Load().isOutdated() {
			outdated = append(outdated, s)
		}
		return false
	})
	for _, s := range outdated {
		mu := m.putMutex(s.key)
		mu.Lock()
		if s.entry.Load().isOutdated() {
			m.ristretto.Del(s.key)
			m.evicted.Add(1)
		}
		mu.Unlock()
	}
}

// close frees the entries. It must not be called concurrently with get, because ristretto's Get
// panics if the cache is closed meanwhile.
func (m *memory) close() {
	m.closing.Do(m.ristretto.Close)
}

// used is the size of all stored entries, in bytes.
func (m *memory) used() int64 {
	return m.ristretto.MaxCost() - m.ristretto.RemainingCost()
}
