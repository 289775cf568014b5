package replica

import (
	"crypto/sha256"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// A verification is a fill (Fill.Verifies) of what the replica holds already: it changes nothing, unless it differs.
//
//	Pick ──► statement ──► Merge … once the state shows all that it shows ──► each row, and which rows there are, compared

// Mismatch is where rows that were held, or how they are ordered, filtered or folded, are not those of the database. Its digests
// are of the values: it has none.
type Mismatch struct {
	Table          changefeed.Table
	Kind           string
	Position       list.Digest
	Held, Database list.Digest // of the versions there, or of the folds; zero = there is no row
}

// The kinds of mismatches.
const (
	Rows  = "rows"
	Folds = "fold"
)

// Verified is what was compared of a list since the start.
type Verified struct {
	Pages      uint64            // by verifications
	Mismatches map[string]uint64 // by kind, also of other fills
}

// digest returns the digest of a text.
func digest(text []byte) list.Digest {
	sum := sha256.Sum256(text)
	return list.Digest(sum[:len(list.Digest{})])
}

// rowsDiffer says where rows that are held and those that were read begin to differ: one of them lacks a row, or has another
// version of it.
func rowsDiffer(k *Key, held, read []*list.Row) *Mismatch {
	for len(held) > 0 && len(read) > 0 && held[0] == read[0] {
		held, read = held[1:], read[1:]
	}
	if len(held) > 0 && len(read) > 0 {
		switch by := k.compare(held[0], k.position(read[0])); {
		case by < 0:
			read = nil
		case by > 0:
			held = nil
		}
	}
	m := &Mismatch{Table: k.Table, Kind: Rows}
	if len(held) > 0 {
		m.Position, m.Held = digest([]byte(k.position(held[0]))), digest(list.AppendRows(nil, []list.Row{*held[0]}))
	}
	if len(read) > 0 {
		m.Position, m.Database = digest([]byte(k.position(read[0]))), digest(list.AppendRows(nil, []list.Row{*read[0]}))
	}
	return m
}

// foldsDiffer says of which row the folds differ.
func foldsDiffer(k *Key, of *page.Misfold) *Mismatch {
	return &Mismatch{k.Table, Folds, digest([]byte(k.position(&of.Row))), digest([]byte(of.Node)), digest([]byte(of.Database))}
}

// pick picks a range, and how many of its rows precede what is verified. Half of the time it is where a row has changed
// lately. Else it is any range, or one of any table, however few it has.
func pick(r *Replica, intN func(n int) int) (g *Range, before int) {
	if len(r.clock.ranges) == 0 {
		return nil, 0
	}
	g = r.clock.ranges[intN(len(r.clock.ranges))]
	t, row := g.list.table, (*list.Row)(nil)
	switch intN(4) {
	case 0:
	case 1:
		t, g = anyOf(r.tables, intN), nil
	default:
		t, row = lately(r, t, intN)
		g = nil
	}
	if g == nil {
		l := anyOf(t.lists, intN)
		g = l.ranges[intN(len(l.ranges))]
	}
	before = intN(len(g.rows) + 1)
	if row != nil && g.list.Table.List.HasPosition(row, g.list.Order) {
		at := g.list.position(row)
		i, covered := g.list.find(at)
		if covered {
			g = g.list.ranges[i]
			before = g.find(at)
		}
	}
	return g, before - intN(min(before, page.MaxLimit-1)+1)
}

// anyOf returns a value of a map that is not empty. A loop over it begins anywhere, and oftener at some places than at others:
// so it goes on for some steps.
func anyOf[K comparable, V any](of map[K]V, intN func(n int) int) (v V) {
	left := intN(min(len(of), 64))
	for _, v = range of {
		if left == 0 {
			break
		}
		left--
	}
	return v
}

// lately returns a table of which the replica has rows and which has changed lately, and a row that has changed there; nil = it
// is not known which has. If a few changes touched no such table, it returns the other.
func lately(r *Replica, other *table, intN func(n int) int) (*table, *list.Row) {
	const tries, latest = 8, 256
	for range tries {
		n := len(r.history.queue)
		if n == 0 {
			break
		}
		c := r.history.queue[n-1-intN(min(n, latest))]
		t := r.tables[c.Table]
		if t != nil && len(c.Rows) > 0 {
			return t, &c.Rows[intN(len(c.Rows))]
		}
	}
	return other, nil
}
