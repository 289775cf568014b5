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

// memory is the first tier: pages of this process, in a budget of bytes.
//
// Ristretto knows keys by their hashes alone, takes Sets up later, and of two
// quick ones may keep the older. Hence the holder: it has the whole key,
// compared on every hit, and a page that is replaced in place, never by a
// second Set of another value. And hence put, which is through only when its
// Set is. A page that replaces one like it needs none, which takes the waking of
// two goroutines: ristretto goes by what it was told of the one before.
type memory struct {
	pages   *ristretto.Cache[[]byte, *holder]
	window  *window        // of those that ristretto does not keep
	gates   [64]gate       // get passes any of them, close shuts all: ristretto must not be closed beneath a Get
	near    sync.Pool      // of them: one that this processor passed last, for its line is there already
	passed  atomic.Uint32  // how many gates near was given
	putting [64]sync.Mutex // by the key's hash; puts of one key follow one another
	evicted atomic.Uint64
	chose   atomic.Bool // ristretto did, between pages, since there was no room for all
}

type gate struct {
	sync.RWMutex
	_ [40]byte // up to a cache line, so that gates do not slow each other down
}

type holder struct {
	key  []byte                // most lie in room, for a line of memory less to wait for
	page atomic.Pointer[Entry] // never nil once the holder is kept
	// until is when the holder is dropped, in nanoseconds (Unix): when the page's
	// time has ended, or up to a slack later.
	until atomic.Int64
	// pausedUntil is when a failed fill may be tried again, in nanoseconds
	// since the cache's start. Until then a stale page is served at once.
	pausedUntil atomic.Int64
	spot        atomic.Pointer[Spot] // that points to the holder; nil = none
	insisted    atomic.Uint64        // the change that the page was last read again and again for: its sequence

	room  [48]byte // what is written at every hit is not in one line with what is read
	asked atomic.Uint64
	since atomic.Int64 // when asked began to count, in nanoseconds since the cache's start
}

func newHolder(key []byte) *holder {
	h := &holder{}
	h.key = append(h.room[:0], key...)
	return h
}

// lives says whether it is not to be dropped yet.
func (h *holder) lives(now time.Time) bool { return now.UnixNano() < h.until.Load() }

// size is what the page and all around it take, in bytes.
func (h *holder) size() int64 { return h.page.Load().size(len(h.key)) }

// budgetShare is how much of the memory budget pages may fill. The rest is for
// what the allocator rounds them up by, an eighth, and for the garbage that
// replaced pages are until they are collected.
const budgetShare = 0.75

// typicalPage, in bytes, sizes ristretto's frequency counters.
const typicalPage = 4 << 10

