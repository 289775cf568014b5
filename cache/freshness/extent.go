package freshness

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

// Extent is the part of a list that a page shows: the first L rows behind the position
// After, in the list's order, among the rows that match the list's filter and search.
// The page's statement returned one row more, if there is one: End is that row's
// position, else the end of the list.
//
// Lemma. A transaction leaves the page as it is if for every row that it changed
// (a) the row is none of those that the statement returned, by id, and
// (b) its new version, if there is one, does not match the filter and the search, or
// its position is outside (After, End].
// Proof: the matching rows in (After, End] were exactly those that were returned.
// By (a) none of them changed or left, by (b) none came in. It composes: of several
// transactions that a statement did not see, each by itself satisfies (a) and (b),
// and the last version of each row is one of those that were checked.
//
// So only the id and the new version of a row are needed.
type Extent struct {
	Order    Order
	Filter   changefeed.RowFlags // that the list's rows have
	Searched bool                // the rows also match a search
	After    Bound
	End      Bound
	Tags     []uint32 // of the ids of the rows that the statement returned, in the list's order

	NameOrder uint32 // the alphabet of the bounds' name keys

	// seen has a bit for each tag, of about 1 in 10 for a page of 100 rows: most rows
	// are found not to be shown without a look at Tags. nil = not made.
	seen *[tagBits / 64]uint64
}

const tagBits = 1024

// index makes seen. The extent is not to be changed afterwards.
func (e *Extent) index() {
	if e == nil || e.seen != nil {
		return
	}
	e.seen = new([tagBits / 64]uint64)
	for _, tag := range e.Tags {
		e.seen[tag%tagBits/64] |= 1 << (tag % 64)
	}
}

// Size is what the extent occupies in memory, in bytes.
func (e *Extent) Size() int {
	if e == nil {
		return 0
	}
	const fixed = 144 + tagBits/8
	return fixed + 4*len(e.Tags) + len(e.After.NameKey) + len(e.End.NameKey)
}

// shows says whether the statement returned a row with that tag.
func (e *Extent) shows(tag uint32) bool {
	if e.seen != nil && e.seen[tag%tagBits/64]&(1<<(tag%64)) == 0 {
		return false
	}
	return slices.Contains(e.Tags, tag)
}

// Order is the order of a list.
type Order uint8

// The orders.
const (
	ByCreatedAt Order = iota // newest first, then by id, the greatest first
	ByName                   // A to Z, then by id, the least first
)

// Bound is a position in a list: that of a row, or one end of the list.
type Bound struct {
	Kind      BoundKind
	CreatedAt int64  // microseconds since 1970, in the list by createdAt
	NameKey   string // changefeed.Row.NameKey, in the list by name
	ID        uuid.UUID
}

// BoundKind says what is known of a bound.
type BoundKind uint8

// The kinds.
const (
	Unknown BoundKind = iota // it may be anywhere
	Open                     // the start of the list, or its end
	At                       // the position of a row
)

// Tag is a row's id in four bytes. Two rows may have the same: a page is then read
// again in vain.
func Tag(id uuid.UUID) uint32 {
	word := func(i int) uint32 { return binary.BigEndian.Uint32(id[i:]) }
	return word(0) ^ word(4) ^ word(8) ^ word(12)
}

// Concern says whether, and why, a changed row may have changed a page.
type Concern uint8

// The concerns. All but the first say that the page has to be read again; those from
// AnyRow on that it could not be decided.
const (
	Unconcerned Concern = iota
	ShowsRow            // the page shows the row, or showed it
	RowEntered          // the row is listed where the page is
	AnyRow              // the transaction does not name its rows
	NoExtent            // it is not known what the page shows
	NameUnknown         // the row's place in the list by name is not known
	SearchedRow         // the row is listed where the page is, if the search finds it
	TooManyRows         // more changes than are worth comparing
	Forgotten           // the change is not remembered
	Concerns
)

// String is the name that the metrics use.
func (c Concern) String() string {
	return [...]string{"kept", "shown", "entered", "any-row", "no-extent", "name", "search", "many", "forgotten"}[c]
}

// Concern decides whether the page has to be read again because of the rows that a
// transaction changed in its list.
func (e *Extent) Concern(changed changefeed.Rows, nameOrder uint32) Concern {
	switch {
	case e == nil:
		return NoExtent
	case len(changed) == 0:
		return AnyRow
	}
	for i := range changed {
		if c := e.concern(&row{Tag(changed[i].ID), changed[i]}, nameOrder); c != Unconcerned {
			return c
		}
	}
	return Unconcerned
}

// concernOf is the same of rows that are packed.
func (e *Extent) concernOf(changed rows, nameOrder uint32) Concern {
	switch {
	case e == nil:
		return NoExtent
	case len(changed) == 0:
		return AnyRow
	}
	for len(changed) > 0 {
		first, rest := changed.next()
		if c := e.concern(&first, nameOrder); c != Unconcerned {
			return c
		}
		changed = rest
	}
	return Unconcerned
}

// concern decides it of one row.
func (e *Extent) concern(r *row, nameOrder uint32) Concern {
	switch {
	case e.shows(r.tag):
		return ShowsRow
	case r.Flags&unplaced != 0 || r.Flags&e.Filter != e.Filter:
		return Unconcerned
	}
	after, known := e.compare(&r.Row, &e.After, nameOrder, 1)
	end, endKnown := e.compare(&r.Row, &e.End, nameOrder, -1)
	switch {
	case known && after <= 0 || endKnown && end > 0:
		return Unconcerned
	case !known || !endKnown:
		return NameUnknown
	case e.Searched:
		return SearchedRow
	}
	return RowEntered
}

// compare is negative, zero or positive as the row is before, at or behind the bound,
// and open where the bound is an end of the list. ok is false if that is not known.
func (e *Extent) compare(r *changefeed.Row, b *Bound, nameOrder uint32, open int) (order int, ok bool) {
	switch {
	case b.Kind == Open:
		return open, true
	case b.Kind != At:
		return 0, false
	case e.Order == ByCreatedAt:
		return cmp.Or(-cmp.Compare(r.CreatedAt, b.CreatedAt), -bytes.Compare(r.ID[:], b.ID[:])), true
	case r.NameKey == "" || b.NameKey == "" || nameOrder == 0 || nameOrder != e.NameOrder:
		return 0, false
	}
	return cmp.Or(cmp.Compare(r.NameKey, b.NameKey), bytes.Compare(r.ID[:], b.ID[:])), true
}

// CanJoin says whether pages can be joined of the extent's: whether its bounds are known.
func (e *Extent) CanJoin() bool {
	return e.CanBegin() && (e.End.Kind == Open || e.End.Kind == At)
}

// CanBegin says the same of the position that it begins at.
func (e *Extent) CanBegin() bool {
	if e.Order == ByName && e.NameOrder == 0 {
		return false
	}
	return e.After.Kind == Open || e.After.Kind == At && (e.Order == ByCreatedAt || e.After.NameKey != "")
}

// AppendKey appends what compares as bytes as the position does with others of the
// order, of which the start of the list is the first.
func (b *Bound) AppendKey(dst []byte, order Order) []byte {
	switch {
	case b.Kind != At:
		return append(dst, 0)
	case order == ByName: // a name key has no zero bytes
		return append(append(append(append(dst, 1), b.NameKey...), 0), b.ID[:]...)
	}
	dst = binary.BigEndian.AppendUint64(append(dst, 1), ^(uint64(b.CreatedAt) ^ 1<<63))
	for _, c := range b.ID {
		dst = append(dst, ^c)
	}
	return dst
}
