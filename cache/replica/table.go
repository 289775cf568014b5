package replica

import (
	"strings"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// version is what a change says of a row: the version that it left.
type version struct {
	lists.Row
	gone     bool // no list of the table has the row
	nameless bool // NameKey is not known
}

// versionsOf returns the rows of a change's list; named is false if any row of the table
// may have changed.
var versionsOf = func(c *changefeed.Change, i int) (versions []version, named bool) {
	for row := range c.RowsOf(i).All() {
		if row.Flags&changefeed.RowSame != 0 {
			return nil, false
		}
		versions = append(versions, version{Row: lists.Row{ID: row.ID, CreatedAt: row.CreatedAt, NameKey: row.NameKey, Flags: row.Flags},
			gone: row.Flags&changefeed.RowGone != 0, nameless: row.NameKey == ""})
	}
	return versions, versions != nil
}

// belonging says whether a row belongs to a list, as far as its own version tells.
type belonging uint8

const (
	foreign belonging = iota
	member
	unknown    // it may belong there; its position is known
	everywhere // it may belong anywhere in the list
)

// belongs decides for a list. searched is the text that searches compare, and is made once
// a version.
func (v *version) belongs(k *Key, searched *searched) belonging {
	switch {
	case v.gone || v.Flags&k.Filter != k.Filter:
		return foreign
	case v.nameless && k.Order == lists.ByName:
		return everywhere
	case v.Text == "":
		return unknown
	case k.Search == "":
		return member
	}
	if !searched.made {
		searched.made = true
		searched.text, searched.known = k.Table.Collection.SearchText(&v.Row)
	}
	switch {
	case !searched.known:
		return unknown
	case strings.Contains(searched.text, k.Search):
		return member
	}
	return foreign
}

type searched struct {
	text        string
	made, known bool
}

// positions are those of one version, in each order.
type positions [2]lists.Position

func positionsOf(row *lists.Row) (p positions) {
	for _, o := range lists.Orders {
		p[o] = row.Position(o)
	}
	return p
}

// change replaces a row of a table. If the table does not have the row, no range shows it,
// so it is to be removed from none.
func (r *Replica) change(t *table, v *version) {
	r.counts.Rows++
	old := t.rows[v.ID]
	if old != nil && !v.gone && !v.nameless && old.equals(&v.Row) {
		return
	}
	var from positions
	if old != nil {
		from = positionsOf(&old.Row)
	}
	var to positions
	if !v.gone {
		to = positionsOf(&v.Row)
	}
	next := &Row{Row: v.Row}
	var s searched
	for _, l := range t.lists {
		at := to[l.Order]
		changed := old != nil && old.Flags&l.Filter == l.Filter && r.remove(l, old, from[l.Order])
		switch v.belongs(&l.Key, &s) {
		case member:
			if _, covered := l.find(at); covered {
				r.insert(l, next, at)
				changed = true
			}
		case unknown:
			if _, covered := l.find(at); covered {
				r.counts.Uncovered++
				r.uncover(l, at, behind(at))
			}
		case everywhere:
			r.counts.Uncovered++
			r.drop(l)
		}
		if changed {
			l.version.Add(1)
		}
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
	if t.rows[row.ID] == row {
		delete(t.rows, row.ID)
	}
}
