package list

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Values are the texts that Postgres sends, with DateStyle ISO, TimeZone UTC and extra_float_digits 1. A
// statement and the WAL send the same.

// kind is what the texts of a type mean.
type kind uint8

// The kinds. Of kindOther nothing is known but whether it is NULL.
const (
	kindOther  kind = iota
	kindText        // text, varchar
	kindChar        // char(n), sent with its blanks, compared without those at the end
	kindCitext      // compared as text: case counts
	kindName
	kindEnum
	kindUUID
	kindInt2
	kindInt4
	kindInt8
	kindFloat // float4, float8
	kindNumeric
	kindBool
	kindTimestamptz
	kindTimestamp
	kindDate
	kindJSON // json, jsonb
)

// Type is the type of a column, and of its domain's base if that is a domain.
type Type struct {
	OID    uint32
	Base   string   // its name in pg_type
	Name   string   // in SQL, always qualified, without modifier; for people, too
	Mod    int32    // the modifier: 3 of timestamptz(3); -1 = none
	Labels []string // of an enum, in their order; nil = it is none

	kind kind // see resolved
	fine bool // its instants have six decimals, not three
}

// kinds are those of the types in pg_type that are no enums.
var kinds = map[string]kind{
	"text": kindText, "varchar": kindText, "bpchar": kindChar, "citext": kindCitext, "name": kindName, "uuid": kindUUID,
	"int2": kindInt2, "int4": kindInt4, "int8": kindInt8, "float4": kindFloat, "float8": kindFloat, "numeric": kindNumeric, "bool": kindBool,
	"timestamptz": kindTimestamptz, "timestamp": kindTimestamp, "date": kindDate, "json": kindJSON, "jsonb": kindJSON,
}

// resolved returns the type with what its values mean.
func (t Type) resolved() Type {
	t.kind = kinds[t.Base]
	if t.Labels != nil {
		t.kind = kindEnum
	}
	t.fine = (t.kind == kindTimestamptz || t.kind == kindTimestamp) && (t.Mod < 0 || t.Mod > 3)
	return t
}

func (t *Type) isText() bool { return t.kind >= kindText && t.kind <= kindName }

// IsInteger reports whether the values are integers.
func (t *Type) IsInteger() bool { return t.kind >= kindInt2 && t.kind <= kindInt8 }

// IsInstant reports whether the values are instants, or dates.
func (t *Type) IsInstant() bool { return t.kind >= kindTimestamptz && t.kind <= kindDate }

// Decimals returns how many decimals of a second its instants are shown with.
func (t *Type) Decimals() int {
	if t.fine {
		return 6
	}
	return 3
}

// unsupported says why no list can show or read the type; empty = it can.
func (t *Type) unsupported() string {
	switch {
	case t.kind != kindOther:
		return ""
	case strings.HasPrefix(t.Base, "_"):
		return "an array has no form in JSON here"
	}
	return "the type has no form in JSON here"
}

// defaultForm returns the form of a field that has no `as`.
func (t *Type) defaultForm() Form {
	switch {
	case t.IsInteger(), t.kind == kindFloat:
		return Number
	case t.kind == kindNumeric:
		return Decimal
	case t.kind == kindBool:
		return Bool
	case t.IsInstant():
		return Instant
	case t.kind == kindJSON:
		return JSON
	}
	return String
}

// fits reports whether the type can be shown in the form.
func (t *Type) fits(f Form) bool {
	d := t.defaultForm()
	return f == d || d == Number && f == Decimal || d == Decimal && f == Number
}

// canBeKey reports whether the values can be keys, and tenants.
func (t *Type) canBeKey() bool { return t.kind == kindText || t.kind == kindUUID || t.IsInteger() }

func (t *Type) canOrder() bool {
	return t.isText() || t.IsInteger() || t.IsInstant() || t.kind == kindNumeric
}

// compared returns what is compared of a text: the blanks at the end of a char(n) are not.
func (t *Type) compared(v []byte) []byte {
	if t.kind == kindChar {
		return bytes.TrimRight(v, " ")
	}
	return v
}

// appendValue appends a value as JSON. Errors: ErrBounds, ErrMalformed.
func (t *Type) appendValue(dst []byte, form Form, v []byte) ([]byte, error) {
	switch form {
	case String:
		dst = appendText(append(dst, '"'), v)
		return append(dst, '"'), nil
	case Decimal, Number:
		if !isNumber(v) {
			return dst, notFinite(v)
		}
		if form == Number {
			return append(dst, v...), nil
		}
		dst = append(append(dst, '"'), v...)
		return append(dst, '"'), nil
	case Bool:
		if isBool(v) {
			return strconv.AppendBool(dst, v[0] == 't'), nil
		}
	case Instant:
		return t.appendInstant(dst, v)
	case JSON:
		if len(v) > 0 && valueLength(string(v)) == len(v) {
			return append(dst, v...), nil
		}
	}
	return dst, ErrMalformed
}

func isBool(v []byte) bool { return len(v) == 1 && (v[0] == 't' || v[0] == 'f') }

// notFinite returns the error of a text that is no number.
func notFinite(v []byte) error {
	switch string(v) {
	case "NaN", "Infinity", "-Infinity":
		return ErrBounds
	}
	return ErrMalformed
}

