package origin

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"listedge/origin/postgres"
)

// Rows become JSON here without becoming Go values in between: each value is
// appended to the page from the bytes Postgres sent.

// postgresEpoch is 2000-01-01 in microseconds since 1970; timestamps count from it.
const postgresEpoch = 946684800_000000

// A row is the number of its values, in two bytes, and the values: each is its
// length in four bytes, and as many bytes. The length of NULL is -1.

var errRow = fmt.Errorf("%w: a row", postgres.ErrProtocol)

// cutReadPoint cuts the first value off a row that has so many more: the page's
// read point in the first row, NULL in all others.
func cutReadPoint(row []byte, more int) (readPoint, rest []byte, err error) {
	if len(row) < 2 || int(binary.BigEndian.Uint16(row)) != 1+more {
		return nil, nil, errRow
	}
	return cutValue(row[2:])
}

// cutValue cuts the first value off a row; that of NULL is nil.
func cutValue(row []byte) (value, rest []byte, err error) {
	if len(row) < 4 {
		return nil, nil, errRow
	}
	n := binary.BigEndian.Uint32(row)
	if row = row[4:]; n == 1<<32-1 {
		return nil, row, nil
	}
	if uint64(n) > uint64(len(row)) {
		return nil, nil, errRow
	}
	return row[:n], row[n:], nil
}

// positionAfter is the position right behind a row. In both collections a row's
// columns begin with id and name and end with created_at, none of them NULL.
func positionAfter(row []byte, sort Sort) Position {
	p := Position{Set: true}
	id, rest, _ := cutValue(row)
	copy(p.ID[:], id)
	if sort == ByName {
		name, _, _ := cutValue(rest)
		p.Name = nameKey(string(name))
	} else {
		p.CreatedAt = int64(binary.BigEndian.Uint64(row[len(row)-8:])) + postgresEpoch
	}
	return p
}

// appendRow appends one row as a JSON object.
func appendRow(dst []byte, columns []Column, row []byte) ([]byte, error) {
	for i := range columns {
		v, rest, err := cutValue(row)
		if err != nil {
			return dst, err
		}
		row = rest
		dst = append(dst, columns[i].prefix...)
		if v == nil {
			dst = append(dst, "null"...)
		} else if dst, err = appendValue(dst, columns[i].Kind, v); err != nil {
			return dst, err
		}
	}
	if len(row) > 0 {
		return dst, errRow
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, kind Kind, v []byte) ([]byte, error) {
	switch kind {
	case Text:
		return append(appendText(append(dst, '"'), v), '"'), nil
	case Decimal:
		return append(append(append(dst, '"'), v...), '"'), nil
	case Number:
		return append(dst, v...), nil
	case UUID:
		if len(v) == 16 {
			return appendUUID(dst, v), nil
		}
	case Bool:
		if len(v) == 1 {
			return strconv.AppendBool(dst, v[0] != 0), nil
		}
	case Instant:
		if len(v) == 8 {
			us := int64(binary.BigEndian.Uint64(v)) + postgresEpoch
			if us >= minCreatedAt && us < maxCreatedAt {
				return time.UnixMicro(us).UTC().AppendFormat(dst, `"2006-01-02T15:04:05.000Z"`), nil
			}
		}
	}
	return dst, errRow
}

// appendText appends the inside of a JSON string. Postgres sends valid UTF-8 only.
func appendText(dst, s []byte) []byte {
	const digits = "0123456789abcdef"
	start := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(dst, s[start:]...)
}

// appendUUID appends a UUID in its canonical form, in quotes.
func appendUUID(dst, id []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for _, to := range [...]int{4, 6, 8, 10, 16} {
		if from > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[from:to])
		from = to
	}
	return append(dst, '"')
}
