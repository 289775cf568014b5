package replica

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Row is a version of a row: what lists.Row has, and what the replica notes of it, in 64
// bytes. All ranges of a table that show the version have the same pointer, and no other
// version ever has it.
type Row struct {
	ID            uuid.UUID
	CreatedAt     int64
	NameKey, Text string
	Flags         lists.Flags
	shown         int16       // by so many ranges, at most one of each list
	touched       atomic.Bool // since the clock passed
}

func newRow(r *lists.Row) *Row {
	return &Row{ID: r.ID, CreatedAt: r.CreatedAt, NameKey: r.NameKey, Text: r.Text, Flags: r.Flags}
}

// Row returns the version as the log has it.
func (r *Row) Row() lists.Row {
	return lists.Row{ID: r.ID, CreatedAt: r.CreatedAt, NameKey: r.NameKey, Text: r.Text, Flags: r.Flags}
}

func (r *Row) compare(o lists.Order, p lists.Position) int {
	row := r.Row()
	return row.Compare(o, p)
}

func (r *Row) position(o lists.Order) lists.Position {
	row := r.Row()
	return row.Position(o)
}

// rowBytes is what a row of a table takes besides its text and its name key: the Row, and
// its place in the map (TestMemory).
const rowBytes = 64 + 64

func (r *Row) bytes() int { return rowBytes + len(r.NameKey) + len(r.Text) }

// rows are the rows of a table that a range shows.
type rows map[uuid.UUID]*Row

// belonging says whether a version of a row belongs to a list.
type belonging uint8

const (
	foreign belonging = iota
	member
	unknown    // it may belong there; its position is known
	everywhere // it may belong anywhere in the list
)

// belongs decides for a list. searched is the text that searches compare, and is made once
// a version.
func belongs(row *lists.Row, k *Key, searched *searched) belonging {
	switch {
	case row.Flags&lists.Gone != 0 || row.Flags&k.Filter != k.Filter: // mutation: the filter is forgotten
		return foreign
	case !row.HasPosition(k.Order): // mutation: a row of no known name is put
		return everywhere
	case row.Flags&lists.NameUnknown != 0 || row.Text == "": // mutation: what is unknown is served
		return unknown
	case k.Search == "":
		return member
	}
	if !searched.made {
		searched.made = true
		searched.text, searched.known = k.Table.Collection.SearchText(row)
	}
	switch {
	case !searched.known:
		return unknown
	case strings.Contains(searched.text, k.Search): // mutation: a searched row is kept though its text changed; a row that begins to match is not put
		return member
	}
	return foreign
}

type searched struct {
	text        string
	made, known bool
}

// positions are those of one version, in each order.
type positions [lists.Orders]lists.Position

func positionsOf(c lists.Collection, row *lists.Row) (p positions) {
	for _, o := range c.Orders() {
		p[o] = row.Position(o)
	}
	return p
}

// change replaces a row of a table. If the table does not have the row, no range shows it,
// so it is to be removed from none.
func (r *Replica) change(t *table, row *lists.Row) {
	r.counts.Rows++
	old := t.rows[row.ID]
	if old != nil && old.Row() == *row {
		return
	}
	var from, to positions
	if old != nil {
		was := old.Row()
		from = positionsOf(t.of.Collection, &was)
	}
	if row.Flags&lists.Gone == 0 {
		to = positionsOf(t.of.Collection, row)
	}
	next := newRow(row)
	var s searched
	for _, l := range t.lists {
		r.changeIn(l, old, next, from[l.Order], to[l.Order], belongs(row, &l.Key, &s)) // mutation: a row is removed from one list only
	}
}

// changeIn replaces a row of a list. old may be nil, and foreign.
func (r *Replica) changeIn(l *List, old, next *Row, from, to lists.Position, b belonging) {
	if old != nil && old.Flags&l.Filter == l.Filter {
		if g, j := l.shows(old, from); g != nil { // mutation: a row is removed where it is put
			l.version.Add(1) // mutation: the version is not raised by a row that leaves
			r.hide(l.table, old)
			if b == member && from == to {
				g.rows[j] = next
				r.show(l.table, next)
				return
			}
			g.rows = slices.Delete(g.rows, j, j+1)
		}
	}
	_, covered := l.find(to)
	switch {
	case b == member && covered:
		l.version.Add(1) // mutation: the version is not raised by a row that enters
		r.insert(l, next, to)
	case b == unknown && covered:
		r.counts.Uncovered++
		r.uncover(l, to, behind(to))
	case b == everywhere:
		r.counts.Uncovered++
		r.drop(l)
	}
}

// list returns the table and the list of a key, and makes them where the node has none.
// Of too many lists one is given up that was not read since the last time.
func (r *Replica) list(k *Key) (*table, *List) {
	t := r.tables[k.Table]
	if t == nil {
		t = &table{of: k.Table, rows: rows{}, lists: map[Key]*List{}}
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
func (r *Replica) show(t *table, row *Row) {
	r.clock.bytes += placeBytes
	if row.shown++; row.shown == 1 {
		t.rows[row.ID] = row
		r.clock.bytes += row.bytes()
	}
}

func (r *Replica) hide(t *table, row *Row) {
	r.clock.bytes -= placeBytes
	if row.shown--; row.shown > 0 {
		return
	}
	r.clock.bytes -= row.bytes()
	r.released += row.bytes()
	if t.rows[row.ID] == row { // mutation: a row that no range shows is remembered
		delete(t.rows, row.ID)
	}
}
