package origin

import (
	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Query names one page: which rows, in which order, after which position, how
// many. It is a value; equal queries name the same page.
type Query struct {
	Workspace  uuid.UUID
	Collection lists.Collection
	Sort       lists.Order
	Filter     lists.Flags    // that all rows have; at most one of each filter
	Search     string         // trimmed; empty = no search
	After      lists.Position // empty = from the start
	Limit      int            // rows, 1-100
}

// AppendScope appends what identifies the list within its workspace: collection, order,
// filters and search. It is injective: three bytes, then the search up to the end.
func (q *Query) AppendScope(dst []byte) []byte {
	dst = append(dst, byte(q.Collection), byte(q.Sort), byte(q.Filter))
	return append(dst, q.Search...)
}
