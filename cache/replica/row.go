package replica

import (
	"cmp"
	"encoding/binary"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Row is a version of a row. All ranges of a table that show the version have the same
// pointer, and no other version ever has it. Texts of several rows may be parts of one
// string, such as the body that they came with: then the memory of all is kept while one
// of them is.
type Row struct {
	lists.Row
	shown   int32       // by so many ranges
	touched atomic.Bool // since the clock passed
}

// rowBytes is what a row of a table takes besides its text and its name key: the Row, and
// its place in the map (TestMemory).
const rowBytes = 80 + 64

func (r *Row) bytes() int { return rowBytes + len(r.Text) + len(r.NameKey) }

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
	return p + "\x00"
}

// isBehind says whether the bound is behind(p).
func isBehind(bound, p lists.Position) bool {
	return len(bound) == len(p)+1 && bound[len(p)] == 0 && bound[:len(p)] == p
}

// compare compares the position of the row with a bound, as strings.Compare does. It
// makes no position.
func (r *Row) compare(o lists.Order, bound lists.Position) int {
	if o == lists.ByName {
		return r.compareName(bound)
	}
	const key, size = 8, 8 + len(r.ID)
	if len(bound) < size { // the start of the list, before all rows
		return 1
	}
	b := []byte(bound[:size])
	c := cmp.Compare(^(uint64(r.CreatedAt) ^ 1<<63), binary.BigEndian.Uint64(b))
	for i := key; i < size && c == 0; i += 8 {
		c = cmp.Compare(^binary.BigEndian.Uint64(r.ID[i-key:]), binary.BigEndian.Uint64(b[i:]))
	}
	if c == 0 && len(bound) > size {
		return -1
	}
	return c
}

func (r *Row) compareName(bound lists.Position) int {
	n := len(r.NameKey)
	if c := strings.Compare(r.NameKey, string(bound[:min(n, len(bound))])); c != 0 {
		return c
	}
	switch {
	case len(bound) <= n:
		return 1
	case bound[n] != 0:
		return -1
	}
	bound = bound[n+1:]
	for i := range min(len(bound), len(r.ID)) {
		if c := cmp.Compare(r.ID[i], bound[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(r.ID), len(bound))
}

// equals says whether both show the same, at the same positions.
func (r *Row) equals(o *lists.Row) bool {
	return r.CreatedAt == o.CreatedAt && r.Flags == o.Flags && r.NameKey == o.NameKey && r.Text == o.Text && r.ID == o.ID
}
