package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgraph-io/ristretto/v2/z"
	"github.com/klauspost/compress/flate"

	"listedge/cache/replica"
	"listedge/internal/lists"
)

// View names one page: a cut out of a list. Its methods may be called by several goroutines.
type View interface {
	Key() []byte            // names the page in memory and in Redis: AppendKey
	List() replica.Key      // the list
	After() lists.Position  // the position behind which the page begins; empty = the list's beginning
	Limit() int             // the most rows of the page, at most lists.MaxLimit
	Behind(*lists.Row) View // the page of the same list and limit that begins behind a row
	// Frame returns the body around the rows: head is before them, end behind them up to the
	// request id. more = the list has rows behind last; then next is the cursor there, a
	// substring of end. Commas separate rows.
	Frame(last *lists.Row, more bool) (head, end, next string)
}

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

	view View
	last *lists.Row     // the last row, by its pointer in list; nil = no row, or no list
	part *replica.Range // the range of list that has the end of the page
	fill *replica.Fill  // the rows as given to the replica; nil = not given, or the entry was cut

	deflating sync.Mutex // held while the compressed form is made
}

// newEntry makes the entry of a page with these rows. old is the entry that it replaces, or
// nil: if the bodies are equal, they share the compressed form.
func newEntry(v View, texts []string, last *lists.Row, more bool, old *Entry) *Entry {
	e := &Entry{view: v, texts: texts}
	e.head, e.end, e.Next = v.Frame(last, more)
	e.withBody(func(body []byte) {
		e.Size, e.CRC, e.ETag = len(body), crc32.ChecksumIEEE(body), TagOf(body)
	})
	if old != nil && old.ETag == e.ETag {
		e.deflated.Store(old.deflated.Load())
	}
	return e
}

// entryOf makes the entry of the first page of what was read behind the view's position.
// fill is what the replica was given; nil = it was given nothing.
func entryOf(v View, f *reading, fill *replica.Fill) *Entry {
	n := firstPage(f.Rows, v.Limit())
	texts, last := make([]string, n), (*lists.Row)(nil)
	for i := range texts {
		texts[i], last = f.Rows[i].Text(), &f.Rows[i]
	}
	e := newEntry(v, texts, last, n < len(f.Rows) || !f.End, nil)
	e.Proof, e.ReadAt, e.fill = f.readAt, f.readAt, fill
	return e
}

// firstPage returns how many of a fill's rows its first page shows.
func firstPage(rows []lists.Row, limit int) int {
	size := 0
	for i := range rows[:min(limit, len(rows))] {
		if size += len(rows[i].Text()); i > 0 && size > lists.MaxBytes {
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
func (e *Entry) shows(p *replica.Page, rows []*lists.Row) bool {
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

// isCurrent reports whether nothing has changed in the ranges of the entry's list since the
// entry was known to show its rows. It takes no lock.
func (e *Entry) isCurrent() bool { return e.list != nil && e.list.Version() == e.version.Load() }

// isOutdated reports whether the entry may show rows that its list does not have any more.
func (e *Entry) isOutdated() bool { return e.list != nil && !e.isCurrent() }

// isPending reports whether the entry's statement may have seen more than the replica shows.
func (e *Entry) isPending() bool { return e.fill != nil && e.fill.Outcome() == replica.Parked }

// isAhead reports whether the entry shows all that the replica shows, and more: a statement
// on the primary that the replica's snapshot does not cover came after that snapshot.
func (e *Entry) isAhead() bool { return e.isPending() && e.fill.At.Timeline == "" }

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

// AppendKey appends the key of a page: the workspace, then each part with its
// length in front. The encoding is injective for any parts: two different lists of
// parts of one workspace have different keys, and so has the same list in two
// workspaces. Memory, Redis and collapsing use the same key.
func AppendKey(dst []byte, workspace [16]byte, parts ...[]byte) []byte {
	dst = append(dst, workspace[:]...)
	for _, part := range parts {
		dst = binary.AppendUvarint(dst, uint64(len(part)))
		dst = append(dst, part...)
	}
	return dst
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
func (e *Entry) size(key int) int64 {
	n := e.Size / 3
	if d, ok := e.compressed(); ok {
		n = len(d)
	}
	if e.list == nil {
		n += e.Size + textRounding*len(e.texts)
	}
	return int64(n+len(e.end)+2*key+textPlace*len(e.texts)) + entryOverhead
}

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
