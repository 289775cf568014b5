package list

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
)

// State says what is known of a row, in ascending order of what is not.
type State uint8

// The states.
const (
	Known        State = iota
	TextUnknown        // not all of its text
	PlaceUnknown       // nor its place in some order: it may be anywhere there
	Gone               // only that no list has it: it is deleted, not live, or moved to another tenant
	States             // their number
)

// Errors of List.Row.
var (
	ErrMalformed = errors.New("a malformed row")
	ErrBounds    = errors.New("a value that cannot be shown")
)

// Row is one version of a row of a list, in 32 bytes and its data: a node holds many.
type Row struct {
	Match uint64 // has the Value.Bit of each filter's value that keeps it
	State State
	key   uint16 // length of the key
	head  uint16 // length of the key and the places
	// data has the key, the place in each order with its length in front, and the text, or what is known of
	// it: Postgres does not send long values that a change left as they were. Such a partial text is the JSON
	// of the row without these values, and begins with the comma of its first field. Of a place that is not
	// known the length is 0.
	data string
}

// Row makes a row of the texts of Columns[:Selected]; nil is NULL. unsent (nil = none) marks those that a
// change left as they were; the row is partial then.
// Errors: ErrMalformed, also if the key is unsent, or a value that decides about a filter. ErrBounds: the row
// lacks its text; it is PlaceUnknown if what orders it is NULL or too long for a Position, and the zero Row if
// that is so of the key.
func (l *List) Row(values [][]byte, unsent []bool) (r Row, err error) {
	if len(values) != l.Selected || unsent != nil && (len(unsent) < len(values) || unsent[l.Key]) {
		return Row{}, ErrMalformed
	}
	var space [1 << 10]byte // most rows are shorter
	data, ok := l.Columns[l.Key].appendKey(space[:0], values[l.Key])
	match, known := l.match(values, unsent)
	switch {
	case !ok && (values[l.Key] == nil || l.Columns[l.Key].isText()):
		return Row{}, ErrBounds
	case !ok, !known:
		return Row{}, ErrMalformed
	}
	r.Match, r.key = match, uint16(len(data))
	data, err = r.appendPlaces(data, l, values, unsent)
	if errors.Is(err, ErrMalformed) {
		return Row{}, err
	}
	r.head = uint16(len(data))
	data, partial, of := l.appendText(data, values, unsent)
	if errors.Is(of, ErrMalformed) {
		return Row{}, of
	}
	if partial || of != nil || err != nil {
		r.State = max(r.State, TextUnknown)
	}
	err = cmp.Or(err, of)
	if err != nil {
		data = data[:r.head]
	}
	r.data = string(data)
	return r, err
}

// match returns the bits of the filters' values that keep a row. known is false if an unsent value decides.
func (l *List) match(values [][]byte, unsent []bool) (match uint64, known bool) {
	for i := range l.Filters {
		for j := range l.Filters[i].Values {
			v := &l.Filters[i].Values[j]
			holds, known := v.Keep.decides(values, unsent)
			if !known {
				return 0, false
			}
			if holds {
				match |= v.Bit
			}
		}
	}
	return match, true
}

// appendPlaces appends the place in each order. Errors: ErrMalformed; ErrBounds: one is left out, since it is
// NULL or too long.
func (r *Row) appendPlaces(dst []byte, l *List, values [][]byte, unsent []bool) (_ []byte, err error) {
	var room [MaxPosition]byte
	for i := range l.Orders {
		o := &l.Orders[i]
		place, failed := room[:0], error(nil)
		switch {
		case unsent != nil && unsent[o.Column]:
			r.State = PlaceUnknown
		case values[o.Column] == nil:
			failed = ErrBounds
		default:
			place, failed = appendPlace(place, &l.Columns[o.Column].Type, o, values[o.Column])
		}
		if errors.Is(failed, ErrMalformed) {
			return dst, failed
		}
		if failed != nil || len(place)+int(r.key) > MaxPosition {
			place, r.State, err = place[:0], PlaceUnknown, ErrBounds
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(place))), place...)
	}
	return dst, err
}

