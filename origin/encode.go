package origin

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"listedge/origin/postgres"
)

// This file encodes rows as JSON without Go values in between: it appends each value
// to the page from the bytes that Postgres sent.

// postgresEpoch is 2000-01-01 in microseconds since 1970; timestamps count from it.
const postgresEpoch = 946684800_000000

// A row is the body of a DataRow message: two bytes with the number of values, then
// the values. A value is four bytes with its length, then its bytes. NULL has the
// length -1 and no bytes.

var errMalformedRow = fmt.Errorf("%w: a malformed row", postgres.ErrProtocol)

// cutReadPoint splits a row into its first value, the read point, and the values of
// its columns. Only the first row of a page has a read point; in the others it is
// NULL. It returns an error unless the row has 1+columns values.
func cutReadPoint(row []byte, columns int) (readPoint, rest []byte, err error) {
	if len(row) < 2 || int(binary.BigEndian.Uint16(row)) != 1+columns {
		return nil, nil, errMalformedRow
	}
	return cutValue(row[2:])
}

// cutValue splits a row's values into the first one and the rest. NULL gives a nil
// value.
func cutValue(row []byte) (value, rest []byte, err error) {
	if len(row) < 4 {
		return nil, nil, errMalformedRow
	}
	n := binary.BigEndian.Uint32(row)
	if row = row[4:]; n == 1<<32-1 {
		return nil, row, nil
	}
	if uint64(n) > uint64(len(row)) {
		return nil, nil, errMalformedRow
	}
	return row[:n], row[n:], nil
}

// positionAfter returns the position directly after a row. It relies on the order of
// columns: in both collections the listed ones begin with id and name and end with
// created_at. None of the three is NULL.
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
		return dst, errMalformedRow
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
	return dst, errMalformedRow
}

// appendText appends s, escaped for a JSON string, without the quotes. Postgres sends
// valid UTF-8 only.
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
