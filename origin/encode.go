package origin

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"
	"unicode/utf8"

	"listedge/origin/postgres"
)

// Rows become JSON here without becoming Go values in between: each value is
// appended to the page from the bytes Postgres sent.

// postgresEpoch is 2000-01-01 in microseconds since 1970; timestamps count from it.
const postgresEpoch = 946684800_000000

// A row is how many values it has, in two bytes, and the values: each is its
// length in four, and as many bytes; the length of NULL is -1.

var errRow = fmt.Errorf("%w: a row", postgres.ErrProtocol)

// cutSeen takes what the statement saw off a row with so many values more.
func cutSeen(row []byte, more int) (seen, rest []byte, err error) {
	if len(row) < 2 || int(binary.BigEndian.Uint16(row)) != 1+more {
		return nil, nil, errRow
	}
	return cutValue(row[2:])
}

// cutValue takes the first value off a row; that of NULL is nil.
func cutValue(row []byte) (value, rest []byte, err error) {
	if isNull(row) {
		return nil, row[4:], nil
	}
	if len(row) < 4 {
		return nil, nil, errRow
	}
	n := binary.BigEndian.Uint32(row)
	if row = row[4:]; uint64(n) > uint64(len(row)) {
		return nil, nil, errRow
	}
	return row[:n], row[n:], nil
}

// isNull says whether the row's first value is NULL.
func isNull(row []byte) bool { return len(row) >= 4 && binary.BigEndian.Uint32(row) == 1<<32-1 }

// pageEnd is the place behind a row. A page may end behind each of its rows, so
// it is filled for each, and a Position is made of the last one only.
type pageEnd struct {
	id        [16]byte
	createdAt int64
	name      []byte // as much of it as can order it
}

// put takes the place behind a row, whose columns begin with id and name and
// end with created_at in both collections, all of them not NULL.
func (p *pageEnd) put(sort Sort, row []byte) {
	id, rest, _ := cutValue(row)
	copy(p.id[:], id)
	if sort == ByName {
		name, _, _ := cutValue(rest)
		p.name = append(p.name[:0], name[:min(len(name), nameKeyLength*utf8.UTFMax)]...)
	} else {
		p.createdAt = int64(binary.BigEndian.Uint64(row[len(row)-8:])) + postgresEpoch
	}
}

func (p *pageEnd) position(sort Sort) Position {
	if sort == ByName {
		return Position{Set: true, ID: p.id, Name: nameKey(string(p.name))}
	}
	return Position{Set: true, ID: p.id, CreatedAt: p.createdAt}
}

// appendRow appends one row as a JSON object.
func appendRow(dst []byte, columns []Column, row []byte) ([]byte, error) {
	// Each byte becomes six at most (\u0000), the lengths of values included.
	dst = slices.Grow(dst, len(columns)*leadRoom+6*len(row)+wordRoom)
	to, n := dst[:cap(dst)], len(dst)
	for i := range columns {
		v, rest, err := cutValue(row)
		if err != nil {
			return dst, err
		}
		row = rest
		c := &columns[i]
		*(*[leadRoom]byte)(to[n:]) = c.lead // its end is written over
		n += c.leadLength
		if v == nil {
			n += copy(to[n:], "null")
			continue
		}
		if n, err = putValue(to, n, c.Kind, v); err != nil {
			return dst, err
		}
	}
	if len(row) > 0 {
		return dst, errRow
	}
	to[n] = '}'
	return to[:n+1], nil
}

// wordRoom is how many bytes behind what they write the functions below may
// scribble.
const wordRoom = 16

// putValue writes a value into to from n on, where there is room, and returns
// where it ends.
func putValue(to []byte, n int, kind Kind, v []byte) (int, error) {
	switch kind {
	case Text:
		to[n] = '"'
		n = putText(to, n+1, v)
		to[n] = '"'
		return n + 1, nil
	case Decimal:
		to[n] = '"'
		n = putDigits(to, n+1, v)
		to[n] = '"'
		return n + 1, nil
	case Number:
		return putDigits(to, n, v), nil
	case UUID:
		if len(v) != 16 {
			return n, errRow
		}
		return putUUID(to, n, [16]byte(v)), nil
	case Bool:
		if len(v) != 1 {
			return n, errRow
		}
		if v[0] != 0 {
			return n + copy(to[n:], "true"), nil
		}
		return n + copy(to[n:], "false"), nil
	case Instant:
		if len(v) != 8 {
			return n, errRow
		}
		us := int64(binary.BigEndian.Uint64(v)) + postgresEpoch
		if us < minCreatedAt || us >= maxCreatedAt {
			return n, errRow
		}
		return putInstant(to, n, us), nil
	}
	panic(fmt.Sprintf("BUG: column of kind %d", kind))
}

