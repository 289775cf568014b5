package cache

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgraph-io/ristretto/v2/z"
)

// memory is the first tier: pages of this process, in a budget of bytes.
//
// Ristretto knows keys by their hashes alone and may keep the older of two
// quick Sets. Hence the holder: it has the whole key, compared on every hit,
// and a page that is replaced in place, never by a second Set of another value.
type memory struct {
	pages   *ristretto.Cache[[]byte, *holder]
	evicted atomic.Uint64
}

type holder struct {
	key  string
	page atomic.Pointer[Page]
	// pausedUntil is when a failed fill may be tried again, in nanoseconds
	// since the cache's start. Until then a stale page is served at once.
	pausedUntil atomic.Int64
}

// budgetShare is how much of the memory budget pages may fill. The rest is for
// the garbage that replaced pages are until they are collected.
const budgetShare = 0.65

// typicalPage, in bytes, sizes ristretto's frequency counters.
const typicalPage = 4 << 10

func newMemory(budget int64) (*memory, error) {
	m := &memory{}
	maxCost := int64(float64(budget) * budgetShare)
	var err error
	m.pages, err = ristretto.NewCache(&ristretto.Config[[]byte, *holder]{
		NumCounters: max(1000, 10*maxCost/typicalPage),
		MaxCost:     maxCost,
		BufferItems: 64,
		KeyToHash:   func(key []byte) (uint64, uint64) { return xxhash.Sum64(key), z.MemHash(key) },
		OnEvict:     func(*ristretto.Item[*holder]) { m.evicted.Add(1) },
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	return m, nil
}

// get returns the key's holder, or nil. It neither keeps nor changes key.
func (m *memory) get(key []byte) *holder {
	h, ok := m.pages.Get(key)
	if !ok || h.key != string(key) {
		return nil
	}
	return h
}

// put keeps the page for as long as it may be served, and returns its holder.
// A page never replaces one with a later proof.
func (m *memory) put(key []byte, p *Page, life time.Duration) *holder {
	h := m.get(key)
	if h == nil {
		h = &holder{key: string(key)}
	}
	for {
		old := h.page.Load()
		if old != nil && old.Proof.After(p.Proof) {
			return h
		}
		if h.page.CompareAndSwap(old, p) {
			break
		}
	}
	m.pages.SetWithTTL([]byte(h.key), h, p.size(len(key)), life)
	return h
}

func (m *memory) close() { m.pages.Close() }

// used is the cost of what is kept, in bytes.
func (m *memory) used() int64 { return m.pages.MaxCost() - m.pages.RemainingCost() }
