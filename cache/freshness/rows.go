package freshness

import (
	"encoding/binary"
	"math"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

// rows are the rows of one list that a transaction changed, packed: flags 1, tag 4 and,
// unless the row is Gone or Same, created_at 8, id 16, length of the name key 1, name key.
// Empty = it may have changed any row. Most changes are one row that is Same: 5 bytes,
// where changefeed.Rows has 72.
type rows string

const (
	tagged = 1 + 4               // bytes of a row that is Gone or Same
	placed = tagged + 8 + 16 + 1 // and of any other, without its name key
)

func pack(all changefeed.Rows) rows {
	size := 0
	for i := range all {
		size += placed + len(all[i].NameKey)
	}
	b := make([]byte, 0, size)
	for i := range all {
		row := &all[i]
		b = append(b, byte(row.Flags))
		b = binary.BigEndian.AppendUint32(b, Tag(row.ID))
		if row.Flags&unplaced != 0 {
			continue
		}
		b = binary.BigEndian.AppendUint64(b, uint64(row.CreatedAt))
		b = append(b, row.ID[:]...)
		b = appendNameKey(b, row.NameKey)
	}
	return rows(b)
}

// appendNameKey appends the key behind its length, which is one byte. A key that is too
// long is encoded as not known.
func appendNameKey(b []byte, key string) []byte {
	if len(key) > math.MaxUint8 {
		key = ""
	}
	return append(append(b, byte(len(key))), key...)
}

// unplaced: of these rows the id says all.
const unplaced = changefeed.RowGone | changefeed.RowSame

// row is one row of rows. A row that is Gone or Same has only flags and a tag.
type row struct {
	tag uint32
	changefeed.Row
}

// next unpacks the first row.
func (rs rows) next() (first row, rest rows) {
	first.Flags = changefeed.RowFlags(rs[0])
	first.tag = uint32(rs[1])<<24 | uint32(rs[2])<<16 | uint32(rs[3])<<8 | uint32(rs[4])
	if first.Flags&unplaced != 0 {
		return first, rs[tagged:]
	}
	for _, b := range []byte(rs[tagged : tagged+8]) {
		first.CreatedAt = first.CreatedAt<<8 | int64(b)
	}
	first.ID = uuid.UUID([]byte(rs[tagged+8 : tagged+8+16]))
	end := placed + int(rs[placed-1])
	first.NameKey = string(rs[placed:end])
	return first, rs[end:]
}
