package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
	"sync"
	"sync/atomic"
	"time"

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

// cut makes the page's entry out of the replica, or returns old if that shows the same rows.
// It returns nil if the replica does not have all of them, or while nothing is proven. It
// allocates nothing if it returns old.
func (c *Cache) cut(v View, old *Entry, now time.Duration) *Entry {
	if !c.followed.trusted(now) {
		return nil
	}
	var space [lists.MaxLimit]*lists.Row
	key := v.List()
	p, rows, ok := c.replica.Read(space[:0], &key, v.After(), v.Limit(), lists.MaxBytes)
	if !ok {
		return nil
	}
	if old != nil && old.shows(&p, rows) {
		old.version.Store(p.Version)
		return old
	}
	c.cuts.Add(1)
	texts, last := make([]string, len(rows)), (*lists.Row)(nil)
	for i, r := range rows {
		texts[i], last = r.Text(), r
	}
	e := newEntry(v, texts, last, p.More, old)
	e.list, e.part, e.last = p.List, p.Last, last
	e.version.Store(p.Version)
	e.Proof = time.Duration(c.followed.proof.Load())
	e.ReadAt = e.Proof
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

// freshness says how an entry may be served.
type freshness uint8

// In the order in which an entry has them as it ages.
const (
	fresh   freshness = iota // serve it
	stale                    // read from the origin; if that fails, serve it marked as stale
	expired                  // never serve it
)

// judge says how the entry may be served. It is fresh by rule 1 if the replica's state is proven
// and the entry equals it or is ahead of it; by rule 2, for shareTime (a quarter of the bound)
// after it was read, while there is no proof or the replica lacks the page. Without changes to
// follow, the age decides.
func (c *Cache) judge(e *Entry, now time.Duration) freshness {
	age, ttl := c.age(e, now), c.options.TTL
	if c.following.Load() {
		trusted := c.followed.trusted(now)
		if trusted && (e.isCurrent() || e.isAhead()) || (!trusted || e.list == nil) && now-e.Proof < c.followed.shareTime() {
			return fresh
		}
		ttl = 0
	}
	switch {
	case age < ttl:
		return fresh
	case age < c.life():
		return stale
	}
	return expired
}

// age is how long ago the entry was last known to equal the database.
func (c *Cache) age(e *Entry, now time.Duration) time.Duration {
	at := e.Proof
	if c.following.Load() && e.isCurrent() {
		at = max(at, time.Duration(c.followed.proof.Load()))
	}
	return max(0, now-at)
}

// life is how long an entry may be served, fresh or stale, after it equalled the database.
func (c *Cache) life() time.Duration { return c.options.TTL + c.options.MaxStale }

// remaining is how much of its life an entry has left.
func (c *Cache) remaining(e *Entry) time.Duration {
	return max(c.life()-(c.clock.Now()-e.Proof), time.Millisecond)
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
