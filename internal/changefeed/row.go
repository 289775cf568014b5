package changefeed

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
)

// Row is one row that a transaction changed, as it left it: what the filters and
// the orders of lists go by.
type Row struct {
	ID    uuid.UUID
	Flags RowFlags

	// Neither of these is set for a row that is Gone or Same.

	CreatedAt int64 // microseconds since 1970
	// NameKey is the name in the alphabet of Change.NameOrder: keys compare as bytes as
	// the names do in the list by name. Empty = this name has none.
	NameKey string
}

// RowFlags say how a row is listed.
type RowFlags uint8

// The flags. A filter is the flags that a row must have.
const (
	RowGone     RowFlags = 1 << iota // no list of this workspace shows it: deleted, not active, or moved away
	RowSame                          // every list has it where it was in the version that the log named before: neither its position, nor what filters and searches go by, has changed
	RowTracked                       // stock is tracked
	RowLow                           // stock is low
	RowGoods                         // of type GOODS
	RowService                       // of type SERVICE
	RowCustomer                      // a contact
	RowSupplier                      // a contact
)

// Rows are the rows of one list that a transaction changed; nil = it may have
// changed any row. A transaction that changed a row twice names its last version.
type Rows []Row

// rowsVersion begins the encoding of Rows. Rows of another version are read as nil.
const rowsVersion = 1

// MarshalText implements encoding.TextMarshaler: base64 of the version and, for each
// row, flags 1, id 16 and, unless it is Gone or Same, created_at 8, key length 1, key.
func (r Rows) MarshalText() ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	b := []byte{rowsVersion}
	for i := range r {
		row := &r[i]
		b = append(append(b, byte(row.Flags)), row.ID[:]...)
		if row.Flags&(RowGone|RowSame) != 0 {
			continue
		}
		if len(row.NameKey) > 255 {
			return nil, fmt.Errorf("row %s: a name key of %d bytes", row.ID, len(row.NameKey))
		}
		b = binary.BigEndian.AppendUint64(b, uint64(row.CreatedAt))
		b = append(append(b, byte(len(row.NameKey))), row.NameKey...)
	}
	return base64.RawStdEncoding.AppendEncode(nil, b), nil
}

// UnmarshalText implements encoding.TextUnmarshaler. What it cannot read is nil: any
// row may have changed.
func (r *Rows) UnmarshalText(text []byte) error {
	*r = nil
	b, err := base64.RawStdEncoding.AppendDecode(nil, text)
	if err != nil || len(b) == 0 || b[0] != rowsVersion {
		return nil
	}
	rows := Rows{}
	for b = b[1:]; len(b) > 0; {
		if len(b) < 1+16 {
			return nil
		}
		row := Row{Flags: RowFlags(b[0]), ID: uuid.UUID(b[1:17])}
		b = b[17:]
		if row.Flags&(RowGone|RowSame) == 0 {
			if len(b) < 9 || len(b) < 9+int(b[8]) {
				return nil
			}
			row.CreatedAt = int64(binary.BigEndian.Uint64(b))
			row.NameKey = string(b[9 : 9+int(b[8])])
			b = b[9+int(b[8]):]
		}
		rows = append(rows, row)
	}
	*r = rows
	return nil
}
