package origin

import (
	"encoding/binary"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Query names one page: which rows, in which order, after which position, how
// many. It is a value; equal queries name the same page.
type Query struct {
	Workspace  uuid.UUID
	Collection lists.Collection
	Sort       lists.Order
	Filter     lists.Flags // that all rows have; at most one of each filter
	Search     string      // trimmed; empty = no search
	After      Position    // the zero Position = from the start
	Limit      int         // rows, 1-100
}

// MaxLimit is the largest page, in rows.
const MaxLimit = 100

// AppendScope appends what identifies the list within its workspace: collection, order,
// filters and search. It is injective: three bytes, then the search up to the end.
func (q *Query) AppendScope(dst []byte) []byte {
	dst = append(dst, byte(q.Collection), byte(q.Sort), byte(q.Filter))
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
	if q.Sort == lists.ByName {
		return append(dst, q.After.Name...)
	}
	return binary.BigEndian.AppendUint64(dst, uint64(q.After.CreatedAt))
}
