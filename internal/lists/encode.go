package lists

import "encoding/binary"

// rowsVersion begins the encoding of rows, in the log of changes and in pages in Redis. Numbers
// are sizes in bytes; all fields without one are varints:
//
//	version 3 | rows | for each: state 1 | id 16 | flags 1 | created_at | length of the name key | length of both texts | name key, text
//
// A row that is Gone ends with its id.
const rowsVersion = 3

// AppendRows appends the encoding of the rows.
func AppendRows(b []byte, rows []Row) []byte {
	b = binary.AppendUvarint(append(b, rowsVersion), uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		b = append(b, byte(r.State))
		b = append(b, r.ID[:]...)
		if r.State == Gone {
			continue
		}
		b = append(b, byte(r.Flags))
		b = binary.AppendVarint(b, r.CreatedAt)
		b = binary.AppendUvarint(b, uint64(r.key))
		b = binary.AppendUvarint(b, uint64(len(r.texts)))
		b = append(b, r.texts...)
	}
	return b
}

// ParseRows reads what AppendRows wrote, and returns what follows it. ok is false if it
// cannot. No row holds on to the memory of b.
func ParseRows(b []byte) (rows []Row, rest []byte, ok bool) {
	const least = 1 + 16 // bytes of a row
	if len(b) == 0 || b[0] != rowsVersion {
		return nil, nil, false
	}
	n, size := binary.Uvarint(b[1:])
	if b = b[1+max(0, size):]; size <= 0 || n > uint64(len(b)/least) {
		return nil, nil, false
	}
	if n > 0 { // else nil, as no rows were
		rows = make([]Row, n)
	}
	for i := range rows {
		r := &rows[i]
		if len(b) < least || b[0] >= byte(States) {
			return nil, nil, false
		}
		r.State = State(b[0])
		copy(r.ID[:], b[1:])
		b = b[least:]
		if r.State == Gone {
			continue
		}
		if len(b) == 0 {
			return nil, nil, false
		}
		r.Flags = Flags(b[0])
		b = b[1:]
		at, size := binary.Varint(b)
		b = b[max(0, size):]
		key, keySize := binary.Uvarint(b)
		b = b[max(0, keySize):]
		texts, textsSize := binary.Uvarint(b)
		b = b[max(0, textsSize):]
		if size <= 0 || keySize <= 0 || textsSize <= 0 || texts > uint64(len(b)) || key > min(texts, 4*NameKeyLength) {
			return nil, nil, false
		}
		r.CreatedAt, r.key, r.texts = at, uint16(key), string(b[:texts])
		b = b[texts:]
	}
	return rows, b, true
}
