package origin

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"

	"listedge/internal/lists"
)

// A cursor is a lists.Position as a text that clients send back unchanged:
//
//	base64url( checksum 4 | version 1 | scope 8 | position ≤ 337 )
//
// checksum (CRC-32C of what follows) detects a damaged cursor. scope (a hash of collection,
// order, filters and search) detects a cursor of another list. A cursor contains no secret
// and needs none, because the workspace comes from the API key. It needs no state on any
// node and never expires.

// MaxCursor is the longest cursor, in characters.
const MaxCursor = 512

const (
	cursorVersion = 1
	cursorHead    = 4 + 1 + 8
)

// Errors of ParseCursor.
var (
	ErrCursorMalformed = errors.New("not a cursor of this service")
	ErrCursorForeign   = errors.New("cursor of another list: collection, sort, search and filters must stay as they were")
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	cursorText = base64.RawURLEncoding.Strict() // strict: one text per cursor
)

// AppendCursor appends the cursor of the query's position.
func (q *Query) AppendCursor(dst []byte) []byte {
	raw := make([]byte, cursorHead, 128)
	raw[4] = cursorVersion
	binary.BigEndian.PutUint64(raw[5:], q.scopeHash())
	raw = append(raw, q.After...)
	binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
	return cursorText.AppendEncode(dst, raw)
}

// ParseCursor reads a cursor for the query, whose scope must be set already. It appends the
// cursor's bytes to room, and the position holds until they change.
// Errors: ErrCursorMalformed, ErrCursorForeign.
func (q *Query) ParseCursor(room *[]byte, text []byte) (lists.Position, error) {
	if len(text) > MaxCursor || bytes.ContainsAny(text, "\r\n") { // which base64 would skip
		return "", ErrCursorMalformed
	}
	from := len(*room)
	decoded, err := cursorText.AppendDecode(*room, text)
	*room = decoded
	raw := decoded[from:]
	if err != nil || len(raw) < cursorHead || raw[4] != cursorVersion ||
		binary.BigEndian.Uint32(raw) != crc32.Checksum(raw[4:], castagnoli) {
		return "", ErrCursorMalformed
	}
	if binary.BigEndian.Uint64(raw[5:]) != q.scopeHash() {
		return "", ErrCursorForeign
	}
	p := lists.Position(TextOf(raw[cursorHead:]))
	var space [lists.PositionSize]byte
	if _, _, ok := q.Sort.Parse(space[:0], p); !ok {
		return "", ErrCursorMalformed
	}
	return p, nil
}

func (q *Query) scopeHash() uint64 {
	var space [512]byte // a search has up to 480
	return xxhash.Sum64(q.AppendScope(space[:0]))
}
