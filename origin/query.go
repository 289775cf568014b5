package origin

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// Collection is one of the two lists.
type Collection uint8

// The collections.
const (
	Items Collection = iota
	Contacts
)

func (c Collection) String() string { return [...]string{"items", "contacts"}[c] }

// Sort is the order of a list; ties are ordered by id in the same direction.
type Sort uint8

// The orders.
const (
	ByCreatedAt Sort = iota // newest first
	ByName                  // by lists.NameKey
)

// Stock keeps items by their stock.
type Stock uint8

// The stock filters.
const (
	AnyStock Stock = iota
	Tracked        // stock is tracked
	Low            // tracked, has a reorder point, and is at or below it
)

// Type keeps rows by what they are.
type Type uint8

// The type filters: the first is for both collections, the next two are for
// items, the last two for contacts.
const (
	AnyType Type = iota
	Goods
	Services
	Customers
	Suppliers
)

// Query names one page: which rows, in which order, after which position, how
// many. It is a value; equal queries name the same page.
type Query struct {
	Workspace  uuid.UUID
	Collection Collection
	Sort       Sort
	Stock      Stock
	Type       Type
	Search     string   // trimmed; empty = no search
	After      Position // the zero Position = from the start
	Limit      int      // rows, 1-100
}

// MaxLimit is the largest page, in rows.
const MaxLimit = 100

// AppendScope appends what identifies the list within its workspace: collection, order,
// filters and search. It is injective: four bytes, then the search up to the end.
func (q *Query) AppendScope(dst []byte) []byte {
	dst = append(dst, byte(q.Collection), byte(q.Sort), byte(q.Stock), byte(q.Type))
	return append(dst, q.Search...)
}

// Position is a place between two rows of a list: directly after the row with this sort key
// and id, whether or not that row still exists.
type Position struct {
	Set       bool
	CreatedAt int64  // microseconds since 1970, when ordered by it
	Name      string // lists.NameKey of the name, when ordered by it
	ID        uuid.UUID
}

// AppendPosition appends the position in the form of a cursor; for the start it appends
// nothing. It is injective for one sort.
func (q *Query) AppendPosition(dst []byte) []byte {
	if !q.After.Set {
		return dst
	}
	dst = append(dst, q.After.ID[:]...)
	if q.Sort == ByName {
		return append(dst, q.After.Name...)
	}
	return binary.BigEndian.AppendUint64(dst, uint64(q.After.CreatedAt))
}
