package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/klauspost/compress/flate"

	"listedge/cache/replica"
	"listedge/internal/list"
	"listedge/internal/page"
)

// Entry is a finished response: one page of a list, ready for the wire except for its last
// bytes, the request id, which is new in every response. It keeps no body: its rows are those
// of the replica, which all entries share that show them.
//
// Invariant: an entry is immutable once it is made, except for its version and its
// compressed form, which are written atomically. So any number of responses may be written
// from it at once.
type Entry struct {
	// The fields that every hit reads come first, so that they are in few cache lines.
	head, end string   // of the body: before the rows, and behind them up to the request id
	texts     []string // of the rows
	Size      int      // of the body up to the request id, in bytes
	Next      string   // the cursor of the next page, a part of end; empty on the last
	deflated  atomic.Pointer[[]byte]
	CRC       uint32    // CRC-32 (IEEE) of the body, which a gzip trailer continues
	ETag      EntityTag // of the body: equal on every node and in every encoding

	list    *replica.List // the entry was cut out of it; nil = it was read, or found in Redis
	version atomic.Uint64 // the latest version of list at which the entry is known to show its rows

	// Proof is the latest moment at which the entry is known to have equalled the
	// database: if it was read, when its statement was about to begin.
	Proof time.Duration
	// ReadAt is when reading began. It orders entries of one key that were not cut.
	ReadAt time.Duration

	query *page.Query    // with memory of its own
	last  *list.Row      // the last row, by its pointer in list; nil = no row, or no list
	part  *replica.Range // the range of list that has the end of the page
	fill  *replica.Fill  // the rows as given to the replica; nil = not given, or the entry was cut

	deflating sync.Mutex // held while the compressed form is made
}

// newEntry makes the entry of a page with these rows. old is the entry that it replaces, or
// nil: if the bodies are equal, they share the compressed form.
func newEntry(q *page.Query, texts []string, last *list.Row, more bool, old *Entry) *Entry {
	e := &Entry{query: q, texts: texts}
	e.head, e.end, e.Next = q.Frame(last, more)
	e.withBody(func(body []byte) {
		e.Size, e.CRC, e.ETag = len(body), crc32.ChecksumIEEE(body), TagOf(body)
	})
	if old != nil && old.ETag == e.ETag {
		e.deflated.Store(old.deflated.Load())
	}
	return e
}

// entryOf makes the entry of the first page of what was read behind the query's position.
// fill is what the replica was given; nil = it was given nothing.
func entryOf(q *page.Query, f *reading, fill *replica.Fill) *Entry {
	n := firstPage(f.Rows, q.Limit)
	texts, last := make([]string, n), (*list.Row)(nil)
	for i := range texts {
		texts[i], last = f.Rows[i].Text(), &f.Rows[i]
	}
	e := newEntry(q, texts, last, n < len(f.Rows) || !f.End, nil)
	e.Proof, e.ReadAt, e.fill = f.readAt, f.readAt, fill
	return e
}

// firstPage returns how many of a fill's rows its first page shows.
func firstPage(rows []list.Row, limit int) int {
	size := 0
	for i := range rows[:min(limit, len(rows))] {
		size += len(rows[i].Text())
		if i > 0 && size > page.MaxBytes {
			return i
		}
	}
	return min(limit, len(rows))
}

// AppendBody appends the body up to the request id, from a row on; 0 = from the beginning. It
// stops when b has more than most bytes. Then next is the row to go on with, else -1.
func (e *Entry) AppendBody(b []byte, from, most int) (_ []byte, next int) {
	if from == 0 {
		b = append(b, e.head...)
	}
	for i := from; i < len(e.texts); i++ {
		if len(b) > most {
			return b, i
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e.texts[i]...)
	}
	return append(b, e.end...), -1
}

// bodies are buffers of withBody, each for a whole body.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// withBody calls f with the whole body, which f must not keep.
func (e *Entry) withBody(f func(body []byte)) {
	b := bodies.Get().(*[]byte)
	defer bodies.Put(b)
	*b, _ = e.AppendBody((*b)[:0], 0, math.MaxInt)
	f(*b)
}

// shows reports whether the entry was cut out of the page's list and has these rows.
func (e *Entry) shows(p *replica.Page, rows []*list.Row) bool {
	n := len(rows)
	if e.list != p.List || len(e.texts) != n || p.More != (e.Next != "") || n > 0 && e.last != rows[n-1] {
		return false
	}
	for i, r := range rows { // mostly the same strings, which takes no comparison of bytes
		if e.texts[i] != r.Text() {
			return false
		}
	}
	return true
}

