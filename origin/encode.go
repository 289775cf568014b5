package origin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Rows become JSON here without becoming Go values in between: each value is
// appended to the page from the bytes Postgres sent.

// postgresEpoch is 2000-01-01 in microseconds since 1970; timestamps count from it.
const postgresEpoch = 946684800_000000

// errShape: the tables are not those of the schema.
var errShape = errors.New("unexpected columns")

// checkShape makes sure, once per statement and connection, that the server
// sends what the encoder reads.
func checkShape(c Collection, got []pgconn.FieldDescription) error {
	want := c.listed()
	if len(got) != len(want) {
		return fmt.Errorf("%w: %s: %d instead of %d", errShape, c, len(got), len(want))
	}
	for i, w := range want {
		if !w.Kind.is(got[i].DataTypeOID) || got[i].Format != w.Kind.format() {
			return fmt.Errorf("%w: %s.%s: type %d in format %d instead of %d in %d", errShape,
				c, w.Name, got[i].DataTypeOID, got[i].Format, w.Kind.oid(), w.Kind.format())
		}
	}
	return nil
}

// appendRow appends one row as a JSON object. nil is NULL.
func appendRow(dst []byte, columns []Column, values [][]byte) []byte {
	for i := range columns {
		dst = appendValue(append(dst, columns[i].lead...), columns[i].Kind, values[i])
	}
	return append(dst, '}')
}

func appendValue(dst []byte, kind Kind, v []byte) []byte {
	if v == nil {
		return append(dst, "null"...)
	}
	switch kind {
	case Text:
		return appendString(dst, v)
	case UUID:
		return append(appendUUID(append(dst, '"'), v), '"')
	case Decimal:
		return append(append(append(dst, '"'), v...), '"')
	case Number:
		return append(dst, v...)
	case Bool:
		if v[0] != 0 {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case Instant:
		return append(appendInstant(append(dst, '"'), int64(binary.BigEndian.Uint64(v))+postgresEpoch), '"')
	}
	panic(fmt.Sprintf("BUG: column of kind %d", kind))
}

const digits = "0123456789abcdef"

// appendString appends a JSON string. Postgres sends valid UTF-8 only.
func appendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	for {
		n := plain(s)
		dst = append(dst, s[:n]...)
		if n == len(s) {
			return append(dst, '"')
		}
		switch c := s[n]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		s = s[n+1:]
	}
}

// plain is how many bytes of s, from its start, need no escape. It looks at
// eight at once: of (w - n) &^ w, with n in each byte, the highest bits tell
// which bytes of w are below n, of those up to 0x80. A borrow may have a byte
// look so, too, but only one above another that is.
func plain(s []byte) int {
	const each, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(s[n:])
		quote, backslash := w^each*'"', w^each*'\\' // 0 where it is one
		if escaped := ((w-each*' ')&^w | (quote-each)&^quote | (backslash-each)&^backslash) & high; escaped != 0 {
			return n + bits.TrailingZeros64(escaped)/8
		}
	}
	for n < len(s) && s[n] >= ' ' && s[n] != '"' && s[n] != '\\' {
		n++
	}
	return n
}

func appendUUID(dst, v []byte) []byte {
	var text [36]byte
	at := 0
	for i, c := range v[:16] {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text[at] = '-'
			at++
		}
		text[at], text[at+1] = digits[c>>4], digits[c&15]
		at += 2
	}
	return append(dst, text[:]...)
}

// appendInstant appends 2006-01-02T03:04:05.678Z for microseconds since 1970.
func appendInstant(dst []byte, us int64) []byte {
	t := time.UnixMicro(us).UTC()
	dst = t.AppendFormat(dst, time.RFC3339) // which is a third of the cost of a layout of our own
	ms := t.Nanosecond() / 1e6
	return append(dst[:len(dst)-len("Z")], '.', digits[ms/100], digits[ms/10%10], digits[ms%10], 'Z')
}
