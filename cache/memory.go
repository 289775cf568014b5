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

// memory is the first tier: entries in this process, in a budget of bytes.
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
	window    *window        // entries that ristretto rejects or evicts
	puts      [64]sync.Mutex // by the key's hash: puts of one key are in sequence
	evicted   atomic.Uint64
	closing   sync.Once
}

// slot has a key and its current entry. Moments are those of boottime.Clock.
type slot struct {
	key       []byte
	entry     atomic.Pointer[Entry] // never nil once the slot is stored
	expiresAt atomic.Int64          // the end of the entry's life, in nanoseconds (Unix)
	cost      int64                 // the bytes that ristretto counts; guarded by the mutex of the key's puts

	pausedUntil atomic.Int64  // until this moment a stale entry is served at once, because a fill has failed
	requests    atomic.Uint64 // for the entry since countedFrom
	countedFrom atomic.Int64  // the moment when requests was last reset
	retriedFor  atomic.Uint64 // the sequence of the last change for which retryUntilVisible was called
}

func (s *slot) isExpired(now time.Time) bool { return now.UnixNano() >= s.expiresAt.Load() }

// size is what the slot and its entry occupy, in bytes.
func (s *slot) size() int64 { return s.entry.Load().size(len(s.key)) }

// budgetShare is the part of the memory budget that entries may fill. The rest is
// for the rounding of the allocator, an eighth, and for replaced entries that the
// garbage collector has not freed yet.
const budgetShare = 0.75

// typicalEntry is the size of an entry, in bytes, for which ristretto's frequency
// counters are dimensioned.
const typicalEntry = 4 << 10

func newMemory(budget int64) (*memory, error) {
	m := &memory{}
	maxCost := int64(float64(budget) * budgetShare)
	m.window = newWindow(int64(float64(maxCost)*windowShare), func() { m.evicted.Add(1) })
	maxCost -= m.window.budget
	var err error
	m.ristretto, err = ristretto.NewCache(&ristretto.Config[[]byte, *slot]{
		NumCounters: max(1000, 10*maxCost/typicalEntry),
		MaxCost:     maxCost,
		BufferItems: 512,
		KeyToHash:   hash,
		OnReject:    func(i *ristretto.Item[*slot]) { m.window.add(i.Value) },
		OnEvict: func(i *ristretto.Item[*slot]) {
			if i.Expiration.IsZero() && i.Value != nil { // otherwise it has expired or was deleted
				m.window.add(i.Value)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	return m, nil
}

// hash returns the hash by which ristretto finds a key, and the one by which it
// distinguishes keys whose first hashes collide. The first has a random seed, so that
// clients, who choose search terms, cannot choose collisions.
func hash(key []byte) (uint64, uint64) { return z.MemHash(key), xxhash.Sum64(key) }

// get returns the key's slot, or nil. It neither keeps nor changes key.
func (m *memory) get(key []byte) *slot {
	if s := m.inRistretto(key); s != nil {
		return s
	}
	s, often := m.window.get(key)
	if often {
		m.offer(key, s)
	}
	return s
}

func (m *memory) inRistretto(key []byte) *slot {
	if s, ok := m.ristretto.Get(key); ok && bytes.Equal(s.key, key) {
		return s
	}
	return nil
}

// offer offers a slot of the window to ristretto again. It does nothing if put runs for
// the key.
func (m *memory) offer(key []byte, s *slot) {
	mu := m.putMutex(key)
	if !mu.TryLock() {
		return
	}
	defer mu.Unlock()
	if e := m.window.find(key); e != nil && e.Value.(*windowed).slot == s { // else a newer one may have been put
		m.set(s)
	}
}

func (m *memory) putMutex(key []byte) *sync.Mutex {
	return &m.puts[xxhash.Sum64(key)%uint64(len(m.puts))]
}

// set stores the slot in ristretto, or else in the window.
func (m *memory) set(s *slot) {
	before := m.window.find(s.key)
	s.cost = s.size()
	if !m.ristretto.SetWithTTL(s.key, s, s.cost, max(1, time.Until(time.Unix(0, s.expiresAt.Load())))) { // too many Sets at once
		m.window.add(s)
	}
	m.ristretto.Wait()
	m.window.drop(before) // unless ristretto rejected it again
}

// put stores the entry for the rest of its life, and returns its slot. It does not
// replace a newer entry. After put, get finds the entry, except if there was no room for
// it or if it is larger than the window (windowShare).
func (m *memory) put(key []byte, e *Entry, life time.Duration) *slot {
	mu := m.putMutex(key)
	mu.Lock()
	defer mu.Unlock()
	s := m.get(key)
	if s != nil && s.entry.Load().NewerThan(&e.Validity) {
		return s
	}
	tooLarge := e.size(len(key)) > m.window.budget
	if s == nil || tooLarge {
		s = &slot{key: bytes.Clone(key)}
	}
	s.entry.Store(e)
	if tooLarge {
		m.ristretto.Del(key)
		m.window.drop(m.window.find(key))
		m.evicted.Add(1)
		return s
	}
	s.expiresAt.Store(time.Now().Add(life).UnixNano())
	if s.size()-s.cost > m.ristretto.RemainingCost() && m.inRistretto(key) == s {
		m.ristretto.Del(key) // ristretto makes room only for a new key
	}
	m.set(s)
	return s
}

// extendLife begins a new life of the slot's entry, which was just used for a joined
// page. It does nothing before half of the present life is over.
func (m *memory) extendLife(s *slot, life time.Duration) {
	now := time.Now()
	if m.get(s.key) != s || s.expiresAt.Load()-now.UnixNano() > int64(life/2) {
		return
	}
	mu := m.putMutex(s.key)
	if !mu.TryLock() { // it is being replaced
		return
	}
	defer mu.Unlock()
	if m.get(s.key) == s {
		s.expiresAt.Store(now.Add(life).UnixNano())
		m.set(s)
	}
}

// close must not be called concurrently with get, because ristretto's Get panics if the
// cache is closed meanwhile.
func (m *memory) close() {
	m.closing.Do(m.ristretto.Close)
}

// used is the size of all stored entries, in bytes.
func (m *memory) used() int64 {
	return m.ristretto.MaxCost() - m.ristretto.RemainingCost() + m.window.used()
}
