package origin

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
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
	open := byte('{')
	for i := range columns {
		dst = append(dst, open, '"')
		dst = append(dst, columns[i].Field...)
		dst = append(dst, '"', ':')
		dst = appendValue(dst, columns[i].Kind, values[i])
		open = ','
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

// appendString appends a JSON string. Postgres sends valid UTF-8 only.
func appendString(dst, s []byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	plain := 0 // s[plain:i] needs no escape
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[plain:i]...)
		plain = i + 1
		switch c {
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
	}
	return append(append(dst, s[plain:]...), '"')
}

func appendUUID(dst, v []byte) []byte {
	dst = hex.AppendEncode(dst, v[0:4])
	for _, part := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		dst = append(dst, '-')
		dst = hex.AppendEncode(dst, v[part[0]:part[1]])
	}
	return dst
}

// appendInstant appends 2006-01-02T03:04:05.678Z for microseconds since 1970.
func appendInstant(dst []byte, us int64) []byte {
	return time.UnixMicro(us).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}
