package replica

import (
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/page"
)

// Start is the replica's state before rows are read.
type Start struct {
	At     changefeed.ReadPoint // the state: a Read returns what a statement with it would, unless a later Begin has another one
	resets uint64
}

// Fill is what was read of a list: the rows behind After, up to the last of them.
type Fill struct {
	Key
	After lists.Position
	page.Read
	Start Start // what Begin returned before the statement was sent, or a copy was asked for

	outcome atomic.Uint32
}

// Outcome returns what became of the fill so far. Only Parked is followed by another outcome.
func (f *Fill) Outcome() Outcome { return Outcome(f.outcome.Load()) }

// Outcome says what became of a fill.
type Outcome uint8

const (
	Merged       Outcome = iota
	Parked               // it waits for a heartbeat
	Resynced             // there was a Reset meanwhile, or there is no state
	WrongServer          // not this primary, or not a standby of it
	TooOld               // it may lack a change that has been forgotten
	AnyRow               // it lacks a change that may have changed any row
	Inconsistent         // it differs from the rows that the replica has
	Dropped              // it waited, and too many others did
	Outcomes             // how many there are
)

// String is the name that metrics use.
func (o Outcome) String() string {
	return [...]string{"merged", "parked", "resynced", "wrong-server", "too-old", "any-row", "inconsistent", "dropped"}[o]
}

// Begin returns Fill.Start. It is called before a statement is sent, or a copy is asked for.
func (r *Replica) Begin() Start {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return Start{changefeed.ReadPoint{StartedAt: r.state.startedAt, Snapshot: r.state.snapshot, Began: r.state.position}, r.resets}
}

// Merge makes a range of what was read. It waits until the state shows all that the rows
// show, and then brings them to the state by the changes that they do not show. The fill
// belongs to the replica from now on.
//
// Why the result is right. The state H shows all that the read point V shows. Let x be a
// row. The transactions that changed x became visible in the order in which they changed
// it (see the package). So those that V shows come first, then those that H shows and V
// does not, and the last of these left the version of H. On a standby both are in the
// order of the WAL, and a copy equals an earlier state. A change that the rows show may
// be applied once more: the last version of each row is the same.
func (r *Replica) Merge(f *Fill) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.merge(f)
	f.outcome.Store(uint32(o))
	r.counts.Fills[o]++
	if o == Parked {
		r.park(f)
	}
	r.evict()
	return o
}

func (r *Replica) merge(f *Fill) Outcome {
	switch {
	case f.Start.resets != r.resets || !r.synced:
		return Resynced
	case r.isOfWrongServer(&f.At):
		return WrongServer
	case r.isTooOld(f):
		return TooOld
	case !r.covers(&f.At):
		return Parked
	}
	rows, o := r.unseen(f)
	if o != Merged {
		return o
	}
	return r.fill(f, rows)
}

func (r *Replica) isOfWrongServer(v *changefeed.ReadPoint) bool {
	if v.Timeline != "" {
		return v.Timeline != r.state.timeline
	}
	return v.StartedAt != r.state.startedAt
}

// isTooOld says whether the fill may lack a change that the history has forgotten.
func (r *Replica) isTooOld(f *Fill) bool {
	if f.At.Timeline != "" {
		return f.At.LSN < r.history.floor.lsn
	}
	return f.At.Began.Compare(r.history.floor.at) < 0
}

// covers says whether the state shows all that the read point shows. An equal Xmax is not
// enough: transactions before it may have ended since. Neither is an LSN: a standby shows
// a commit before the primary does, also one that is no change, such as ALTER TABLE: it may
// come after a heartbeat's snapshot was taken, and before its LSN was read. So the snapshot
// must be younger than the LSN.
func (r *Replica) covers(v *changefeed.ReadPoint) bool {
	s := &r.state
	if v.Timeline != "" {
		return s.lsn >= v.Through && (s.unsettled == 0 || s.unsettled > v.Through)
	}
	return s.snapshot.Xmax >= v.Snapshot.Xmax && !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees)
}

// sees says whether the fill shows a change that was settled. A statement on the primary
// shows what a heartbeat showed that was taken before it began.
func (f *Fill) sees(c *remembered) bool {
	if f.At.Timeline != "" {
		return c.lsn <= f.At.LSN
	}
	return c.at.Compare(f.At.Began) <= 0 || f.At.Snapshot.Sees(c.xid)
}

