package changefeed

import (
	"encoding/binary"
	"iter"
	"unicode/utf8"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Row is one row that a transaction changed, in the version that the transaction left:
// what the filters and the orders of lists compare.
type Row struct {
	ID    uuid.UUID
	Flags lists.Flags

	// A row that is Gone or Same has neither of these.

	CreatedAt int64  // microseconds since 1970
	NameKey   string // lists.NameKey of the name, cut; empty = not known
}

// The flags besides those of filters.
const (
	RowGone lists.Flags = 1 << iota // no list of this workspace has it: deleted, not active, or moved away
	RowSame                         // it differs from the version that the log named before in nothing that decides in which lists it is, and where
)

// IsPlaced reports whether the row has a position in lists that is to be compared.
func (r *Row) IsPlaced() bool { return r.Flags&(RowGone|RowSame) == 0 }

// maxNameKey is the length at which the keys of names are cut, in characters, so that keys
// of all scripts tell as many names apart. A changed row of any name takes less than 250
// bytes in Redis (TestARowTakesFewBytes).
const maxNameKey = 20

// NameKeyIsCut reports whether the name may have a longer key than NameKey.
func (r *Row) NameKeyIsCut() bool { return utf8.RuneCountInString(r.NameKey) >= maxNameKey }

// Rows are the rows of one list that a transaction changed, each in its last version, in
// the form in which Redis and the nodes store them. Empty = the transaction may have
// changed any row of the list. Numbers are sizes in bytes:
//
//	flags 1 | id 16 | created_at 8 | length of the name key 1 | name key
//
// A row that is not placed ends with its id.
type Rows string

const (
	rowSize       = 1 + 16
	placedRowSize = rowSize + 8 + 1 // without the name key
)

// PackRows makes Rows. It cuts the keys of names.
func PackRows(rows ...Row) Rows {
	b := make([]byte, 0, len(rows)*(placedRowSize+maxNameKey))
	for i := range rows {
		r := &rows[i]
		b = append(append(b, byte(r.Flags)), r.ID[:]...)
		if r.IsPlaced() {
			key := cutKey(r.NameKey)
			b = binary.BigEndian.AppendUint64(b, uint64(r.CreatedAt))
			b = append(append(b, byte(len(key))), key...)
		}
	}
	return Rows(b)
}

func cutKey(key string) string {
	n := 0
	for i := range key {
		if n++; n > maxNameKey {
			return key[:i]
		}
	}
	return key
}

// next unpacks the first row. ok is false if there is none, or not all of it.
func (rs Rows) next() (r Row, rest Rows, ok bool) {
	if len(rs) < rowSize {
		return r, "", false
	}
	r.Flags = lists.Flags(rs[0])
	copy(r.ID[:], rs[1:])
	if !r.IsPlaced() {
		return r, rs[rowSize:], true
	}
	if len(rs) < placedRowSize || len(rs) < placedRowSize+int(rs[placedRowSize-1]) {
		return r, "", false
	}
	r.CreatedAt = int64(binary.BigEndian.Uint64([]byte(rs[rowSize : rowSize+8])))
	end := placedRowSize + int(rs[placedRowSize-1])
	r.NameKey = string(rs[placedRowSize:end])
	return r, rs[end:], true
}

// All unpacks the rows.
func (rs Rows) All() iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for r, rest, ok := rs.next(); ok && yield(r); r, rest, ok = rest.next() {
		}
	}
}

// Len returns the number of rows.
func (rs Rows) Len() (n int) {
	for range rs.All() {
		n++
	}
	return n
}

// whole reports whether the bytes are rows, to the last one.
func (rs Rows) whole() bool {
	ok := true
	for ok && len(rs) > 0 {
		_, rs, ok = rs.next()
	}
	return ok
}

// appendRows appends rows as the log has them: before those of each list their length in
// bytes, a uvarint.
func appendRows(b []byte, all []Rows) []byte {
	for _, rows := range all {
		b = append(binary.AppendUvarint(b, uint64(len(rows))), rows...)
	}
	return b
}

// parseRows reads what appendRows wrote; ok is false if it cannot.
func parseRows(b string) (all []Rows, ok bool) {
	for len(b) > 0 {
		size, n := binary.Uvarint([]byte(b[:min(len(b), binary.MaxVarintLen64)]))
		if n <= 0 || size > uint64(len(b)-n) || !Rows(b[n:n+int(size)]).whole() {
			return nil, false
		}
		all, b = append(all, Rows(b[n:n+int(size)])), b[n+int(size):]
	}
	return all, true
}