// listKey names the entry's list.
func (e *Entry) listKey() replica.Key {
	if e.list != nil {
		return e.list.Key
	}
	return listOf(e.query)
}

// isCurrent reports whether nothing has changed in the ranges of the entry's list since the
// entry was known to show its rows. It takes no lock.
func (e *Entry) isCurrent() bool { return e.list != nil && e.list.Version() == e.version.Load() }

// isOutdated reports whether the entry may show rows that its list does not have any more.
func (e *Entry) isOutdated() bool { return e.list != nil && !e.isCurrent() }

// isPending reports whether the entry's statement may have seen more than the replica shows.
func (e *Entry) isPending() bool { return e.fill != nil && e.fill.Outcome() == replica.Parked }

// newerThan reports whether the entry is known to show more than another of the same key. One
// that was read shows more than one that was cut only while it is pending.
func (e *Entry) newerThan(o *Entry) bool {
	switch {
	case e.list == nil && o.list == nil:
		return e.ReadAt > o.ReadAt
	case e.list == o.list:
		return e.version.Load() > o.version.Load()
	}
	return e.isPending()
}

// EntityTag is a weak entity tag (RFC 9110, 8.8.3), the first half of a SHA-256.
type EntityTag [len(`W/""`) + 22]byte

func (t EntityTag) String() string { return string(t[:]) }

// TagOf returns the tag of a body.
func TagOf(body []byte) (tag EntityTag) {
	sum := sha256.Sum256(body)
	b := base64.RawURLEncoding.AppendEncode(append(tag[:0], `W/"`...), sum[:16])
	_ = append(b, '"')
	return tag
}

// minCompressed is the size of a body, in bytes, below which gzip would make a response longer.
const minCompressed = 256

// compressLevel is chosen so that compressing does not cost more than the query. Level 1
// reduces a page of 50 items to a third, in 80 µs. The result of level 6 is a tenth
// smaller, but takes 290 µs.
const compressLevel = 1

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, compressLevel)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a level out of range
	}
	return w
}}

// Deflate returns the body as deflate blocks, sync-flushed and without a final block. It
// returns nil if compressing does not make the body shorter. The first caller compresses,
// which costs as much as a query, so that entries are compressed only when a client wants
// it.
func (e *Entry) Deflate() []byte {
	if d, ok := e.compressed(); ok {
		return d
	}
	e.deflating.Lock()
	defer e.deflating.Unlock()
	if d, ok := e.compressed(); ok {
		return d
	}
	var d []byte
	if e.Size >= minCompressed {
		e.withBody(func(body []byte) { d = deflate(body) })
		if len(d) >= e.Size {
			d = nil
		}
	}
	e.deflated.Store(&d)
	return d
}

// compressed returns what Deflate returned before; ok is false if it was not called.
func (e *Entry) compressed() (d []byte, ok bool) {
	if d := e.deflated.Load(); d != nil {
		return *d, true
	}
	return nil, false
}

func deflate(body []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(body) / 4)
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	w.Reset(&out)
	_, _ = w.Write(body) // a Buffer takes everything
	_ = w.Flush()        // ends on a byte boundary, with no final block
	return bytes.Clone(out.Bytes())
}

// entryOverhead is the memory of an entry without its contents, in bytes: the structs,
// the rounding of the allocator, and ristretto's maps. See TestMemoryBudget.
const entryOverhead = 600

// What a text takes besides its own bytes: its string header, and the allocator's rounding.
const textPlace, textRounding = 16, 16

// size returns the memory of the entry in bytes, without the texts that it shares with the
// replica. If the entry is not compressed yet, it counts a compressed form of the usual size,
// because a client may still want it.
func (e *Entry) size() int64 {
	n := e.Size / 3
	if d, ok := e.compressed(); ok {
		n = len(d)
	}
	if e.list == nil {
		n += e.Size + textRounding*len(e.texts)
	}
	return int64(n+len(e.end)+len(e.query.Search)+len(e.query.After)+textPlace*len(e.texts)) + entryOverhead
}