// isNumber reports whether the text is a number of JSON. All finite ones of Postgres are.
func isNumber(v []byte) bool {
	v = bytes.TrimPrefix(v, []byte("-"))
	n := digits(v)
	if n == 0 || n > 1 && v[0] == '0' {
		return false
	}
	v = v[n:]
	if len(v) > 0 && v[0] == '.' {
		n = digits(v[1:])
		if n == 0 {
			return false
		}
		v = v[1+n:]
	}
	if len(v) > 1 && v[0] == 'e' {
		v = v[1:]
		if v[0] == '+' || v[0] == '-' {
			v = v[1:]
		}
		n = digits(v)
		return n > 0 && n == len(v)
	}
	return len(v) == 0
}

// digits returns how many digits a text begins with.
func digits(v []byte) (n int) {
	for n < len(v) && v[n]-'0' <= 9 {
		n++
	}
	return n
}

// appendInstant appends "2006-01-02T15:04:05.000Z", or six decimals.
func (t *Type) appendInstant(dst, v []byte) ([]byte, error) {
	_, shown, ok := readInstant(t.kind, v)
	switch {
	case !ok:
		return dst, ErrMalformed
	case !shown:
		return dst, ErrBounds
	}
	dst = append(append(dst, '"'), v[:len("2006-01-02")]...)
	if t.kind == kindDate {
		return append(dst, `T00:00:00.000Z"`...), nil
	}
	dst = append(append(dst, 'T'), v[len("2006-01-02 "):len("2006-01-02 15:04:05")]...)
	v = v[len("2006-01-02 15:04:05"):]
	decimals := t.Decimals()
	dst = append(dst, '.')
	end := len(dst) + decimals
	if len(v) > 0 && v[0] == '.' {
		dst = append(dst, v[1:1+min(decimals, digits(v[1:]))]...)
	}
	for len(dst) < end {
		dst = append(dst, '0')
	}
	return append(dst, `Z"`...), nil
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

// integer reads an integer exactly as Postgres prints it.
func (t *Type) integer(v []byte) (n int64, ok bool) {
	n, err := strconv.ParseInt(string(v), 10, t.integerBits())
	var printed [20]byte
	return n, err == nil && bytes.Equal(strconv.AppendInt(printed[:0], n, 10), v)
}

func (t *Type) integerBits() int { return 16 << (t.kind - kindInt2) }

// maxKey is the longest text that is a key, in bytes.
const maxKey = 255

// appendKey appends the bytes of a key. They compare as the keys do, and none begins another.
func (t *Type) appendKey(dst, v []byte) (_ []byte, ok bool) {
	switch {
	case t.kind == kindUUID:
		return appendUUID(dst, v)
	case t.IsInteger():
		n, ok := t.integer(v)
		bits := t.integerBits()
		for shift := bits - 8; shift >= 0; shift -= 8 {
			dst = append(dst, byte(uint64(n^-1<<(bits-1))>>shift)) // the highest bit is the sign
		}
		return dst, ok
	default:
		dst = append(append(dst, v...), 0)
		return dst, v != nil && len(v) <= maxKey
	}
}

// isKey reports whether they are the bytes of a key.
func (t *Type) isKey(b []byte) bool {
	switch {
	case t.kind == kindUUID:
		return len(b) == 16
	case t.IsInteger():
		return len(b) == t.integerBits()/8
	default:
		return len(b) <= maxKey+1 && bytes.IndexByte(b, 0) == len(b)-1 && len(b) > 0 && utf8.Valid(b)
	}
}

// keyText is the inverse of appendKey.
func (t *Type) keyText(key string) string {
	switch {
	case t.kind == kindUUID:
		return uuid.UUID([]byte(key)).String()
	case t.IsInteger():
		n := int64(int8(key[0] ^ 0x80))
		for i := 1; i < len(key); i++ {
			n = n<<8 | int64(key[i])
		}
		return strconv.FormatInt(n, 10)
	default:
		return key[:len(key)-1]
	}
}

// appendUUID appends the 16 bytes of a text exactly as Postgres prints it.
func appendUUID(dst, v []byte) (_ []byte, ok bool) {
	id, err := uuid.ParseBytes(v)
	if err != nil || len(v) != 36 || bytes.ContainsAny(v, "ABCDEF") {
		return dst, false
	}
	return append(dst, id[:]...), true
}

// MaxTenant is the longest tenant of a workspace, in bytes.
const MaxTenant = 255

// IsTenant reports whether rows may have the tenant: whether it is exactly what Postgres prints for a value
// of the tenant's type. No workspace has an empty one, or a longer one than MaxTenant.
func (l *List) IsTenant(tenant string) bool {
	if l.Tenant < 0 {
		return tenant == ""
	}
	t, v := &l.Columns[l.Tenant].Type, []byte(tenant)
	switch {
	case t.kind == kindUUID:
		var space [16]byte
		_, ok := appendUUID(space[:0], v)
		return ok
	case t.IsInteger():
		_, ok := t.integer(v)
		return ok
	default:
		return tenant != "" && len(tenant) <= MaxTenant && utf8.ValidString(tenant) && strings.IndexByte(tenant, 0) < 0
	}
}

// ParseKey returns the key of the text of a value of the key's column, as bytes that compare as keys do.
func (l *List) ParseKey(text []byte) (key string, ok bool) {
	var space [maxKey + 1]byte
	b, ok := l.Columns[l.Key].appendKey(space[:0], text)
	if !ok {
		return "", false
	}
	return string(b), true
}

// KeyText is the inverse of ParseKey.
func (l *List) KeyText(key string) string { return l.Columns[l.Key].keyText(key) }