// appendText appends the JSON object of a row, or a partial text if values are unsent. Errors: ErrMalformed,
// ErrBounds.
func (l *List) appendText(dst []byte, values [][]byte, unsent []bool) (_ []byte, partial bool, err error) {
	from := len(dst)
	for i := range l.Fields {
		f := &l.Fields[i]
		dst = append(dst, f.json...)
		v := values[i]
		switch {
		case unsent != nil && unsent[i]:
			partial = true
			continue
		case v == nil:
			dst = append(dst, "null"...)
			continue
		}
		at := len(dst)
		dst, err = l.Columns[i].appendValue(dst, f.Form, v)
		if err != nil {
			if !f.Nullable || !errors.Is(err, ErrBounds) {
				return dst, partial, err
			}
			dst = append(dst[:at], "null"...)
		}
	}
	if !partial {
		dst[from] = '{' // not a comma
	}
	return append(dst, '}'), partial, nil
}

// Faults returns the fields that show a value of a row as null, since JSON cannot say it, and what keeps Row from showing the row: the key,
// fields, and orders in which it has no place.
func (l *List) Faults(values [][]byte) (asNull, unshown []string) {
	for i := range l.Fields {
		f := &l.Fields[i]
		if values[i] == nil {
			continue
		}
		_, err := l.Columns[i].appendValue(nil, f.Form, values[i])
		switch {
		case err == nil:
		case f.Nullable && errors.Is(err, ErrBounds):
			asNull = append(asNull, "the field "+f.Name)
		default:
			unshown = append(unshown, "the field "+f.Name)
		}
	}
	key, ok := l.Columns[l.Key].appendKey(nil, values[l.Key])
	if !ok {
		return asNull, append(unshown, "the key")
	}
	for i := range l.Orders {
		o := &l.Orders[i]
		place, err := appendPlace(nil, &l.Columns[o.Column].Type, o, values[o.Column])
		if err != nil || len(place)+len(key) > MaxPosition {
			unshown = append(unshown, "the order "+o.Name)
		}
	}
	return asNull, unshown
}

// GoneRow says that the row of the key is in no list.
func GoneRow(key string) Row {
	return Row{State: Gone, key: uint16(len(key)), head: uint16(len(key)), data: key}
}

// Key returns the key: bytes that compare as keys do.
func (r *Row) Key() string { return r.data[:r.key] }

// Text returns the row as a page shows it, in JSON; empty = it is not Known.
func (r *Row) Text() string {
	if r.State != Known {
		return ""
	}
	return r.data[r.head:]
}

// Size returns the bytes of the row's data.
func (r *Row) Size() int { return len(r.data) }

// TextSize returns the bytes of the text, also of a partial one.
func (r *Row) TextSize() int { return len(r.data) - int(r.head) }

// ForgetText makes the text unknown, and what of it is known.
func (r *Row) ForgetText() {
	r.data, r.State = strings.Clone(r.data[:r.head]), max(r.State, TextUnknown)
}

// place returns the row's place in an order; empty = it is not known.
func (r *Row) place(order int) string {
	place, rest := cutPlace(r.data[r.key:r.head])
	for ; order > 0; order-- {
		place, rest = cutPlace(rest)
	}
	return place
}

// cutPlace returns the first of some places with their lengths in front, and the others.
func cutPlace(places string) (place, rest string) {
	if places == "" {
		return "", ""
	}
	n, from := int(places[0]), 1
	if n >= 0x80 && len(places) > 1 { // a varint of two bytes
		n, from = n&0x7f|int(places[1])<<7, 2
	}
	if n > len(places)-from {
		return "", ""
	}
	return places[from : from+n], places[from+n:]
}

// Complete returns the row with what it lacks of its places and its text, taken from the version directly
// before it, if that is not nil. What is not known of that one is not known of the row. The row
// itself is returned if it lacks nothing, or has no text to complete.
func (r *Row) Complete(before *Row) *Row {
	partial := r.data[r.head:]
	if before == nil || r.State == Known || partial == "" {
		return r
	}
	own := *r
	data, placed := []byte(r.data[:r.head]), true
	if r.State == PlaceUnknown {
		data, placed = appendCompletePlaces(data[:r.key], r.data[r.key:r.head], before.data[before.key:before.head])
		own.head = uint16(len(data))
	}
	data, whole := appendCompleteText(data, partial, before.data[before.head:])
	switch {
	case !placed:
	case whole:
		own.State = Known
	default:
		own.State = TextUnknown
	}
	own.data = string(data)
	return &own
}

// appendCompletePlaces appends the places with those that are lacking, taken from others. all = none is
// lacking then.
func appendCompletePlaces(dst []byte, places, before string) (_ []byte, all bool) {
	all = true
	for places != "" {
		var place, other string
		place, places = cutPlace(places)
		other, before = cutPlace(before)
		if place == "" {
			place = other
			all = all && other != ""
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(place))), place...)
	}
	return dst, all
}

