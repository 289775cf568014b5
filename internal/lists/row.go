package lists

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Row is one version of a row of a list.
type Row struct {
	ID        uuid.UUID
	CreatedAt int64  // microseconds since 1970
	NameKey   string // NameKey of the name
	Flags     Flags
	Text      string // as a page shows it, in JSON; empty = not known
}

// Position is where a row stands in a list of one order. Positions compare as bytes, as
// the rows do. Empty = the start of the list.
type Position string

// PositionSize is the length of the longest Position in bytes: a name key of the longest
// characters, a zero byte and an id.
const PositionSize = 4*NameKeyLength + 1 + len(uuid.UUID{})

// Position returns the position of the row. Only the ID and the key of the order count. A
// name key has no zero byte, so the byte between it and the id orders a name before its
// continuations.
func (r *Row) Position(o Order) Position {
	var b [PositionSize]byte
	return Position(r.AppendPosition(b[:0], o))
}

// AppendPosition appends the bytes of Position.
func (r *Row) AppendPosition(dst []byte, o Order) []byte {
	if o == ByName {
		return append(append(append(dst, r.NameKey...), 0), r.ID[:]...)
	}
	dst = binary.BigEndian.AppendUint64(dst, ^(uint64(r.CreatedAt) ^ 1<<63)) // the newest first; the highest bit is the sign
	for _, b := range r.ID {
		dst = append(dst, ^b)
	}
	return dst
}

// Matches reports whether a searched column of the row contains the folded term. known is
// false if the text of the row is not known.
func (c Collection) Matches(r *Row, folded string) (matches, known bool) {
	text, known := c.SearchText(r)
	return known && strings.Contains(text, folded), known
}

// SearchText returns the folds of the searched columns of the row, with zero bytes in
// between, which neither a column nor a term contains.
func (c Collection) SearchText(r *Row) (text string, known bool) {
	var b strings.Builder
	for _, column := range c.Columns() {
		if !slices.Contains(c.Searched(), column.Name) {
			continue
		}
		value, ok := stringOf(r.Text, column.Field)
		if !ok {
			return "", false
		}
		b.WriteString(Fold(value))
		b.WriteByte(0)
	}
	return b.String(), true
}

// stringOf returns the value of a field of a row, which is a string, or null: then it
// returns "". Values have their quotes escaped, so `"field":` is found nowhere else.
func stringOf(row, field string) (value string, ok bool) {
	_, rest, ok := strings.Cut(row, `"`+field+`":`)
	if !ok || strings.HasPrefix(rest, "null") {
		return "", ok
	}
	end, escaped := 1, false
	for ; end < len(rest) && rest[end] != '"'; end++ {
		if rest[end] == '\\' {
			escaped = true
			end++
		}
	}
	if end >= len(rest) || rest[0] != '"' {
		return "", false
	}
	if !escaped {
		return rest[1:end], true
	}
	return value, json.Unmarshal([]byte(rest[:end+1]), &value) == nil
}