// putDigits writes a number as it came.
func putDigits(to []byte, n int, v []byte) int {
	if len(v) <= wordRoom && cap(v) >= wordRoom {
		*(*[wordRoom]byte)(to[n:]) = [wordRoom]byte(v[:wordRoom]) // without a call
		return n + len(v)
	}
	return n + copy(to[n:], v)
}

// putText writes the inside of a JSON string, eight bytes at once. Postgres
// sends valid UTF-8 only.
func putText(to []byte, n int, s []byte) int {
	for len(s) >= 8 {
		w := binary.LittleEndian.Uint64(s)
		binary.LittleEndian.PutUint64(to[n:], w)
		e := escaped(w)
		if e == 0 {
			n, s = n+8, s[8:]
			continue
		}
		plain := bits.TrailingZeros64(e) / 8
		n, s = putEscape(to, n+plain, s[plain]), s[plain+1:]
	}
	for len(s) > 0 {
		var word [8]byte
		if cap(s) >= len(word) {
			word = [8]byte(s[:8]) // what lies behind is overlooked
		} else {
			copy(word[:], s)
		}
		w := binary.LittleEndian.Uint64(word[:])
		binary.LittleEndian.PutUint64(to[n:], w)
		plain := bits.TrailingZeros64(escaped(w)) / 8 // 8 where there is none
		if plain >= len(s) {
			return n + len(s)
		}
		n, s = putEscape(to, n+plain, s[plain]), s[plain+1:]
	}
	return n
}

// escaped says which of eight bytes need an escape: of the lowest of them the
// highest bit is set; of those above it may be, too. Of (w - n) &^ w, with n in each
// byte, the highest bits tell which bytes of w are below n, of those up to
// 0x80. A borrow may have a byte look so, too, but only one above another that is.
func escaped(w uint64) uint64 {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := w^each*'"', w^each*'\\' // 0 where it is one
	return ((w-each*' ')&^w | (quote-each)&^quote | (backslash-each)&^backslash) & high
}

const digits = "0123456789abcdef"

func putEscape(to []byte, n int, c byte) int {
	switch c {
	case '"', '\\':
		return n + copy(to[n:], []byte{'\\', c})
	case '\n':
		return n + copy(to[n:], `\n`)
	case '\r':
		return n + copy(to[n:], `\r`)
	case '\t':
		return n + copy(to[n:], `\t`)
	}
	return n + copy(to[n:], []byte{'\\', 'u', '0', '0', digits[c>>4], digits[c&15]})
}

// hexPairs has the two digits of each byte, the first of them in the lower
// byte; decimalPairs those of each number below 100.
var (
	hexPairs = func() (pairs [256]uint16) {
		for i := range pairs {
			pairs[i] = uint16(digits[i>>4]) | uint16(digits[i&15])<<8
		}
		return pairs
	}()
	decimalPairs = func() (pairs [100]uint16) {
		for i := range pairs {
			pairs[i] = uint16('0'+i/10) | uint16('0'+i%10)<<8
		}
		return pairs
	}()
)

// putUUID writes a UUID in its canonical form, in quotes.
func putUUID(to []byte, n int, id [16]byte) int {
	t := (*[38]byte)(to[n:])
	t[0], t[9], t[14], t[19], t[24], t[37] = '"', '-', '-', '-', '-', '"'
	for i, at := range [...]uint8{1, 3, 5, 7, 10, 12, 15, 17, 20, 22, 25, 27, 29, 31, 33, 35} {
		binary.LittleEndian.PutUint16(t[at:], hexPairs[id[i]])
	}
	return n + len(t)
}

// putInstant writes 2006-01-02T03:04:05.678Z, in quotes, for microseconds since
// 1970 in a year of four digits.
func putInstant(to []byte, n int, us int64) int {
	at := time.UnixMicro(us).UTC()
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	ms := at.Nanosecond() / 1e6
	t := (*[26]byte)(to[n:])
	copy(t[:], `"    -  -  T  :  :  .   Z"`)
	pair := func(at, n int) { binary.LittleEndian.PutUint16(t[at:], decimalPairs[n]) }
	pair(1, year/100)
	pair(3, year%100)
	pair(6, int(month))
	pair(9, day)
	pair(12, hour)
	pair(15, minute)
	pair(18, second)
	pair(22, ms%100)
	t[21] = '0' + byte(ms/100)
	return n + len(t)
}
