package lists

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// State says what is known of a row, in ascending order of what is not.
type State uint8

const (
	Known        State = iota
	TextUnknown        // not all of its text
	PlaceUnknown       // nor its name: it may be anywhere in a list by name
	Gone               // only that no list has it: it is deleted, not active, or moved to another workspace
	States             // their number
)

// Row is one version of a row of a list, in 48 bytes and its texts: a node holds many.
type Row struct {
	ID        uuid.UUID
	CreatedAt int64 // microseconds since 1970
	// texts has the name key, and behind it the text, or what is known of it: Postgres does not send long
	// values that a change left as they were. Such a partial text is the JSON of the row without these
	// values, and begins with the comma of its first field.
	texts string
	key   uint16 // length of the name key
	Flags Flags
	State State
}

// SetTexts sets the name key, which is NameKey of the name, and the text: the row as a page
// shows it, in JSON. It returns r.
func (r *Row) SetTexts(nameKey, text string) *Row {
	r.texts, r.key = nameKey+text, uint16(len(nameKey))
	return r
}

// NameKey returns the name's key.
func (r *Row) NameKey() string { return r.texts[:r.key] }

// Text returns the row as a page shows it, in JSON; empty = it is not Known.
func (r *Row) Text() string {
	if r.State != Known {
		return ""
	}
	return r.texts[r.key:]
}

// ForgetText makes the text unknown, and what of it is known.
func (r *Row) ForgetText() {
	r.texts, r.State = strings.Clone(r.NameKey()), max(r.State, TextUnknown)
}

// Complete returns the row with what it lacks of its texts, taken from the version directly before
// it, if that is not nil. What is not known of that one is not known of the row. The row
// itself is returned if it lacks nothing, or has no text to complete.
func (r *Row) Complete(before *Row) *Row {
	partial := r.texts[r.key:]
	if before == nil || r.State == Known || partial == "" {
		return r
	}
	own, key := *r, r.NameKey()
	if r.State == PlaceUnknown && before.State < PlaceUnknown {
		key, own.State = before.NameKey(), TextUnknown
	}
	text, whole := completeText(partial, before.texts[before.key:])
	if whole && own.State == TextUnknown {
		own.State = Known
	}
	return own.SetTexts(key, text)
}

// completeText returns a partial text with the values that it lacks, taken from another text of the
// same fields; empty if that has other fields. whole = it has all of them.
func completeText(partial, before string) (completed string, whole bool) {
	text, whole := make([]byte, 0, len(partial)+len(before)), true
	for partial != "}" {
		name := strings.Index(partial, `":`) + len(`":`)
		if name > len(before) || name < len(`,"":`) || partial[1:name] != before[1:name] { // behind a comma or a brace
			return "", false
		}
		text = append(text, partial[:name]...)
		partial, before = partial[name:], before[name:]
		own, other := valueLength(partial), valueLength(before)
		if own < 0 || other < 0 {
			return "", false
		}
		value := partial[:own]
		if own == 0 {
			value = before[:other]
			whole = whole && other > 0
		}
		text = append(text, value...)
		partial, before = partial[own:], before[other:]
	}
	text = append(text, '}')
	if whole {
		text[0] = '{'
	}
	return string(text), whole
}

// valueLength returns the length of the value that a text begins with: a string, a number or a literal;
// -1 = it does not end.
func valueLength(text string) int {
	if !strings.HasPrefix(text, `"`) {
		return strings.IndexAny(text, ",}")
	}
	for n := 1; n < len(text); n++ {
		switch text[n] {
		case '\\':
			n++
		case '"':
			return n + 1
		}
	}
	return -1
}

// Size returns the bytes of the row's texts.
func (r *Row) Size() int { return len(r.texts) }

// Position is where a row stands in a list of one order. Positions compare as bytes, as
// the rows do. Empty = the start of the list.
type Position string