func newMemory(budget int64) (*memory, error) {
	m := &memory{}
	m.near.New = func() any { return &m.gates[m.passed.Add(1)%uint32(len(m.gates))] }
	maxCost := int64(float64(budget) * budgetShare)
	m.window = newWindow(int64(float64(maxCost)*windowShare), func() { m.evicted.Add(1) })
	maxCost -= m.window.most
	var err error
	m.pages, err = ristretto.NewCache(&ristretto.Config[[]byte, *holder]{
		NumCounters: max(1000, 10*maxCost/typicalPage),
		MaxCost:     maxCost,
		BufferItems: 512,
		KeyToHash:   hash,
		OnExit:      (*holder).leave,
		OnReject:    func(i *ristretto.Item[*holder]) { m.turnedAway(i.Value) },
		OnEvict: func(i *ristretto.Item[*holder]) {
			if i.Expiration.IsZero() && i.Value != nil { // else its time had come, or it was gone before
				m.turnedAway(i.Value)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	return m, nil
}

// turnedAway keeps for a while what ristretto chose not to.
func (m *memory) turnedAway(h *holder) {
	m.chose.Store(true)
	m.window.keep(h)
}

// hash is where ristretto puts a key, and what it tells colliding keys by. The
// former is seeded by the process: clients choose what is searched for, and
// must not be able to choose collisions.
func hash(key []byte) (uint64, uint64) { return z.MemHash(key), xxhash.Sum64(key) }

// get returns the key's holder, or nil. It neither keeps nor changes key.
func (m *memory) get(key []byte) *holder {
	if h := m.inRistretto(key); h != nil {
		return h
	}
	h, often := m.window.get(key)
	if often {
		m.offer(key, h)
	}
	return h
}

func (m *memory) inRistretto(key []byte) *holder {
	g := m.near.Get().(*gate)
	g.RLock()
	h, ok := m.pages.Get(key)
	g.RUnlock()
	m.near.Put(g)
	if ok && bytes.Equal(h.key, key) {
		return h
	}
	return nil
}

// offer offers ristretto a page of the window, which it has since heard asked
// for, unless somebody is putting a newer one.
func (m *memory) offer(key []byte, h *holder) {
	mu := m.turn(key)
	if !mu.TryLock() {
		return
	}
	defer mu.Unlock()
	if m.window.holds(h) { // else a newer one may be put by now
		m.set(key, h)
	}
}

// turn is whose holder may put the key.
func (m *memory) turn(key []byte) *sync.Mutex {
	return &m.putting[xxhash.Sum64(key)%uint64(len(m.putting))]
}

// set has ristretto keep the page, or else the window. It is through only when
// that is done.
func (m *memory) set(key []byte, h *holder) {
	before := m.window.at(key)
	cost := h.size()
	h.page.Load().cost = cost
	if !m.pages.SetWithTTL(key, h, cost, max(1, time.Until(time.Unix(0, h.until.Load())))) { // too much at once
		m.window.keep(h)
	}
	m.pages.Wait()
	m.window.drop(before) // unless it was turned away again
}

// put keeps the page for as long as it may be served, and returns its holder.
// A page never replaces one that is newer. Once put has returned, get
// finds the page, unless there was no room for it, or it is too large to be kept.
func (m *memory) put(key []byte, p *Entry, life time.Duration) *holder {
	mu := m.turn(key)
	mu.Lock()
	defer mu.Unlock()
	h := m.get(key)
	if p.size(len(key)) > m.window.most { // a sixteenth of all: the others' room
		if h != nil && h.page.Load().newer(p) {
			return h
		}
		m.pages.Del(key)
		m.window.drop(m.window.at(key))
		m.evicted.Add(1)
		h = newHolder(key)
		h.page.Store(p)
		return h
	}
	if h == nil {
		h = newHolder(key)
	} else {
		old := h.page.Load()
		if old.newer(p) {
			return h
		}
		p.cost = old.cost
	}
	h.page.Store(p)
	there := m.inRistretto(key) == h // if it leaves from now on, then with this page
	if there && h.fits(life) {
		return h
	}
	h.until.Store(time.Now().Add(life + life/slack).UnixNano())
	if there && h.size()-p.cost > max(0, m.pages.RemainingCost()) {
		m.pages.Del(key) // only for a new key does ristretto make room
	}
	m.set(key, h)
	return h
}

// slack is the part of its life that a page may be kept for longer, and the
// part of its cost that one in its place may be smaller by.
const slack = 8

// fits says whether what ristretto was told holds for the present page, too,
// which is to be kept for life: nothing ends early, or is larger than it is
// counted.
func (h *holder) fits(life time.Duration) bool {
	page := h.page.Load()
	spared := page.cost - h.size()
	longer := time.Until(time.Unix(0, h.until.Load())) - life
	return spared >= 0 && spared <= page.cost/slack && longer >= 0 && longer <= life/slack
}

func (m *memory) close() {
	for i := range m.gates {
		m.gates[i].Lock()
		defer m.gates[i].Unlock()
	}
	m.pages.Close()
	m.window.close()
}

// used is the cost of what is kept, in bytes.
func (m *memory) used() int64 {
	return m.pages.MaxCost() - m.pages.RemainingCost() + m.window.used()
}
