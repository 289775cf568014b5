// Package page is what edge, cache and origin say to each other: which page is asked for (Query),
// what was read for it (Read), and why nothing was. A query also makes all that derives from it
// alone: the key of its page in caches, the JSON around the page's rows, and the cursor there.
package page

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// MaxLimit is the largest page, in rows.
const MaxLimit = 100

// MaxBytes bounds the rows of a page in bytes: a page that reaches it ends before its limit.
// The first row may be larger, so that a walk gets past every row that can be read. The
// widest row that the schema permits is 2 MB of JSON.
const MaxBytes = 4 << 20

// Query names one page: which rows, in which order, after which position, how
// many. It is a value; equal queries name the same page.
type Query struct {
	List   *list.List
	Tenant string        // whose rows: List.Owner of the caller's tenant
	Order  int           // index in List.Orders
	Match  uint64        // all rows have these list.Value.Bit; at most one of each filter
	Search string        // trimmed; empty = no search
	After  list.Position // empty = from the start
	Limit  int           // rows, 1-100
}

// TextOf returns the bytes as a text that shares their memory: it holds until they change.
// A query that a request has brought is parsed so, because a hit allocates nothing.
func TextOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Clone returns the query with memory of its own.
func (q Query) Clone() Query {
	q.Search, q.After = strings.Clone(q.Search), list.Position(strings.Clone(string(q.After)))
	return q
}

// AppendKey appends the key of the query's page in Redis and of collapsed requests. It
// is injective: equal keys name equal queries. Tenant and search have their lengths in front.
func (q *Query) AppendKey(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(q.Tenant)))
	dst = append(dst, q.Tenant...)
	dst = append(dst, q.List.Digest[:]...)
	dst = append(dst, byte(q.Order), byte(q.Limit))
	dst = binary.BigEndian.AppendUint64(dst, q.Match)
	dst = binary.AppendUvarint(dst, uint64(len(q.Search)))
	dst = append(dst, q.Search...)
	return append(dst, q.After...)
}

// What a body has around its rows, which is followed by the request id: BodyEnd if there is no further page, else its cursor between
// BodyNext and BodyNextEnd.
const (
	BodyStart   = `{"data":[`
	BodyEnd     = `],"page":{"hasMore":false,"nextCursor":null}`
	BodyNext    = `],"page":{"hasMore":true,"nextCursor":"`
	BodyNextEnd = `"}`
)

// Frame returns what the body of the query's page has before its rows (head), and behind them
// up to where the request id goes (end):
//
//	{"data":[…],"page":{"hasMore":…,"nextCursor":…}
//
// more = the list has rows behind last; then next is the cursor there, a substring of end.
func (q *Query) Frame(last *list.Row, more bool) (head, end, next string) {
	if !more {
		return BodyStart, BodyEnd, ""
	}
	behind := q.Behind(last)
	end = string(append(behind.AppendCursor([]byte(BodyNext)), BodyNextEnd...))
	return BodyStart, end, end[len(BodyNext) : len(end)-len(BodyNextEnd)]
}

// Behind returns the query for the page of the same list that begins behind a row.
func (q *Query) Behind(r *list.Row) Query {
	behind := *q
	behind.After = q.List.Position(r, q.Order)
	return behind
}

// A cursor is a list.Position as a text that clients send back unchanged:
//
//	base64url( checksum 4 | version 1 | scope 8 | position ≤ 371 )
//
// checksum (CRC-32C of what follows) detects a damaged cursor. scope (a hash of the list's name,
// order, filters and search) detects a cursor of another list. A cursor contains no secret
// and needs none, because the workspace comes from the API key. It needs no state on any
// node and never expires.

// MaxCursor is the longest cursor, in characters.
const MaxCursor = 512

const (
	cursorVersion = 2
	cursorHead    = 4 + 1 + 8
)

// Errors of ParseCursor.
var (
	ErrCursorMalformed = errors.New("not a cursor of this service")
	ErrCursorForeign   = errors.New("cursor of another list: name, sort, search and filters must stay as they were")
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	cursorText = base64.RawURLEncoding.Strict() // strict: one text per cursor
)