// PositionSize is the length of the longest Position in bytes: a name key of the longest
// characters, a zero byte and an id.
const PositionSize = 4*NameKeyLength + 1 + len(uuid.UUID{})

// Position returns the position of the row. Only the ID and the key of the order count.
func (r *Row) Position(o Order) Position {
	var space [PositionSize]byte
	return Position(r.appendPosition(space[:0], o))
}

// appendPosition appends the position. A name key has no zero byte, so the byte between it and
// the id orders a name before its continuations.
func (r *Row) appendPosition(dst []byte, o Order) []byte {
	if o == ByName {
		dst = append(dst, r.NameKey()...)
		dst = append(dst, 0)
		return append(dst, r.ID[:]...)
	}
	dst = binary.BigEndian.AppendUint64(dst, ^(uint64(r.CreatedAt) ^ 1<<63)) // the newest first; the highest bit is the sign
	for _, b := range r.ID {
		dst = append(dst, ^b)
	}
	return dst
}

// HasPosition reports whether the key of the order is known.
func (r *Row) HasPosition(o Order) bool { return o != ByName || r.State < PlaceUnknown }

// Compare compares the position of the row with another, or with one that no row has, as
// strings.Compare does.
func (r *Row) Compare(o Order, p Position) int {
	var space [PositionSize]byte
	return cmp.Compare(string(r.appendPosition(space[:0], o)), string(p))
}

// rowsVersion begins the encoding of rows, in the log of changes and in pages in Redis. Numbers
// are sizes in bytes; all fields without one are varints:
//
//	version 3 | rows | for each: state 1 | id 16 | flags 1 | created_at | length of the name key | length of both texts | name key, text
//
// A row that is Gone ends with its id.
const rowsVersion = 3

// AppendRows appends the encoding of the rows.
func AppendRows(b []byte, rows []Row) []byte {
	b = binary.AppendUvarint(append(b, rowsVersion), uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		b = append(b, byte(r.State))
		b = append(b, r.ID[:]...)
		if r.State == Gone {
			continue
		}
		b = append(b, byte(r.Flags))
		b = binary.AppendVarint(b, r.CreatedAt)
		b = binary.AppendUvarint(b, uint64(r.key))
		b = binary.AppendUvarint(b, uint64(len(r.texts)))
		b = append(b, r.texts...)
	}
	return b
}

// ParseRows reads what AppendRows wrote, and returns what follows it. ok is false if it
// cannot. No row holds on to the memory of b.
func ParseRows(b []byte) (rows []Row, rest []byte, ok bool) {
	const least = 1 + 16 // bytes of a row
	if len(b) == 0 || b[0] != rowsVersion {
		return nil, nil, false
	}
	n, size := binary.Uvarint(b[1:])
	b = b[1+max(0, size):]
	if size <= 0 || n > uint64(len(b)/least) {
		return nil, nil, false
	}
	if n > 0 { // else nil, as no rows were
		rows = make([]Row, n)
	}
	for i := range rows {
		r := &rows[i]
		if len(b) < least || b[0] >= byte(States) {
			return nil, nil, false
		}
		r.State = State(b[0])
		copy(r.ID[:], b[1:])
		b = b[least:]
		if r.State == Gone {
			continue
		}
		if len(b) == 0 {
			return nil, nil, false
		}
		r.Flags = Flags(b[0])
		b = b[1:]
		at, size := binary.Varint(b)
		b = b[max(0, size):]
		key, keySize := binary.Uvarint(b)
		b = b[max(0, keySize):]
		texts, textsSize := binary.Uvarint(b)
		b = b[max(0, textsSize):]
		if size <= 0 || keySize <= 0 || textsSize <= 0 || texts > uint64(len(b)) || key > min(texts, 4*NameKeyLength) {
			return nil, nil, false
		}
		r.CreatedAt, r.key, r.texts = at, uint16(key), string(b[:texts])
		b = b[texts:]
	}
	return rows, b, true
}
