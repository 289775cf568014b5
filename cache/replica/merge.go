package replica

import (
	"slices"
	"sort"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// unseen returns the last version of each row that a change left which the state shows and
// the fill does not.
func (r *Replica) unseen(f *Fill) (rows map[uuid.UUID]*lists.Row, o Outcome) {
	for _, table := range [...]changefeed.List{f.Table, {Collection: f.Table.Collection}} { // mutation: a change of the collection is overlooked
		for _, c := range r.history.of[table] {
			switch {
			case f.sees(c): // mutation: without what the fill does not show
				continue
			case c.rows == nil:
				return nil, AnyRow // mutation: a change that names no rows is overlooked
			case rows == nil:
				rows = map[uuid.UUID]*lists.Row{}
			}
			for i := range c.rows {
				rows[c.rows[i].ID] = &c.rows[i]
			}
		}
	}
	return rows, Merged
}

// part is what the list has at the state, from lo to before hi.
type part struct {
	lo, hi lists.Position
	rows   []*lists.Row     // ascending
	gaps   []lists.Position // of rows that are not known, ascending
}

// at brings the fill to the state.
func (f *Fill) at(unseen map[uuid.UUID]*lists.Row) (p part, o Outcome) {
	p.lo, p.hi = behind(f.After), f.until()
	before := f.After
	for i := range f.Rows {
		at := f.Rows[i].Position(f.Order)
		if at <= before {
			return p, Inconsistent
		}
		before = at
		switch row := &f.Rows[i]; {
		case unseen[row.ID] != nil:
		case row.Flags&f.Filter != f.Filter:
			return p, Inconsistent
		case !row.HasPosition(f.Order):
			return p, AnyRow
		default:
			p.add(f.Order, row, member)
		}
	}
	for _, row := range unseen {
		switch b := belongs(row, &f.Key, &searched{}); b {
		case everywhere:
			return p, AnyRow
		case unknown, member:
			p.add(f.Order, row, b)
		}
	}
	if len(unseen) > 0 {
		slices.SortFunc(p.rows, func(a, b *lists.Row) int { return a.Compare(f.Order, b.Position(f.Order)) })
		slices.Sort(p.gaps)
	}
	return p, Merged
}

// add adds a row if it is in the part.
func (p *part) add(o lists.Order, row *lists.Row, b belonging) {
	switch {
	case row.Compare(o, p.lo) < 0 || row.Compare(o, p.hi) >= 0:
	case b == unknown || row.Text() == "":
		p.gaps = append(p.gaps, row.Position(o))
	default:
		own := *row // without its neighbours in the fill
		p.rows = append(p.rows, &own)
	}
}

// fill makes a range of a fill. A row that is known already must be the same, and so must
// be a part of the list. Else there is a mistake, here or in what was read, and the table
// is forgotten.
func (r *Replica) fill(f *Fill, unseen map[uuid.UUID]*lists.Row) Outcome {
	p, o := f.at(unseen)
	if o == AnyRow {
		return o
	}
	t, l := r.list(&f.Key)
	consistent := o == Merged
	for i, row := range p.rows {
		if known := t.rows[row.ID].row; known != nil {
			consistent = consistent && *known == *row
			p.rows[i] = known
		}
	}
	lo, rows := p.lo, p.rows
	for _, gap := range append(p.gaps, p.hi) {
		n, _ := slices.BinarySearchFunc(rows, gap, func(row *lists.Row, at lists.Position) int { return row.Compare(f.Order, at) })
		consistent = consistent && r.cover(l, lo, gap, rows[:n])
		lo, rows = behind(gap), rows[n:] // mutation: a gap is covered
	}
	switch {
	case !consistent: // mutation: a fill that differs is merged
		r.forget(t)
		return Inconsistent
	case len(l.ranges) == 0:
		r.drop(l)
	}
	return Merged
}

// parked are the fills that wait, the oldest first.
type parked struct {
	fills []*Fill
	bytes int
}

// maxParked bounds the fills that wait. Each is looked at at every heartbeat.
const maxParked = 1024

func (f *Fill) bytes() int {
	n := rangeBytes
	for i := range f.Rows {
		n += rowSize(&f.Rows[i])
	}
	return n
}

func (r *Replica) park(f *Fill) {
	p := &r.parked
	p.fills = append(p.fills, f)
	p.bytes += f.bytes()
	for len(p.fills) > maxParked || p.bytes > r.budget.Parked {
		r.unpark(p.fills[0], Dropped)
		p.fills = slices.Delete(p.fills, 0, 1)
	}
}

func (r *Replica) unpark(f *Fill, o Outcome) {
	r.parked.bytes -= f.bytes()
	r.counts.Fills[o]++
	f.outcome.Store(uint32(o))
}

// retry merges the fills for which the state suffices now.
func (r *Replica) retry() {
	r.parked.fills = slices.DeleteFunc(r.parked.fills, func(f *Fill) bool {
		o := r.merge(f)
		if o != Parked {
			r.unpark(f, o)
		}
		return o != Parked
	})
}

// Parked returns the newest of the list's fills that wait for a heartbeat and have the
// position, the rows of the fill behind it, and whether the list ends with them; nil = there
// is none.
func (r *Replica) Parked(k *Key, after lists.Position) (f *Fill, rows []lists.Row, end bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := behind(after)
	for i := len(r.parked.fills) - 1; i >= 0; i-- {
		if f = r.parked.fills[i]; f.Key == *k && behind(f.After) <= at && at < f.until() {
			n := sort.Search(len(f.Rows), func(i int) bool { return f.Rows[i].Position(k.Order) > after })
			return f, f.Rows[n:], f.End
		}
	}
	return nil, nil, false
}