// AppendCursor appends the cursor of the query's position.
func (q *Query) AppendCursor(dst []byte) []byte {
	return sealCursor(dst, append(beginCursor(cursorVersion, q.scopeHash()), q.After...))
}

// ParseCursor reads a cursor for the query, whose scope must be set already. It appends the
// cursor's bytes to room, and the position holds until they change.
// Errors: ErrCursorMalformed, ErrCursorForeign.
func (q *Query) ParseCursor(room *[]byte, text []byte) (list.Position, error) {
	raw, err := openCursor(room, text, cursorVersion, q.scopeHash())
	if err != nil {
		return "", err
	}
	p := list.Position(TextOf(raw))
	if !q.List.IsPosition(q.Order, p) {
		return "", ErrCursorMalformed
	}
	return p, nil
}

// beginCursor makes the bytes of a cursor up to what it says.
func beginCursor(version byte, scope uint64) []byte {
	raw := append(make([]byte, 4, 128), version) // after the checksum
	return binary.BigEndian.AppendUint64(raw, scope)
}

// sealCursor appends the cursor of the bytes, whose checksum it sets.
func sealCursor(dst, raw []byte) []byte {
	binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
	return cursorText.AppendEncode(dst, raw)
}

// openCursor appends the bytes of a cursor to room, and returns those of what it says.
// Errors: ErrCursorMalformed, ErrCursorForeign.
func openCursor(room *[]byte, text []byte, version byte, scope uint64) ([]byte, error) {
	if len(text) > MaxCursor || bytes.ContainsAny(text, "\r\n") { // which base64 would skip
		return nil, ErrCursorMalformed
	}
	from := len(*room)
	decoded, err := cursorText.AppendDecode(*room, text)
	*room = decoded
	raw := decoded[from:]
	if err != nil || len(raw) < cursorHead || raw[4] != version || binary.BigEndian.Uint32(raw) != crc32.Checksum(raw[4:], castagnoli) {
		return nil, ErrCursorMalformed
	}
	if binary.BigEndian.Uint64(raw[5:]) != scope {
		return nil, ErrCursorForeign
	}
	return raw[cursorHead:], nil
}

func (q *Query) scopeHash() uint64 {
	var space [1024]byte // a search has up to 480, and each of 64 values 8
	return xxhash.Sum64(append(q.List.AppendScope(space[:0], q.Order, q.Match), q.Search...))
}

// Read is what a read found of the query's list: the rows behind the position, in the list's
// order. They may be more than a page.
type Read struct {
	Rows []list.Row
	End  bool                 // the list ends with them
	At   changefeed.ReadPoint // which changes they show

	Misfold *Misfold // of a verification; nil = the database folds all rows as the node does

	Began time.Time     // when the statement was sent, also if it failed; zero = none was sent
	Took  time.Duration // how long it took
}

// Misfold is a row whose folds (list.Folds) are others in the database.
type Misfold struct {
	Row            list.Row
	Node, Database string
}

// Kind is a class of errors that callers handle alike.
type Kind string

func (k Kind) Error() string { return string(k) }

// Kinds of errors of a read. The first three are temporary: the caller may serve an older
// page, or try again later.
const (
	ErrUnavailable = Kind("database unavailable")
	ErrOverloaded  = Kind("too many queries at once")
	ErrTimeout     = Kind("query took too long")
	// ErrNotAllowed: the role lacks a right. Other tables may still be readable.
	ErrNotAllowed = Kind("the database does not let this node read")
	// ErrSchema: a table is missing, or has other columns than the list.
	ErrSchema = Kind("the tables are not those of the lists")
	// ErrRow: the API cannot show a row: its value is out of bounds, or it is too long to be
	// read. The schema's constraints refuse such rows.
	ErrRow = Kind("a row cannot be shown")
)

// ErrWrongServer: a server answered that is not the followed primary. What that one would have
// answered is unknown.
var ErrWrongServer = fmt.Errorf("%w: not the primary", ErrUnavailable)
