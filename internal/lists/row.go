package lists

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"strings"
	"unicode/utf8"

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
	if text = append(text, '}'); whole {
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
		return append(append(append(dst, r.NameKey()...), 0), r.ID[:]...)
	}
	dst = binary.BigEndian.AppendUint64(dst, ^(uint64(r.CreatedAt) ^ 1<<63)) // the newest first; the highest bit is the sign
	for _, b := range r.ID {
		dst = append(dst, ^b)
	}
	return dst
}

// Parse reads a position in a list of the order: its key as Postgres takes it in binary,
// which is appended to dst, and its id. ok is false if no row can have the position.
func (o Order) Parse(dst []byte, p Position) (key []byte, id uuid.UUID, ok bool) {
	size := len(p) - len(id)
	if size < 1 {
		return nil, id, false
	}
	copy(id[:], p[size:])
	if o == ByName {
		name, end := string(p[:size-1]), p[size-1]
		return append(dst, name...), id, end == 0 && utf8.ValidString(name) && strings.IndexByte(name, 0) < 0 && utf8.RuneCountInString(name) <= NameKeyLength
	}
	if size != 8 {
		return nil, id, false
	}
	for i := range id {
		id[i] = ^id[i]
	}
	at := int64(^binary.BigEndian.Uint64([]byte(p[:size])) ^ 1<<63)
	return binary.BigEndian.AppendUint64(dst, uint64(at-PostgresEpoch)), id, at >= MinInstant && at < EndInstant
}

// HasPosition reports whether the key of the order is known.
func (r *Row) HasPosition(o Order) bool { return o != ByName || r.State < PlaceUnknown }

// Compare compares the position of the row with another, or with one that no row has, as
// strings.Compare does.
func (r *Row) Compare(o Order, p Position) int {
	var space [PositionSize]byte
	return cmp.Compare(string(r.appendPosition(space[:0], o)), string(p))
}

// SearchText returns the folds of the searched columns of the row, with zero bytes in
// between, which neither a column nor a term contains.
func (c Collection) SearchText(r *Row) (text string, known bool) {
	var b strings.Builder
	for _, column := range c.Searched() { // the fields have the names of the columns
		_, rest, found := strings.Cut(r.Text(), `"`+column+`":`) // values have their quotes escaped, so this is in none
		var value string                                         // also of null
		if !found || json.NewDecoder(strings.NewReader(rest)).Decode(&value) != nil {
			return "", false
		}
		b.WriteString(Fold(value))
		b.WriteByte(0)
	}
	return b.String(), true
}
