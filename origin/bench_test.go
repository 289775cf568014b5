package origin

import (
	"encoding/binary"
	"testing"

	"github.com/google/uuid"
)

// BenchmarkRow is one item on its way from Postgres' bytes to JSON.
func BenchmarkRow(b *testing.B) {
	id := uuid.New()
	var row []byte
	value := func(v []byte) { row = append(binary.BigEndian.AppendUint32(row, uint32(len(v))), v...) }
	for _, c := range Items.listed() {
		switch c.Kind {
		case Text:
			value([]byte("Chai, black, in boxes of \"20\" bags and tins"))
		case UUID:
			value(id[:])
		case Decimal, Number:
			value([]byte("18.0000"))
		case Bool:
			value([]byte{1})
		case Instant:
			value(binary.BigEndian.AppendUint64(nil, 800_000_000_000_000))
		}
	}
	page, err := appendRow(nil, Items.listed(), row)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		page, _ = appendRow(page[:0], Items.listed(), row)
	}
}
