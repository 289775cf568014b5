package origin

import (
	"encoding/binary"
	"testing"

	"github.com/google/uuid"
)

// BenchmarkRow is one item on its way from Postgres' bytes to JSON.
func BenchmarkRow(b *testing.B) {
	id := uuid.New()
	var values [][]byte
	for _, c := range Items.listed() {
		switch c.Kind {
		case Text:
			values = append(values, []byte("Chai, black, in boxes of \"20\" bags and tins"))
		case UUID:
			values = append(values, id[:])
		case Decimal, Number:
			values = append(values, []byte("18.0000"))
		case Bool:
			values = append(values, []byte{1})
		case Instant:
			values = append(values, binary.BigEndian.AppendUint64(nil, 800_000_000_000_000))
		}
	}
	row := appendRow(nil, Items.listed(), values)
	b.SetBytes(int64(len(row)))
	for b.Loop() {
		row = appendRow(row[:0], Items.listed(), values)
	}
}