// appendCompleteText appends a partial text with the values that it lacks, taken from another text of the
// same fields; nothing if that has other fields. whole = it has all of them.
func appendCompleteText(dst []byte, partial, before string) (_ []byte, whole bool) {
	from := len(dst)
	whole = true
	for partial != "}" {
		name := strings.Index(partial, `":`) + len(`":`)
		if name > len(before) || name < len(`,"":`) || partial[1:name] != before[1:name] { // behind a comma or a brace
			return dst[:from], false
		}
		dst = append(dst, partial[:name]...)
		partial, before = partial[name:], before[name:]
		own, other := valueLength(partial), valueLength(before)
		if own < 0 || other < 0 {
			return dst[:from], false
		}
		value := partial[:own]
		if own == 0 {
			value = before[:other]
			whole = whole && other > 0
		}
		dst = append(dst, value...)
		partial, before = partial[own:], before[other:]
	}
	dst = append(dst, '}')
	if whole {
		dst[from] = '{'
	}
	return dst, whole
}

// valueLength returns the length of the JSON value that a text begins with; -1 = it does not end. A value
// is followed by the end, or by a comma or brace outside of it.
func valueLength(text string) int {
	depth := 0
	for n := 0; n < len(text); n++ {
		switch text[n] {
		case '"':
			for n++; n < len(text) && text[n] != '"'; n++ {
				if text[n] == '\\' {
					n++
				}
			}
			if n >= len(text) {
				return -1
			}
		case '{', '[':
			depth++
		case ',':
			if depth == 0 {
				return n
			}
		case '}', ']':
			if depth == 0 {
				return n
			}
			depth--
		}
	}
	if depth > 0 {
		return -1
	}
	return len(text)
}

// SearchText returns the folds of the searched fields of the row, each with a zero byte behind it, which
// neither a field nor a term contains.
func (l *List) SearchText(r *Row) (text string, known bool) {
	var folds []byte
	rest := r.Text()
	for i := range l.Fields {
		name := len(l.Fields[i].json)
		if len(rest) < name || rest[1:name] != l.Fields[i].json[1:] { // behind a comma or a brace
			return "", false
		}
		rest = rest[name:]
		n := valueLength(rest)
		if n < 0 || n == len(rest) {
			return "", false
		}
		for _, searched := range l.Search {
			if searched != i {
				continue
			}
			var value string // also of null
			if json.Unmarshal([]byte(rest[:n]), &value) != nil {
				return "", false
			}
			folds = append(appendFold(folds, l.Columns[i].compared([]byte(value))), 0)
		}
		rest = rest[n:]
	}
	return string(folds), true
}

// Folds returns the folds of a list's row: what searches compare, and what each order by a fold does, each with a line feed behind it.
// A statement whose Shape has Folds returns what the database makes of the row instead.
func Folds(l *List, r *Row) (text string, known bool) {
	text, known = l.SearchText(r)
	text = strings.ReplaceAll(text, "\x00", "\n")
	for order := range l.Orders {
		if l.Orders[order].Fold {
			value, _, ok := l.ParsePosition(order, l.Position(r, order))
			text, known = text+value+"\n", known && ok
		}
	}
	return text, known
}

// Position is where a row stands in an order: its place, and its key. Positions compare as bytes, as the rows
// do. Empty = the start. A cursor has it.
type Position string

// MaxPosition is the length of the longest Position in bytes: a cursor has 512 characters at most.
const MaxPosition = 371

// Position returns the position of a row, whose place in the order must be known.
func (l *List) Position(r *Row, order int) Position {
	var space [MaxPosition]byte
	b := append(space[:0], r.place(order)...)
	from := len(b)
	b = append(b, r.Key()...)
	if l.Orders[order].Descending {
		complement(b[from:])
	}
	return Position(b)
}

// HasPosition reports whether the place of a row in the order is known.
func (l *List) HasPosition(r *Row, order int) bool { return r.place(order) != "" }

// Compare compares the position of the row with another, or with one that no row has, as
// strings.Compare does.
func (l *List) Compare(r *Row, order int, p Position) int {
	place := r.place(order)
	n := min(len(place), len(p))
	by := strings.Compare(place[:n], string(p[:n]))
	if by != 0 || n < len(place) {
		return cmp.Or(by, 1)
	}
	key, rest := r.Key(), string(p[n:])
	if !l.Orders[order].Descending {
		return strings.Compare(key, rest)
	}
	for i := range min(len(key), len(rest)) {
		by = cmp.Compare(^key[i], rest[i])
		if by != 0 {
			return by
		}
	}
	return cmp.Compare(len(key), len(rest))
}

