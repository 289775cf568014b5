package replica

import (
	"sync"
	"sync/atomic"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// verification says which page is to be read and compared next, and what came of it.
//
//	Pick ──► statement ──► Merge … once the state shows all that it shows ──► each row, and each list that may show it, compared
//
// The turns go round the kinds of changes: what is rare comes as often as what is frequent. For each kind they go round the lists,
// to where a row has changed last. The turn after these is for what is held, whether it changes or not. The fill (Fill.Verifies)
// changes nothing, unless it differs.
type verification struct {
	of       map[*list.List]*Verified // of all lists that the log has followed
	mismatch atomic.Pointer[Mismatch] // the last one since it was asked for

	turn      int
	changes   latest
	hand, row int // the range, and its row, to which the next turn goes that is for all that is held
}

// pick returns a list, and the position behind which a page of it is to be verified; nil = there is nothing.
func (v *verification) pick(tables map[changefeed.Table]*table, ranges []*Range) (l *List, after list.Position) {
	folds := maxFolds
	for range len(turns) + 1 {
		v.turn++
		var at list.Position
		if i := v.turn % (len(turns) + 1); i < len(turns) {
			l, at = v.changed(turns[i].kind, turns[i].side, tables, &folds)
		} else {
			l, at = v.held(ranges)
		}
		if l == nil {
			continue
		}
		after, ok := l.around(at)
		if ok {
			l.picked = v.turn
			return l, after
		}
	}
	return nil, ""
}

// maxFolds bounds the bytes of rows that a pick folds to find the searches that have them: requests wait. Others concern no search.
// Four times as many are folded to see where rows stand.
const maxFolds = 16 << 10

// changed picks, of the lists that a change of this kind concerns, the one that was picked longest ago, and the place of the last
// such change. Of *folds it takes the bytes that it folds.
func (v *verification) changed(k kind, side int, tables map[changefeed.Table]*table, folds *int) (l *List, at list.Position) {
	c := &v.changes[k]
	var chosen *moved
	for i := range c.of {
		m := &c.of[(c.last+len(c.of)-i)%len(c.of)]
		t := tables[m.of]
		if t == nil {
			continue
		}
		searchText := sync.OnceValues(func() (text string, known bool) { return m.searchText(t, folds) })
		for _, other := range t.made {
			if (l == nil || other.picked < l.picked) && m.concerns(k, other, side, searchText) {
				l, chosen = other, m
			}
		}
	}
	if l == nil {
		return nil, ""
	}
	chosen.picked[side] = true
	return l, chosen.positions[side][l.Order]
}

// held picks what is next in all ranges.
func (v *verification) held(ranges []*Range) (l *List, at list.Position) {
	if len(ranges) == 0 {
		return nil, ""
	}
	v.hand %= len(ranges)
	g := ranges[v.hand]
	at = g.lo
	if v.row < len(g.rows) {
		at = g.list.position(g.rows[v.row])
	}
	v.row += page.MaxLimit / 2
	if v.row >= len(g.rows) {
		v.hand, v.row = v.hand+1, 0
	}
	return g.list, at
}

// compare compares rows of a fill, which ends before hi, with what the table holds, and counts. m is what the table's rows have
// shown already. Inconsistent: they differ.
func (v *verification) compare(t *table, l *List, f *Fill, m *Mismatch, rows []*list.Row, hi list.Position) Outcome {
	if f.Misfold != nil {
		m = foldsDiffer(&l.Key, f.Misfold)
	}
	lo, compared := behind(f.After), false
	for i, _ := l.find(lo); m == nil && i < len(l.ranges) && l.ranges[i].lo < hi; i++ {
		g := l.ranges[i]
		from, to := max(lo, g.lo), min(hi, g.hi)
		m = rowsDiffer(&l.Key, l.within(g.rows, from, to), l.within(rows, from, to))
		compared = true
	}
	if f.Verifies {
		folds := 4 * maxFolds
		for i := 0; m == nil && i < len(rows) && i*len(t.lists) < maxPlaces && folds > 0; i++ {
			m = misplaced(t, l, rows[i], &folds)
		}
	}
	switch {
	case m != nil:
		v.differs(m)
		return Inconsistent
	case f.Verifies && compared:
		v.of[t.of.List].Pages++
	}
	return Merged
}

// differs counts a mismatch.
func (v *verification) differs(m *Mismatch) {
	v.of[m.Table.List].Mismatches[m.Kind]++
	v.mismatch.Store(m)
}

// maxPlaces bounds where a verification looks for its rows in other lists, some of which it then leaves out: requests wait.
const maxPlaces = 4096

// misplaced says which list shows a row of the database otherwise than it has to: lists show it where it belongs, if they cover
// that place, and nowhere else. read is the list that was read. Of *folds it takes the bytes that it folds.
func misplaced(t *table, read *List, row *list.Row, folds *int) *Mismatch {
	at, shown := positionsOf(t.of.List, row), 0
	text := sync.OnceValues(func() (string, bool) { *folds -= row.Size(); return t.of.List.SearchText(row) })
	for _, l := range t.made {
		i, covered := l.find(at[l.Order])
		if !covered {
			continue
		}
		g := l.ranges[i]
		j := g.find(at[l.Order])
		shows := j < len(g.rows) && g.rows[j] == row
		switch belongs := l.stateIn(row, text) == list.Known; {
		case shows && !belongs:
			return differ(&l.Key, row, nil)
		case belongs && !shows:
			return differ(&l.Key, nil, row)
		case shows:
			shown++
		}
	}
	if t.rows[row.Key()].shown != shown && !t.of.List.Repeats {
		return differ(&read.Key, row, nil)
	}
	return nil
}

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

// rowsDiffer says where rows that are held and those that were read begin to differ: one of them lacks a row, or has another
// version of it. nil = they are the same.
func rowsDiffer(k *Key, held, read []*list.Row) *Mismatch {
	for len(held) > 0 && len(read) > 0 && held[0] == read[0] {
		held, read = held[1:], read[1:]
	}
	switch {
	case len(held) == 0 && len(read) == 0:
		return nil
	case len(held) == 0 || len(read) > 0 && k.compare(held[0], k.position(read[0])) > 0:
		return differ(k, nil, read[0])
	case len(read) == 0 || k.compare(held[0], k.position(read[0])) < 0:
		return differ(k, held[0], nil)
	}
	return differ(k, held[0], read[0])
}

// differ says that a list has another version of a row than the database; nil = none.
func differ(k *Key, held, read *list.Row) *Mismatch {
	m := &Mismatch{Table: k.Table, Kind: Rows}
	if held != nil {
		m.Position, m.Held = list.DigestOf([]byte(k.position(held))), list.DigestOf(list.AppendRows(nil, []list.Row{*held}))
	}
	if read != nil {
		m.Position, m.Database = list.DigestOf([]byte(k.position(read))), list.DigestOf(list.AppendRows(nil, []list.Row{*read}))
	}
	return m
}

// foldsDiffer says of which row the folds differ.
func foldsDiffer(k *Key, of *page.Misfold) *Mismatch {
	return &Mismatch{k.Table, Folds, list.DigestOf([]byte(k.position(&of.Row))), list.DigestOf([]byte(of.Node)), list.DigestOf([]byte(of.Database))}
}
