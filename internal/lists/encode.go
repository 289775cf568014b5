package lists

import "encoding/binary"

// Rows have one encoding, in the log of changes and in pages. Numbers are sizes in bytes;
// all others are varints:
//
//	version 1 | rows | for each: flags 1 | id 16 | created_at | length of the name key | name key | length of the text | text
//
// A row that is Gone ends with its id.
const rowsVersion = 1

// AppendRows appends the encoding of the rows.
func AppendRows(b []byte, rows []Row) []byte {
	b = binary.AppendUvarint(append(b, rowsVersion), uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		if b = append(append(b, byte(r.Flags)), r.ID[:]...); r.Flags&Gone != 0 {
			continue
		}
		b = binary.AppendVarint(b, r.CreatedAt)
		for _, text := range [...]string{r.NameKey, r.Text} {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return b
}

// ParseRows reads what AppendRows wrote, and returns what follows it. ok is false if it
// cannot. No row holds on to the memory of b.
func ParseRows(b string) (rows []Row, rest string, ok bool) {
	const least = 1 + 16 // bytes of a row
	if len(b) == 0 || b[0] != rowsVersion {
		return nil, "", false
	}
	n, b, ok := uvarint(b[1:])
	if !ok || n > uint64(len(b)/least) {
		return nil, "", false
	}
	for range n {
		if len(b) < least {
			return nil, "", false
		}
		r := Row{Flags: Flags(b[0])}
		copy(r.ID[:], b[1:])
		if b = b[least:]; r.Flags&Gone == 0 {
			var at uint64
			if at, b, ok = uvarint(b); !ok {
				return nil, "", false
			}
			r.CreatedAt = int64(at>>1) ^ -int64(at&1)
			var space [1 << 10]byte // most rows are shorter
			texts, key := space[:0], 0
			for range 2 {
				var size uint64
				if size, b, ok = uvarint(b); !ok || size > uint64(len(b)) {
					return nil, "", false
				}
				key = len(texts)
				texts, b = append(texts, b[:size]...), b[size:]
			}
			r.setTexts(texts, key)
		}
		rows = append(rows, r)
	}
	return rows, b, true
}

func uvarint(b string) (n uint64, rest string, ok bool) {
	n, size := binary.Uvarint([]byte(b[:min(len(b), binary.MaxVarintLen64)]))
	if size <= 0 {
		return 0, "", false
	}
	return n, b[size:], true
}