// unseen returns the rows that have changed between what the fill shows and what the state
// shows, each in its last version. What a change left as it was is that of the change before. What
// all of them left is that of the fill, even if it shows some of them already, or else that of the
// state's own version.
func (r *Replica) unseen(f *Fill) (rows map[uuid.UUID]*lists.Row, o Outcome) {
	for _, table := range [...]changefeed.List{f.Table, {Collection: f.Table.Collection}} {
		for _, c := range r.history.of[table] {
			switch {
			case f.sees(c):
				continue
			case c.rows == nil:
				return nil, AnyRow
			case rows == nil:
				rows = map[uuid.UUID]*lists.Row{}
			}
			for i := range c.rows {
				row := &c.rows[i]
				rows[row.ID] = completed(row, rows[row.ID])
			}
		}
	}
	for i := range f.Rows {
		if row := rows[f.Rows[i].ID]; row != nil {
			rows[row.ID] = completed(row, &f.Rows[i])
		}
	}
	if t := r.tables[f.Table]; t != nil {
		for id, row := range rows {
			rows[id] = completed(row, t.rows[id].row)
		}
	}
	return rows, Merged
}

// completed returns the row with what it lacks taken from an earlier version, if that is known.
func completed(row, before *lists.Row) *lists.Row {
	if before == nil || !row.IsPartial() {
		return row
	}
	whole := row.Complete(before)
	return &whole
}

// at brings the fill to the state: the list's rows behind the fill's position, to before
// until. The fill ends early at a row that may belong there and is not known.
func (f *Fill) at(unseen map[uuid.UUID]*lists.Row) (rows []*lists.Row, until lists.Position, o Outcome) {
	before := f.After
	for i := range f.Rows {
		row := f.Rows[i] // without its neighbours in the fill
		at := row.Position(f.Order)
		if at <= before {
			return nil, until, Inconsistent
		}
		before = at
		switch {
		case unseen[row.ID] != nil:
		case row.Flags&f.Filter != f.Filter || row.Text() == "":
			return nil, until, Inconsistent
		case !row.HasPosition(f.Order):
			return nil, until, AnyRow
		default:
			rows = append(rows, &row)
		}
	}
	if until = listEnd; !f.End && len(f.Rows) > 0 {
		until = behind(before)
	}
	for _, row := range unseen {
		switch belongs(row, &f.Key, func() (string, bool) { return f.Table.Collection.SearchText(row) }) {
		case everywhere:
			return nil, until, AnyRow
		case unknown:
			if at := row.Position(f.Order); at > f.After {
				until = min(until, at)
			}
		case member:
			own := *row // without its neighbours in the change
			rows = append(rows, &own)
		}
	}
	if len(unseen) > 0 {
		rows = slices.DeleteFunc(rows, func(row *lists.Row) bool {
			return row.Compare(f.Order, behind(f.After)) < 0 || row.Compare(f.Order, until) >= 0
		})
		slices.SortFunc(rows, func(a, b *lists.Row) int { return a.Compare(f.Order, b.Position(f.Order)) })
	}
	return rows, until, Merged
}

// fill makes a range of a fill. A row that is known already must be the same, and so must
// be a part of the list. Else there is a mistake, here or in what was read, and the table
// is forgotten.
func (r *Replica) fill(f *Fill, unseen map[uuid.UUID]*lists.Row) Outcome {
	rows, until, o := f.at(unseen)
	if o == AnyRow {
		return o
	}
	t, l := r.list(&f.Key)
	consistent := o == Merged
	for i, row := range rows {
		if known := t.rows[row.ID].row; known != nil {
			consistent = consistent && *known == *row
			rows[i] = known
		}
	}
	consistent = consistent && r.cover(l, behind(f.After), until, rows)
	switch {
	case !consistent:
		r.forget(t)
		return Inconsistent
	case len(l.ranges) == 0:
		r.drop(l)
	}
	return Merged
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
	r.parked = append(r.parked, f)
	r.parkedBytes += f.bytes()
	for len(r.parked) > maxParked || r.parkedBytes > r.budget.Parked {
		r.unpark(r.parked[0], Dropped)
		r.parked = slices.Delete(r.parked, 0, 1)
	}
}

func (r *Replica) unpark(f *Fill, o Outcome) {
	r.parkedBytes -= f.bytes()
	r.counts.Fills[o]++
	f.outcome.Store(uint32(o))
}

// retry merges the fills for which the state suffices now.
func (r *Replica) retry() {
	r.parked = slices.DeleteFunc(r.parked, func(f *Fill) bool {
		o := r.merge(f)
		if o != Parked {
			r.unpark(f, o)
		}
		return o != Parked
	})
}
