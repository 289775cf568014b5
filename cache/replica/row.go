package replica

import (
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Row is a version of a row. All ranges of a table that show the version have the same
// pointer, and no other version ever has it.
type Row struct {
	lists.Row
	shown   int32       // by so many ranges
	touched atomic.Bool // since the clock passed
}

// rowBytes is what a row of a table takes besides its text and its name key: the Row, and
// its place in the map (TestMemory).
const rowBytes = 80 + 64

func (r *Row) bytes() int { return rowBytes + r.Size() }

// rows are the rows of a table that a range shows.
type rows map[uuid.UUID]*Row

// A bound is a Position, or one that no row has: behind a row, or the end of the list. A
// range has the positions from a bound to before another.

// listEnd is behind each position.
var listEnd = lists.Position(strings.Repeat("\xff", 25))

// behind returns the bound directly behind a position.
func behind(p lists.Position) lists.Position {
	if p == "" {
		return ""
	}
	return p + "\x00" // mutation: a bound is before its row
}

// isBehind says whether the bound is behind(p).
func isBehind(bound, p lists.Position) bool {
	return len(bound) == len(p)+1 && bound[len(p)] == 0 && bound[:len(p)] == p
}