// memory has finished pages, in a budget of bytes. While changes are followed, a page that it
// does not have is made anew from the rows of the replica.
//
// Ristretto gets the hashes of queries alone, and applies Sets later. Of two Sets in quick
// succession it may keep the older. For these reasons it stores slots, which have the query and a
// replaceable entry.
//
// Invariants:
//   - a slot has the whole query, which is compared on every hit;
//   - an entry is replaced in its slot, never by a Set of another slot, and only by
//     a newer one;
//   - put returns when its Set is applied.
type memory struct {
	ristretto *ristretto.Cache[uint64, *slot]
	seed      maphash.Seed   // at random, so that clients, who choose search terms, cannot choose collisions
	budget    int64          // bytes, of which replicaShare is the replica's while changes are followed
	puts      [64]sync.Mutex // by the query's hash: puts of one query are in sequence
	evicted   atomic.Uint64
	closing   sync.Once
}

// slot has a query and its current entry. Moments are those of boottime.Clock.
type slot struct {
	query *page.Query
	entry atomic.Pointer[Entry] // never nil once the slot is stored
	cost  int64                 // the bytes that ristretto counts; guarded by the mutex of the query's puts

	pausedUntil atomic.Int64 // until this moment a stale entry is served at once, because a fill has failed
	storeAfter  atomic.Int64 // from this moment on a served entry is stored in Redis again
}

const (
	// budgetShare is the part of the memory budget that rows and entries may fill. The rest
	// is for the rounding of the allocator, an eighth, and for replaced entries that the
	// garbage collector has not freed yet.
	budgetShare = 0.75
	// replicaShare is the part of budgetShare that the replica's rows may fill. With 50 items
	// a page, entries and their compressed forms for as many pages take the rest.
	replicaShare = 0.8
	// idsShare: which rows have changed takes up to one idsShare-th of the whole, out of the replica's part.
	idsShare = 8
	// releasedShare: rows that the replica has let go, and that entries may still hold, take
	// up to one releasedShare-th of the replica's part.
	releasedShare = 16
	// typicalEntry is the size of an entry, in bytes, for which ristretto's frequency
	// counters are dimensioned.
	typicalEntry = 4 << 10
)

func newMemory(budget int64) (*memory, error) {
	m := &memory{seed: maphash.MakeSeed(), budget: int64(float64(budget) * budgetShare)}
	var err error
	m.ristretto, err = ristretto.NewCache(&ristretto.Config[uint64, *slot]{
		NumCounters: max(1000, 10*m.budget/typicalEntry),
		MaxCost:     m.budget,
		BufferItems: 512,
		KeyToHash:   func(hash uint64) (uint64, uint64) { return hash, 0 },
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

// hash returns the hash by which ristretto finds the query's slot.
func (m *memory) hash(q *page.Query) uint64 { return maphash.Comparable(m.seed, *q) }

// get returns the query's slot, or nil. It neither keeps nor changes the query.
func (m *memory) get(q *page.Query) *slot {
	if s, ok := m.ristretto.Get(m.hash(q)); ok && *s.query == *q {
		return s
	}
	return nil
}

func (m *memory) putMutex(q *page.Query) *sync.Mutex {
	return &m.puts[m.hash(q)%uint64(len(m.puts))]
}

// put stores the entry for the rest of its life, and returns its slot. It does not
// replace a newer entry. After put, get finds the entry, except if ristretto rejects it.
func (m *memory) put(e *Entry, life time.Duration) *slot {
	mu := m.putMutex(e.query)
	mu.Lock()
	defer mu.Unlock()
	s := m.get(e.query)
	if s != nil && s.entry.Load().newerThan(e) {
		return s
	}
	if s == nil {
		s = &slot{query: e.query}
		s.storeAfter.Store(int64(e.ReadAt + storeInterval))
	}
	s.entry.Store(e)
	hash, cost := m.hash(e.query), e.size()
	if cost-s.cost > m.ristretto.RemainingCost() && s.cost > 0 {
		m.ristretto.Del(hash) // ristretto makes room only for a new key
	}
	s.cost = cost
	m.ristretto.SetWithTTL(hash, s, cost, max(1, life))
	m.ristretto.Wait()
	return s
}

// replace puts the entry into a slot that memory has, unless the slot has a newer one.
func (m *memory) replace(s *slot, e *Entry, life time.Duration) {
	mu := m.putMutex(e.query)
	mu.Lock()
	grown := e.size() > s.cost+s.cost/4
	if !grown && !s.entry.Load().newerThan(e) {
		s.entry.Store(e)
	}
	mu.Unlock()
	if grown {
		m.put(e, life)
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
		mu := m.putMutex(s.query)
		mu.Lock()
		if s.entry.Load().isOutdated() {
			m.ristretto.Del(m.hash(s.query))
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
