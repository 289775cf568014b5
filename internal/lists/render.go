package lists

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"time"
)

// Rows are made from the bytes that Postgres sends, in its binary formats, without Go
// values in between. A statement and the WAL send the same bytes, so both give one text.

// The instants that a createdAt can show, of the years 0001 to 9999, in microseconds since
// 1970.
const (
	MinInstant = -62135596800_000000
	EndInstant = 253402300800_000000 // the first one after them
)

// PostgresEpoch is 2000-01-01 in microseconds since 1970. Timestamps count from it.
const PostgresEpoch = 946684800_000000

func appendValue(dst []byte, kind Kind, v []byte) ([]byte, error) {
	switch kind {
	case Text:
		dst = appendText(append(dst, '"'), v)
		return append(dst, '"'), nil
	case Decimal, Number:
		n, ok := parseNumeric(v)
		switch {
		case !ok:
		case n.class != 0 && n.class != 1 && n.class != -1:
			return dst, ErrBounds
		case kind == Number:
			return n.append(dst), nil
		default:
			dst = n.append(append(dst, '"'))
			return append(dst, '"'), nil
		}
	case UUID:
		if len(v) == 16 {
			dst = append(dst, '"')
			for _, part := range [...][]byte{v[:4], v[4:6], v[6:8], v[8:10], v[10:]} {
				dst = append(hex.AppendEncode(dst, part), '-')
			}
			dst[len(dst)-1] = '"' // not a hyphen
			return dst, nil
		}
	case Bool:
		if len(v) == 1 {
			return strconv.AppendBool(dst, v[0] != 0), nil
		}
	case Instant:
		if len(v) == 8 {
			us := instant(v)
			if us >= MinInstant && us < EndInstant {
				return appendInstant(dst, us), nil
			}
			return dst, ErrBounds
		}
	}
	return dst, ErrMalformed
}

// instant returns a timestamp in microseconds since 1970. One that is too late for these, such
// as infinity, becomes the latest of them: no list shows it.
func instant(v []byte) int64 {
	us := int64(binary.BigEndian.Uint64(v))
	return min(us, math.MaxInt64-PostgresEpoch) + PostgresEpoch
}

// appendInstant appends microseconds since 1970 as "2006-01-02T15:04:05.000Z". Only this layout is
// fast: any other would take a tenth of the CPU time of a miss.
func appendInstant(dst []byte, us int64) []byte {
	at := time.UnixMicro(us).UTC()
	dst = at.AppendFormat(append(dst, '"'), time.RFC3339)
	z := len(dst) - 1
	dst = append4(dst[:z], at.Nanosecond()/1e6)
	dst[z] = '.' // not the first of the four digits
	return append(dst, `Z"`...)
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

// numeric is a number as Postgres sends it: digits to the base 10,000, of which the first
// counts 10,000^weight.
type numeric struct {
	class  int // -2 = -Infinity, -1 = negative, 0 = zero, 1 = positive, 2 = Infinity, 3 = NaN
	weight int
	scale  int    // how many decimal places are shown
	digits []byte // two bytes each, without zeros at either end
}

func parseNumeric(v []byte) (n numeric, ok bool) {
	if len(v) < 8 || len(v) != 8+2*int(binary.BigEndian.Uint16(v)) {
		return n, false
	}
	n = numeric{weight: int(int16(binary.BigEndian.Uint16(v[2:]))), scale: int(binary.BigEndian.Uint16(v[6:])), digits: v[8:]}
	switch binary.BigEndian.Uint16(v[4:]) {
	case 0:
		n.class = min(1, len(n.digits))
	case 0x4000:
		n.class = -1
	case 0xc000:
		n.class = 3
	case 0xd000:
		n.class = 2
	case 0xf000:
		n.class = -2
	default:
		return n, false
	}
	return n, true
}

// digit returns the digit that counts 10,000^power.
func (n *numeric) digit(power int) int {
	if i := 2 * (n.weight - power); i >= 0 && i < len(n.digits) {
		return int(binary.BigEndian.Uint16(n.digits[i:]))
	}
	return 0
}

// append appends all digits, as Postgres shows them.
func (n *numeric) append(dst []byte) []byte {
	if n.class < 0 {
		dst = append(dst, '-')
	}
	dst = strconv.AppendInt(dst, int64(n.digit(max(0, n.weight))), 10)
	for power := n.weight - 1; power >= 0; power-- {
		dst = append4(dst, n.digit(power))
	}
	if n.scale == 0 {
		return dst
	}
	dst = append(dst, '.')
	end := len(dst) + n.scale
	for power := -1; len(dst) < end; power-- {
		dst = append4(dst, n.digit(power))
	}
	return dst[:end]
}

func append4(dst []byte, n int) []byte {
	return append(dst, '0'+byte(n/1000), '0'+byte(n/100%10), '0'+byte(n/10%10), '0'+byte(n%10))
}

// compare orders numbers as Postgres does: NaN is the largest.
func (n *numeric) compare(o *numeric) int {
	if n.class != o.class || n.class != 1 && n.class != -1 {
		return cmp.Compare(n.class, o.class)
	}
	end := min(n.weight-len(n.digits)/2, o.weight-len(o.digits)/2)
	for power := max(n.weight, o.weight); power > end; power-- {
		if by := cmp.Compare(n.digit(power), o.digit(power)); by != 0 {
			return by * n.class
		}
	}
	return 0
}
