package lists

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"slices"
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

// Errors of Row and AppendText.
var (
	ErrMalformed = errors.New("a malformed row")
	ErrBounds    = errors.New("a number that is not finite, or an instant outside of the years 0001 to 9999")
)

// Row makes a row of the values of Listed(), as Postgres sends them in binary; nil is NULL.
// unsent has the bits of values that it has not sent, because a change left them as they were. Filters
// must not compare them, and the row is partial.
// Errors: ErrMalformed; ErrBounds: the row lacks only its text.
func (c Collection) Row(values [][]byte, unsent uint64) (r Row, err error) {
	const name = 1
	last, named := len(c.Listed())-1, unsent&(1<<name) == 0
	if len(values) != last+1 || len(values[0]) != len(r.ID) || values[name] == nil && named || len(values[last]) != 8 {
		return r, ErrMalformed
	}
	copy(r.ID[:], values[0])
	r.CreatedAt, r.Flags = instant(values[last]), c.flags(values)
	var space [1 << 10]byte // most rows are shorter
	key := space[:0]
	switch {
	case !named:
		r.State = PlaceUnknown
	case unsent != 0:
		r.State = TextUnknown
	}
	if named {
		key = appendNameKey(key, values[name])
	}
	texts, err := c.appendText(key, values, unsent)
	if err != nil && !errors.Is(err, ErrBounds) {
		return Row{}, err
	}
	r.texts, r.key = string(texts), uint16(len(key))
	if err != nil {
		r.ForgetText()
	}
	return r, err
}

// AppendText appends the JSON object of a row with these values of Listed(), in binary.
// Errors: ErrMalformed, ErrBounds.
func (c Collection) AppendText(dst []byte, values [][]byte) (_ []byte, err error) {
	return c.appendText(dst, values, 0)
}

// appendText is AppendText, of a partial text if values are unsent.
func (c Collection) appendText(dst []byte, values [][]byte, unsent uint64) (_ []byte, err error) {
	from, columns := len(dst), c.Listed()
	for i := range columns {
		dst = append(dst, columns[i].json...)
		if unsent&(1<<i) != 0 {
			continue
		}
		if values[i] == nil {
			dst = append(dst, "null"...)
		} else if dst, err = appendValue(dst, columns[i].Kind, values[i]); err != nil {
			return dst, err
		}
	}
	if unsent == 0 {
		dst[from] = '{' // not a comma
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, kind Kind, v []byte) ([]byte, error) {
	switch kind {
	case Text:
		return append(appendText(append(dst, '"'), v), '"'), nil
	case Decimal, Number:
		n, ok := parseNumeric(v)
		switch {
		case !ok:
		case n.class != 0 && n.class != 1 && n.class != -1:
			return dst, ErrBounds
		case kind == Number:
			return n.append(dst), nil
		default:
			return append(n.append(append(dst, '"')), '"'), nil
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

// flags returns the values of filters that a row has.
func (c Collection) flags(values [][]byte) (flags Flags) {
	for _, filter := range c.Filters() {
		for _, v := range filter.Values {
			if !slices.ContainsFunc(v.Where, func(w Condition) bool { return !w.holds(values) }) {
				flags |= v.Flag
			}
		}
	}
	return flags
}

// holds says whether the condition holds, as Postgres decides it.
func (w *Condition) holds(values [][]byte) bool {
	switch v := values[w.column]; {
	case v == nil:
		return false
	case w.Is != "":
		return string(v) == w.Is
	case w.AtMost != "":
		a, ok := parseNumeric(v)
		b, set := parseNumeric(values[w.atMost])
		return ok && set && a.compare(&b) <= 0
	default:
		return len(v) == 1 && v[0] != 0
	}
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
