package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/klauspost/compress/flate"

	"listedge/internal/changefeed"
)

// Entry is one page of a list, ready for the wire but for its last bytes: the
// request id, which every answer has of its own. Immutable once made but for
// how it stands and its compressed form, so any number of answers may be
// written from it at once.
type Entry struct {
	// What every hit reads is in the first lines of memory.
	sequence    atomic.Uint64 // how it stands to the changes this node knows: see tracker; 0 = not to be kept
	pair, whole *pairState    // what changes it
	Body        []byte        // JSON up to the request id
	Next        string        // the cursor of the next page; empty on the last

	deflated atomic.Pointer[[]byte] // what Deflate returns; nil until it is first asked for
	ETag     EntityTag              // of Body: equal on every node and in every encoding
	led      atomic.Bool            // the page after it was read ahead, or was to be
	CRC      uint32                 // CRC-32 (IEEE) of Body, which a gzip trailer goes on from

	// Proof is the latest moment at which the page is known to have equalled
	// the database: the beginning of the query that read it, if that was the primary's.
	Proof time.Time
	// begun is when the reading began: the proof of what the primary showed,
	// later than that of a standby's page, and not told by Redis.
	begun time.Time

	// How the page stands to the log of changes; empty where none is followed.
	View     View // of the statement that read the page
	Epoch    string
	Position changefeed.Position // the page showed all changes up to here

	deflating sync.Mutex // held while the deflated form is made

	cost int64 // what ristretto counts it as, in bytes; whose turn it is to put its key guards it
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

// compressFrom is the body size, in bytes, below which gzip makes answers longer.
const compressFrom = 256

// compressLevel: what is compressed at a miss must not cost more than the
// query. Of a page of 50 items level 1 takes a third, for 80 µs; level 6 takes
// a tenth less, for 290.
const compressLevel = 1

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, compressLevel)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a level out of range
	}
	return w
}}

// NewEntry makes an entry of a response body. The entry keeps body.
func NewEntry(body []byte, next string) *Entry {
	return &Entry{Body: body, Next: next, CRC: crc32.ChecksumIEEE(body), ETag: TagOf(body)}
}

// Deflate returns the body as deflate blocks, sync-flushed and open-ended; nil
// where that would not pay. The first who asks has it made, for as much as a
// query costs; a page that nobody wants compressed is not.
func (p *Entry) Deflate() []byte {
	if d := p.deflated.Load(); d != nil {
		return *d
	}
	p.deflating.Lock()
	defer p.deflating.Unlock()
	if d := p.deflated.Load(); d != nil {
		return *d
	}
	var d []byte
	if len(p.Body) >= compressFrom {
		if d = deflate(p.Body); len(d) >= len(p.Body) {
			d = nil
		}
	}
	p.deflated.Store(&d)
	return d
}

// isDeflated says whether somebody has asked for the page compressed, and what
// came of it.
func (p *Entry) isDeflated() ([]byte, bool) {
	if d := p.deflated.Load(); d != nil {
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

// Places are where what a hit reads of the page lies, for who prefetches it.
func (p *Entry) Places() (page, pair, body uintptr) {
	return uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(p.pair)), uintptr(unsafe.Pointer(unsafe.SliceData(p.Body)))
}

// size is what the page occupies, in bytes, all told. A compressed form that
// nobody has asked for yet may still come: it is counted as usual ones are.
func (p *Entry) size(key int) int64 {
	compressed := len(p.Body) / 3
	if d, ok := p.isDeflated(); ok {
		compressed = len(d)
	}
	return int64(len(p.Body)+compressed+len(p.ETag)+len(p.Next)+key) + pageOverhead
}

// stands says whether the page was, at some time, known to show all changes.
// One that was not is shared for a moment only.
func (p *Entry) stands() bool { return p.sequence.Load() != 0 }

// lastChange is the sequence of the latest change of what the page shows.
func (p *Entry) lastChange() uint64 { return max(p.pair.last.Load(), p.whole.last.Load()) }

// newer says whether the page is known to show more than another of the same
// key: by the log, or, where one of them does not stand in it, by when they
// were read. (Not by their proofs: a standby's page that stands would lose to
// one of the primary that was read earlier, and too early to stand.)
func (p *Entry) newer(than *Entry) bool {
	a, b := p.sequence.Load(), than.sequence.Load()
	if a == 0 || b == 0 || a == b {
		return p.begun.After(than.begun)
	}
	return a > b
}

// pageOverhead is what an entry costs beside its bytes: the structs, the
// slices' rounding up, the maps of ristretto, which counts 56 of them itself.
// Measured: 320 to 420 in all for a page read here, and for one from Redis up
// to 550, since it keeps the entry's head. See TestMemoryBudget.
const pageOverhead = 448
