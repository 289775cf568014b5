package replica

import (
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// held is a version of a row that ranges show. All of them have the same pointer to it, which
// no other version ever has.
type held struct {
	row   *lists.Row
	shown int // how many ranges show it, at most one of each list
}

// rowBytes is what a row of a table takes besides its texts: the Row, and its place in the
// map (TestMemory).
const rowBytes = 48 + 72

func rowSize(r *lists.Row) int { return rowBytes + r.Size() }

// belonging says whether a version of a row belongs to a list.
type belonging uint8

const (
	foreign belonging = iota
	member
	unknown    // it may belong there; its position is known
	everywhere // it may belong anywhere in the list
)

// belongs says whether the row belongs to the list k. searchText returns the text that searches
// compare; known is false if the row does not have it.
func belongs(row *lists.Row, k *Key, searchText func() (text string, known bool)) belonging {
	switch {
	case row.Flags&lists.Gone != 0 || row.Flags&k.Filter != k.Filter:
		return foreign
	case !row.HasPosition(k.Order):
		return everywhere
	case row.Flags&lists.NameUnknown != 0 || row.Text() == "":
		return unknown
	case k.Search == "":
		return member
	}
	switch text, known := searchText(); {
	case !known:
		return unknown
	case strings.Contains(text, k.Search):
		return member
	}
	return foreign
}

// positions are where one version of a row stands, in each order.
type positions [lists.Orders]lists.Position

func positionsOf(c lists.Collection, row *lists.Row) (p positions) {
	for _, o := range c.Orders() {
		p[o] = row.Position(o)
	}
	return p
}

// change replaces a row of a table: first no range shows the old version, and then those
// that the new one belongs to show it. If the table does not have the row, no range shows it.
// What the change left as it was is taken from the old version, which is the one directly before it:
// the table has what the changes before have left, or does not have the row.
func (r *Replica) change(t *table, changed *lists.Row) {
	r.counts.Rows++
	next := *changed // without its neighbours in the change
	row := &next
	if old := t.rows[row.ID].row; old != nil {
		next = changed.Complete(old)
		if *old == next {
			return
		}
		from := positionsOf(t.of.Collection, old)
		for _, l := range t.lists {
			r.remove(l, old, from[l.Order])
		}
	}
	if row.Flags&lists.Gone != 0 {
		return
	}
	to := positionsOf(t.of.Collection, row)
	searchText := sync.OnceValues(func() (string, bool) { return t.of.Collection.SearchText(row) })
	for _, l := range t.lists {
		r.put(l, row, to[l.Order], belongs(row, &l.Key, searchText))
	}
}

// remove removes a row from the range that shows it, if one does.
func (r *Replica) remove(l *List, row *lists.Row, at lists.Position) {
	if row.Flags&l.Filter != l.Filter {
		return
	}
	i, covered := l.find(at)
	if !covered {
		return
	}
	g := l.ranges[i]
	if j := g.find(at); j < len(g.rows) && g.rows[j] == row {
		l.version.Add(1)
		g.rows = slices.Delete(g.rows, j, j+1)
		r.hide(l.table, row)
	}
}

// put puts a row into the range that covers its position, if it belongs there. What is not
// known for certain is not covered any more.
func (r *Replica) put(l *List, row *lists.Row, at lists.Position, b belonging) {
	i, covered := l.find(at)
	switch {
	case b == member && covered:
		l.version.Add(1)
		g := l.ranges[i]
		g.rows = slices.Insert(g.rows, g.find(at), row)
		r.show(l.table, row)
		if n := len(g.rows); n > r.longest {
			r.cut(l, g.rows[n/2].Position(l.Order))
		}
	case b == unknown && covered:
		r.counts.Uncovered++
		r.uncover(l, at, behind(at))
	case b == everywhere:
		r.counts.Uncovered++
		r.drop(l)
	}
}

// list returns the table and the list of a key, and makes them where the node has none. Of too
// many lists it gives one up that was not read since the last time that there were too many.
func (r *Replica) list(k *Key) (*table, *List) {
	t := r.tables[k.Table]
	if t == nil {
		t = &table{of: k.Table, rows: map[uuid.UUID]held{}, lists: map[Key]*List{}}
		r.tables[k.Table] = t
	}
	l := t.lists[*k]
	if l != nil {
		return t, l
	}
	if len(t.lists) >= r.budget.Lists {
		var least *List
		for _, l := range t.lists {
			if least == nil || least.used.Swap(false) {
				least = l
			}
		}
		r.counts.Evicted++
		r.drop(least)
		r.tables[k.Table] = t
	}
	l = &List{Key: *k, table: t}
	t.lists[*k] = l
	return t, l
}

// show notes that one more range shows a row, and hide that one less does.
func (r *Replica) show(t *table, row *lists.Row) {
	r.clock.bytes += placeBytes
	shown := t.rows[row.ID].shown + 1
	if t.rows[row.ID] = (held{row, shown}); shown == 1 {
		r.clock.bytes += rowSize(row)
	}
}

func (r *Replica) hide(t *table, row *lists.Row) {
	r.clock.bytes -= placeBytes
	if shown := t.rows[row.ID].shown - 1; shown > 0 {
		t.rows[row.ID] = held{row, shown}
		return
	}
	r.clock.bytes -= rowSize(row)
	r.released += rowSize(row)
	delete(t.rows, row.ID)
}
