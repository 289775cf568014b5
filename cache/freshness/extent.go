package freshness

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Extent is the part of a list that a page shows: the first L rows behind the position
// After, in the list's order, among the rows that match the list's filter and search.
// The page's statement also returns the next row, if there is one. End is the position
// of that row, else the end of the list.
//
// Lemma. A transaction does not change the page if for every row that it changed
// (a) the statement did not return a row with that id, and
// (b) the row's new version, if there is one, does not match the filter and the search,
// or its position is outside (After, End].
// Proof: before, the matching rows in (After, End] were exactly the returned ones.
// By (a) none of these was changed or removed. By (b) no row was added. The lemma holds
// for several transactions that the statement did not see if each of them satisfies (a)
// and (b), because the last version of each row is one of those that were checked.
//
// So the decision needs only the id and the new version of each changed row.
type Extent struct {
	Order      lists.Order
	Collection lists.Collection
	Filter     lists.Flags // all rows of the list have these flags
	Search     string      // the rows also match this term, which is folded
	After      Bound
	End        Bound
	Tags       []uint32 // of the ids of the rows that the statement returned, in the list's order

	// seen is a filter with one bit for each tag. A page of 100 rows sets about one bit
	// in ten, so for most rows that the page does not show Tags is not searched. nil =
	// not made.
	seen *[tagBits / 64]uint64
}

const tagBits = 1024

// index makes seen. The extent must not be changed afterwards.
func (e *Extent) index() {
	if e == nil || e.seen != nil {
		return
	}
	e.seen = new([tagBits / 64]uint64)
	for _, tag := range e.Tags {
		e.seen[tag%tagBits/64] |= 1 << (tag % 64)
	}
}

// Size returns the memory that the extent occupies, in bytes.
func (e *Extent) Size() int {
	if e == nil {
		return 0
	}
	const fixed = 160 + tagBits/8
	return fixed + len(e.Search) + 4*len(e.Tags) + len(e.After.NameKey) + len(e.End.NameKey)
}

// shows reports whether the statement returned a row with that tag.
func (e *Extent) shows(tag uint32) bool {
	if e.seen != nil && e.seen[tag%tagBits/64]&(1<<(tag%64)) == 0 {
		return false
	}
	return slices.Contains(e.Tags, tag)
}

