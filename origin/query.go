package origin

import (
	"strings"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
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

// pagesAhead is how many pages a query with a position reads, if it is no search: its client
// follows cursors, and four pages cost the database little more than one. A search may have to
// look at many rows for each that it finds.
const pagesAhead = 4

// rows is how many rows the query reads.
func (q *Query) rows() int { return rowsOf(q.Limit, q.After != "", q.Search != "") }

// rowsOf is how many rows a query reads: one more than its pages have, to know whether more
// follow.
func rowsOf(limit int, after, search bool) int {
	if after && !search {
		return pagesAhead*limit + 1
	}
	return limit + 1
}

// Frame returns what the body of the query's page has before its rows (head), and behind them
// up to where the request id goes (end):
//
//	{"data":[…],"page":{"hasMore":…,"nextCursor":…}
//
// more = the list has rows behind last; then next is the cursor there, a substring of end.
func (q *Query) Frame(last *lists.Row, more bool) (head, end, next string) {
	const before, noMore, hasMore, quote = `{"data":[`, `],"page":{"hasMore":false,"nextCursor":null}`, `],"page":{"hasMore":true,"nextCursor":"`, `"}`
	if !more {
		return before, noMore, ""
	}
	behind := q.Behind(last)
	end = string(append(behind.AppendCursor([]byte(hasMore)), quote...))
	return before, end, end[len(hasMore) : len(end)-len(quote)]
}

// Behind returns the query for the page of the same list that begins behind a row.
func (q *Query) Behind(r *lists.Row) Query {
	behind := *q
	behind.After = r.Position(q.Sort)
	return behind
}

// Rows are rows of a list as the database had them, in the list's order: those behind the
// query's position.
type Rows struct {
	Rows []lists.Row
	End  bool                 // the list ends with them
	At   changefeed.ReadPoint // what the statement saw; Began is not set

	Began time.Time     // when the query was sent, also if it failed; zero = none was sent
	Took  time.Duration // how long the query took
}

// The schema and imports refuse values above these bounds.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // digits of a number before the decimal point, and as many after it: the limit of numeric(p, s)
	// MaxNumber is the largest Number. Most clients read JSON numbers as doubles, and a
	// double does not hold larger integers exactly.
	MaxNumber = "9007199254740991"
)