// IsPosition reports whether a row can have the position. It allocates nothing.
func (l *List) IsPosition(order int, p Position) bool {
	var space [MaxPosition]byte
	_, _, ok := l.splitPosition(space[:0], order, p)
	return ok
}

// ParsePosition returns the order's value and the key of a position, as texts for a statement. ok is false if
// no row can have it.
func (l *List) ParsePosition(order int, p Position) (value, key string, ok bool) {
	place, k, ok := l.splitPosition(nil, order, p)
	if !ok {
		return "", "", false
	}
	return placeText(&l.Columns[l.Orders[order].Column].Type, place), l.KeyText(string(k)), true
}

// TrackingText returns a position of the default order of a list that Tracks, as clients see its row: the instant, a
// space, and the key. An instant that no field shows is as Postgres has it.
func (l *List) TrackingText(p Position) string {
	value, key, _ := l.ParsePosition(0, p)
	shown, err := l.Columns[l.Orders[0].Column].appendInstant(nil, []byte(value))
	if err == nil {
		value = string(shown[1 : len(shown)-1]) // without quotes
	}
	return value + " " + key
}

// splitPosition returns the ascending place and the key of a position. The room is for both.
func (l *List) splitPosition(room []byte, order int, p Position) (place, key []byte, ok bool) {
	if len(p) > MaxPosition {
		return nil, nil, false
	}
	o, b := &l.Orders[order], append(room, p...)
	if o.Descending {
		complement(b)
	}
	n := placeLength(&l.Columns[o.Column].Type, o, b)
	return b[:n], b[n:], n > 0 && l.Columns[l.Key].isKey(b[n:])
}

// rowsVersion begins the encoding of rows, in the log of changes and in pages in Redis. Numbers
// are sizes in bytes; all fields without one are varints:
//
//	version 4 | rows | for each: state 1 | length of the key | key | match | length of key and places | length of data | places, text
//
// A row that is Gone ends with its key.
const rowsVersion = 4

// AppendRows appends the encoding of the rows.
func AppendRows(b []byte, rows []Row) []byte {
	b = binary.AppendUvarint(append(b, rowsVersion), uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		b = binary.AppendUvarint(append(b, byte(r.State)), uint64(r.key))
		b = append(b, r.Key()...)
		if r.State == Gone {
			continue
		}
		b = binary.AppendUvarint(b, r.Match)
		b = binary.AppendUvarint(b, uint64(r.head))
		b = binary.AppendUvarint(b, uint64(len(r.data)))
		b = append(b, r.data[r.key:]...)
	}
	return b
}

// ParseRows reads what AppendRows wrote, and returns what follows it. ok is false if it
// cannot. No row holds on to the memory of b.
func ParseRows(b []byte) (rows []Row, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != rowsVersion {
		return nil, nil, false
	}
	n, b, ok := cutUvarint(b[1:])
	if !ok || n > uint64(len(b)/2) { // each has two bytes at least
		return nil, nil, false
	}
	if n > 0 { // else nil, as no rows were
		rows = make([]Row, n)
	}
	for i := range rows {
		b, ok = rows[i].parse(b)
		if !ok {
			return nil, nil, false
		}
	}
	return rows, b, true
}

// parse reads one row, and returns what follows it.
func (r *Row) parse(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] >= byte(States) {
		return nil, false
	}
	state := State(b[0])
	n, b, ok := cutUvarint(b[1:])
	if !ok || n > uint64(min(len(b), maxKey+1)) {
		return nil, false
	}
	key, b := b[:n], b[n:]
	if state == Gone {
		*r = GoneRow(string(key))
		return b, true
	}
	match, b, ok1 := cutUvarint(b)
	head, b, ok2 := cutUvarint(b)
	size, b, ok3 := cutUvarint(b)
	if !ok1 || !ok2 || !ok3 || head < n || head > n+MaxOrders*(MaxPosition+2) || head > size || size-n > uint64(len(b)) {
		return nil, false
	}
	*r = Row{Match: match, State: state, key: uint16(n), head: uint16(head), data: string(key) + string(b[:size-n])}
	return b[size-n:], true
}

// cutUvarint reads a varint, and returns what follows it.
func cutUvarint(b []byte) (n uint64, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	return n, b[max(0, size):], size > 0
}
