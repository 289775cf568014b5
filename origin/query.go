package origin

import (
	"strings"
	"unsafe"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Query names one page: which rows, in which order, after which position, how
// many. It is a value; equal queries name the same page.
type Query struct {
	Workspace  uuid.UUID
	Collection lists.Collection
	Sort       lists.Order
	Filter     lists.Flags    // all rows have these; at most one of each lists.Filter
	Search     string         // trimmed; empty = no search
	After      lists.Position // empty = from the start
	Limit      int            // rows, 1-100
}

// TextOf returns the bytes as a text that shares their memory: it holds until they change.
// A query that a request has brought is parsed so, because a hit allocates nothing.
func TextOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Clone returns the query with memory of its own.
func (q Query) Clone() Query {
	q.Search, q.After = strings.Clone(q.Search), lists.Position(strings.Clone(string(q.After)))
	return q
}

// AppendScope appends what identifies the list within its workspace: collection, order,
// filters and search. It is injective: three bytes, then the search up to the end.
func (q *Query) AppendScope(dst []byte) []byte {
	dst = append(dst, byte(q.Collection), byte(q.Sort), byte(q.Filter))
	return append(dst, q.Search...)
}