// Bound is a position in a list: that of a row, or one end of the list.
type Bound struct {
	Kind      BoundKind
	CreatedAt int64  // microseconds since 1970, in the list by createdAt
	NameKey   string // lists.Row.NameKey, in the list by name
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

// Tag is a hash of a row's id in four bytes. If two rows have the same tag, a page may be
// read again although it has not changed.
func Tag(id uuid.UUID) uint32 {
	word := func(i int) uint32 { return binary.BigEndian.Uint32(id[i:]) }
	return word(0) ^ word(4) ^ word(8) ^ word(12)
}

// Concern says whether, and why, a changed row may have changed a page.
type Concern uint8

// The concerns. With all but the first the page has to be read again. From AnyRow on the
// reason is that it cannot be decided whether the page has changed.
const (
	Unconcerned Concern = iota
	ShowsRow            // the page's statement returned the row
	RowEntered          // the row now belongs on the page
	AnyRow              // the transaction does not name its rows
	NoExtent            // it is not known which rows the page shows
	NameUnknown         // the row's place in the list by name is not known
	SearchedRow         // the row now belongs on the page if it matches the search, which is not known
	TooManyRows         // there are more changes than are worth comparing
	Forgotten           // the tracker does not remember the change any more
	Concerns
)

// String returns the name that the metrics use.
func (c Concern) String() string {
	return [...]string{"unconcerned", "shown", "entered", "any-row", "no-extent", "name", "search", "many", "forgotten"}[c]
}

// Concern decides whether the page has to be read again because of the rows that a
// transaction changed in its list.
func (e *Extent) Concern(changed []lists.Row) Concern {
	switch {
	case e == nil:
		return NoExtent
	case len(changed) == 0:
		return AnyRow
	}
	for i := range changed {
		if c := e.concern(&changed[i]); c != Unconcerned {
			return c
		}
	}
	return Unconcerned
}

// concern decides by one row.
func (e *Extent) concern(r *lists.Row) Concern {
	switch {
	case e.shows(Tag(r.ID)):
		return ShowsRow
	case r.Flags&lists.Gone != 0 || r.Flags&e.Filter != e.Filter:
		return Unconcerned
	}
	after, known := e.compareRow(r, &e.After, 1)
	end, endKnown := e.compareRow(r, &e.End, -1)
	switch {
	case known && after <= 0 || endKnown && end > 0:
		return Unconcerned
	case !known || !endKnown:
		return NameUnknown
	}
	if e.Search != "" {
		switch matches, known := e.Collection.Matches(r, e.Search); {
		case !known:
			return SearchedRow
		case !matches:
			return Unconcerned
		}
	}
	return RowEntered
}

// compareRow compares the position of a changed row with a bound.
func (e *Extent) compareRow(r *lists.Row, b *Bound, open int) (order int, ok bool) {
	return e.compare(&Bound{Kind: At, CreatedAt: r.CreatedAt, NameKey: r.NameKey, ID: r.ID}, b, open)
}

// compare returns a negative number, zero or a positive number if the position a is
// before, at or behind the bound b. It returns open if b is an end of the list. ok is
// false if the order is not known.
func (e *Extent) compare(a, b *Bound, open int) (order int, ok bool) {
	switch {
	case b.Kind == Open:
		return open, true
	case b.Kind != At:
		return 0, false
	case e.Order == lists.ByCreatedAt:
		return cmp.Or(-cmp.Compare(a.CreatedAt, b.CreatedAt), -bytes.Compare(a.ID[:], b.ID[:])), true
	case a.NameKey == "" || b.NameKey == "":
		return 0, false
	}
	return cmp.Or(cmp.Compare(a.NameKey, b.NameKey), bytes.Compare(a.ID[:], b.ID[:])), true
}

// CanJoin reports whether other pages can be joined from the extent's page: both bounds
// must be known.
func (e *Extent) CanJoin() bool {
	return e.CanBegin() && (e.End.Kind == Open || e.End.Kind == At)
}

// CanBegin reports whether a page can be joined that begins at After: that bound must be
// known.
func (e *Extent) CanBegin() bool {
	return e.After.Kind == Open || e.After.Kind == At && (e.Order == lists.ByCreatedAt || e.After.NameKey != "")
}

// AppendKey appends an encoding of the bound. Compared as bytes, encodings have the same
// order as the positions. The start of the list is first.
func (b *Bound) AppendKey(dst []byte, order lists.Order) []byte {
	switch {
	case b.Kind != At:
		return append(dst, 0)
	case order == lists.ByName: // a name key has no zero bytes
		return append(append(append(append(dst, 1), b.NameKey...), 0), b.ID[:]...)
	}
	dst = binary.BigEndian.AppendUint64(append(dst, 1), ^(uint64(b.CreatedAt) ^ 1<<63))
	for _, c := range b.ID {
		dst = append(dst, ^c)
	}
	return dst
}

var errExtent = errors.New("not an extent")

// Append appends the extent's encoding. Numbers are sizes in bytes:
//
//	order 1 | collection 1 | filter 1 | length of the search 2 | search | After | End | tags, 4 each
//
// A bound is its kind 1. If it is a position, there follow created_at 8, id 16, the
// length of the name key 1, and the name key.
func (e *Extent) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, byte(e.Order), byte(e.Collection), byte(e.Filter)), uint16(len(e.Search)))
	b = append(b, e.Search...)
	for _, bound := range []*Bound{&e.After, &e.End} {
		if b = append(b, byte(bound.Kind)); bound.Kind != At {
			continue
		}
		b = binary.BigEndian.AppendUint64(b, uint64(bound.CreatedAt))
		b = append(b, bound.ID[:]...)
		key := bound.NameKey
		if len(key) > math.MaxUint8 {
			key = "" // not known
		}
		b = append(append(b, byte(len(key))), key...)
	}
	for _, tag := range e.Tags {
		b = binary.BigEndian.AppendUint32(b, tag)
	}
	return b
}

// ParseExtent reads what Append wrote.
func ParseExtent(b []byte) (*Extent, error) {
	if len(b) < 5 || b[0] > byte(lists.ByName) || b[1] >= byte(lists.Keys) || len(b) < 5+int(binary.BigEndian.Uint16(b[3:])) {
		return nil, errExtent
	}
	search := int(binary.BigEndian.Uint16(b[3:]))
	e := &Extent{Order: lists.Order(b[0]), Collection: lists.Collection(b[1]), Filter: lists.Flags(b[2]), Search: string(b[5 : 5+search])}
	b = b[5+search:]
	for _, bound := range []*Bound{&e.After, &e.End} {
		if len(b) < 1 || b[0] > byte(At) {
			return nil, errExtent
		}
		if bound.Kind, b = BoundKind(b[0]), b[1:]; bound.Kind != At {
			continue
		}
		const fixed = 8 + 16 + 1
		if len(b) < fixed || len(b) < fixed+int(b[fixed-1]) {
			return nil, errExtent
		}
		end := fixed + int(b[fixed-1])
		bound.CreatedAt, bound.ID = int64(binary.BigEndian.Uint64(b)), uuid.UUID(b[8:8+16])
		bound.NameKey, b = string(b[fixed:end]), b[end:]
	}
	if len(b)%4 != 0 {
		return nil, errExtent
	}
	e.Tags = make([]uint32, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		e.Tags = append(e.Tags, binary.BigEndian.Uint32(b))
	}
	return e, nil
}
