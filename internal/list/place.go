package list

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Signs of the place of a numeric: they order numbers of different signs. The three in the middle are
// followed by digits or nothing.
const (
	minusInfinity = 1 + iota
	negative
	zero
	positive
	infinity
	nan
)

// exponentBias makes each exponent of a numeric positive.
const exponentBias = 1 << 20

// appendNumericPlace appends a sign; unless that says all, the exponent (3 bytes) of 0.1 ≤ n < 1, a byte for
// each two digits, and a zero byte. What follows the sign of a negative one is complemented.
func appendNumericPlace(dst, v []byte) (_ []byte, ok bool) {
	switch string(v) {
	case "NaN":
		return append(dst, nan), true
	case "Infinity":
		return append(dst, infinity), true
	case "-Infinity":
		return append(dst, minusInfinity), true
	}
	if !isNumber(v) || bytes.IndexByte(v, 'e') >= 0 {
		return dst, false
	}
	v, minus := bytes.CutPrefix(v, []byte("-"))
	exponent := digits(v)
	if exponent < len(v) {
		v = bytes.TrimRight(v, "0")
	}
	for len(v) > 0 && (v[0] == '0' || v[0] == '.') {
		if v[0] == '0' {
			exponent--
		}
		v = v[1:]
	}
	if len(v) == 0 {
		return append(dst, zero), true
	}
	from, e := len(dst), exponent+exponentBias
	dst = append(dst, positive, byte(e>>16), byte(e>>8), byte(e))
	high, pending := byte(0), false
	for _, c := range bytes.TrimRight(v, "0.") {
		switch {
		case c == '.':
		case pending:
			dst, pending = append(dst, 1+10*high+c-'0'), false
		default:
			high, pending = c-'0', true
		}
	}
	if pending {
		dst = append(dst, 1+10*high)
	}
	dst = append(dst, 0)
	if minus {
		dst[from] = negative
		complement(dst[from+1:])
	}
	return dst, true
}

func complement(b []byte) {
	for i := range b {
		b[i] = ^b[i]
	}
}

// numericPlaceLength returns the length of the place that the bytes begin with; 0 = they begin with none.
func numericPlaceLength(b []byte) int {
	if len(b) == 0 || b[0] < minusInfinity || b[0] > nan {
		return 0
	}
	if b[0] != negative && b[0] != positive {
		return 1
	}
	mask := byte(0)
	if b[0] == negative {
		mask = 255
	}
	for i := 4; i < len(b); i++ {
		c := b[i] ^ mask
		switch {
		case c > 100, i == 4 && c < 11: // the first digit is none of zero
			return 0
		case c == 0 && b[i-1]^mask == 1: // the last two digits are not both zero
			return 0
		case c == 0:
			e := (int(b[1]^mask)<<16 | int(b[2]^mask)<<8 | int(b[3]^mask)) - exponentBias
			scale := 2*(i-4) - e
			if (b[i-1]^mask)%10 == 1 { // the last digit is no digit, but the half of a pair
				scale--
			}
			if e > 131072 || scale > 16383 {
				return 0
			}
			return i + 1
		}
	}
	return 0
}

// numericText returns the number of a place, as Postgres takes it.
func numericText(place []byte) string {
	switch place[0] {
	case nan:
		return "NaN"
	case infinity:
		return "Infinity"
	case minusInfinity:
		return "-Infinity"
	case zero:
		return "0"
	}
	b, rest := []byte(nil), slices.Clone(place[1:])
	if place[0] == negative {
		b = append(b, '-')
		complement(rest)
	}
	exponent := (int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])) - exponentBias
	pairs := rest[3 : len(rest)-1]
	for _, pair := range pairs {
		b = append(b, '0'+(pair-1)/10, '0'+(pair-1)%10)
	}
	last := 2 * len(pairs)
	if b[len(b)-1] == '0' {
		b, last = b[:len(b)-1], last-1
	}
	b = append(b, 'e')
	return string(strconv.AppendInt(b, int64(exponent-last), 10))
}

// appendPlace appends where a value stands in an order, as bytes that compare as the values do. No place
// begins another one. Errors: ErrMalformed; ErrBounds: Postgres has the value, and takes it from nobody.
func appendPlace(dst []byte, t *Type, o *Order, v []byte) (_ []byte, err error) {
	from, n, ok := len(dst), int64(0), true
	switch {
	case o.Fold:
		dst = append(appendFoldKey(dst, t.compared(v)), 0)
	case t.isText():
		dst = append(append(dst, t.compared(v)...), 0)
	case t.kind == kindNumeric:
		dst, ok = appendNumericPlace(dst, v)
	case t.IsInteger():
		n, ok = t.integer(v)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n)^1<<63) // the highest bit is the sign
	default:
		n, _, ok = readInstant(t.kind, v)
		if ok && !hasInstant(t.kind, n) {
			return dst, ErrBounds
		}
		dst = binary.BigEndian.AppendUint64(dst, uint64(n)^1<<63)
	}
	if !ok {
		return dst, ErrMalformed
	}
	if o.Descending {
		complement(dst[from:])
	}
	return dst, nil
}

// placeLength returns the length of the ascending place that the bytes begin with; 0 = they begin with none.
func placeLength(t *Type, o *Order, b []byte) int {
	switch {
	case t.isText():
		n := bytes.IndexByte(b, 0)
		if n < 0 || !utf8.Valid(b[:n]) || o.Fold && characters(b[:n]) > FoldKeyLength {
			return 0
		}
		return n + 1
	case t.kind == kindNumeric:
		return numericPlaceLength(b)
	case len(b) < 8:
		return 0
	}
	n := int64(binary.BigEndian.Uint64(b) ^ 1<<63)
	if t.IsInteger() && n<<(64-t.integerBits())>>(64-t.integerBits()) != n || t.IsInstant() && !hasInstant(t.kind, n) {
		return 0
	}
	return 8
}

// characters returns the number of characters of a valid text. utf8.RuneCount allocates.
func characters(text []byte) (n int) {
	for _, b := range text {
		if utf8.RuneStart(b) {
			n++
		}
	}
	return n
}

// placeText returns the value of an ascending place, as Postgres takes it.
func placeText(t *Type, place []byte) string {
	switch {
	case t.isText():
		return string(place[:len(place)-1])
	case t.kind == kindNumeric:
		return numericText(place)
	}
	n := int64(binary.BigEndian.Uint64(place) ^ 1<<63)
	if t.IsInteger() {
		return strconv.FormatInt(n, 10)
	}
	return instantText(t.kind, n)
}
