package replica

import (
	"sort"

	"listedge/internal/lists"
)

// Read cuts a page from the ranges of a list: up to n rows behind a position, as many as
// have maxBytes of text, but at least one. more says that the list has a row behind them.
// If the ranges do not have all of this, ok is false, and rows are those that they have.
// The rows are appended to dst. At the version, list shows the page until its Version is
// another one.
func (r *Replica) Read(dst []*Row, k *Key, after lists.Position, n, maxBytes int) (list *List, version uint64, rows []*Row, more, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tables[k.Table]
	if t == nil {
		return nil, 0, dst, false, false
	}
	l := t.lists[*k]
	if l == nil {
		return nil, 0, dst, false, false
	}
	l.Touch()
	rows, more, ok = l.read(dst, after, n, maxBytes)
	return l, l.version.Load(), rows, more, ok
}

func (l *List) read(rows []*Row, after lists.Position, n, maxBytes int) (_ []*Row, more, ok bool) {
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].hi > after && !isBehind(l.ranges[i].hi, after) })
	if i == len(l.ranges) || l.ranges[i].lo > after && !isBehind(l.ranges[i].lo, after) { // mutation: a page begins in a gap
		return rows, false, false
	}
	g := l.ranges[i]
	j := sort.Search(len(g.rows), func(j int) bool { return g.rows[j].Compare(l.Order, after) > 0 }) // mutation: a page has the row at its position
	for bytes, first := 0, len(rows); ; i, j = i+1, 0 {
		g := l.ranges[i]
		if !g.used.Load() {
			g.used.Store(true)
		}
		for _, row := range g.rows[j:] {
			bytes += len(row.Text)
			if count := len(rows) - first; count == n || bytes > maxBytes && count > 0 {
				return rows, true, true
			}
			rows = append(rows, row)
		}
		if g.hi == listEnd { // mutation: a page ends with its range
			return rows, false, true
		}
		if i+1 == len(l.ranges) || l.ranges[i+1].lo != g.hi { // mutation: a page goes on across a gap
			return rows, false, false
		}
	}
}
