package origin

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

// The schema and imports refuse values above these two bounds.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // digits of a number before the decimal point, and as many after it: the limit of numeric(p, s)
)

// MaxNumber is the largest Number. Most clients read JSON numbers as
// doubles, and a double does not hold larger integers exactly.
const MaxNumber = "9007199254740991"

// format is the wire format that rows are read in. Decimals are read as text,
// because the API shows the digits as the server writes them.
func format(k lists.Kind) int16 {
	if k == lists.Decimal || k == lists.Number {
		return pgtype.TextFormatCode
	}
	return pgtype.BinaryFormatCode
}

// Rows are encoded as JSON without Go values in between: each value is appended to the page
// from the bytes that Postgres sent.

// postgresEpoch is 2000-01-01 in microseconds since 1970; timestamps count from it.
const postgresEpoch = 946684800_000000

// A row has the values of its columns as Postgres sends them; nil is NULL.

var (
	errMalformedRow = fmt.Errorf("%w: a malformed row", postgres.ErrProtocol)
	errOutOfBounds  = fmt.Errorf("%w: a number that is not finite, or an instant outside of the years 0001 to 9999", postgres.ErrRow)
)

// positionAfter returns the position directly after a row. It relies on the order of
// columns: in both collections the listed ones begin with id and name and end with
// created_at. None of the three is NULL.
func positionAfter(row [][]byte, sort lists.Order) Position {
	p := Position{Set: true}
	copy(p.ID[:], row[0])
	if sort == lists.ByName {
		p.Name = lists.NameKey(string(row[1]))
	} else {
		p.CreatedAt = int64(binary.BigEndian.Uint64(row[len(row)-1])) + postgresEpoch
	}
	return p
}

// appendRow appends one row as a JSON object.
func appendRow(dst []byte, columns []lists.Column, row [][]byte) (_ []byte, err error) {
	for i := range columns {
		if i == 0 {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), columns[i].Field...), `":`...)
		if row[i] == nil {
			dst = append(dst, "null"...)
		} else if dst, err = appendValue(dst, columns[i].Kind, row[i]); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, kind lists.Kind, v []byte) ([]byte, error) {
	switch kind {
	case lists.Text:
		return append(appendText(append(dst, '"'), v), '"'), nil
	case lists.Decimal, lists.Number:
		switch {
		case len(v) == 0:
		case v[len(v)-1] > '9': // NaN, Infinity
			return dst, errOutOfBounds
		case kind == lists.Number:
			return append(dst, v...), nil
		default:
			return append(append(append(dst, '"'), v...), '"'), nil
		}
	case lists.UUID:
		if len(v) == 16 {
			return appendUUID(dst, v), nil
		}
	case lists.Bool:
		if len(v) == 1 {
			return strconv.AppendBool(dst, v[0] != 0), nil
		}
	case lists.Instant:
		if len(v) == 8 {
			us := int64(binary.BigEndian.Uint64(v)) + postgresEpoch
			if us >= minCreatedAt && us < maxCreatedAt {
				return appendInstant(dst, us), nil
			}
			return dst, errOutOfBounds
		}
	}
	return dst, errMalformedRow
}

// appendInstant appends microseconds since 1970 as "2006-01-02T15:04:05.000Z". A format would take
// a tenth of the CPU time of a miss.
func appendInstant(dst []byte, us int64) []byte {
	at := time.UnixMicro(us).UTC()
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	dst = append(dst, `"0000-00-00T00:00:00.000Z"`...)
	text := dst[len(dst)-len(`0000-00-00T00:00:00.000Z"`):]
	for _, n := range [...]struct{ end, value int }{{4, year}, {7, int(month)}, {10, day}, {13, hour}, {16, minute}, {19, second}, {23, at.Nanosecond() / 1e6}} {
		for i := n.end - 1; n.value > 0; i-- {
			text[i] += byte(n.value % 10)
			n.value /= 10
		}
	}
	return dst
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
