// Package replica holds rows of the database in the memory of a node: ranges of lists, which
// heartbeats keep equal to what the database shows. It has no I/O, no clock and no
// goroutine.
//
//	table  the rows of a list that one tenant sees
//	list   those of them that match a filter and a search, in an order
//	range  a part of a list, between two positions, of which the node has every row
//	state  the snapshot of the last heartbeat that was applied
//
// Invariant. The rows of each range are those, and in the versions, that a statement with
// the snapshot of the state returns for that part of the list.
//
//	heartbeat ──► Apply: the changes that it sees and the one before does not
//	statement, or copy in Redis ──► Begin … Merge: a range, once the state shows all that it shows
//	request ──► Read: a page is cut from the ranges
//
// What is not known (a text that the log does not carry, or whether a row belongs to a
// searched list) is in no range: a page that needs it is read from the database. The log says
// that a change left a long value as it was, without the value: the version directly before
// the change has it, if that is held.
//
// Why each row has the right version although transactions become visible in another
// order than the log has them: only the order of the changes of one row matters. Let c and
// d change it, and d come later. d waited for c's lock on the row, or on its key in the
// unique index. c releases it only when all snapshots see c. So each snapshot that sees d
// sees c.
package replica

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// Budgets bound what a replica holds.
type Budgets struct {
	Rows    int // bytes of rows and ranges, and of IDs
	Changes int // bytes of changes that are remembered for Merge
	Parked  int // bytes of fills that wait for a heartbeat
	IDs     int // bytes of what is remembered for Changes
	Lists   int // of one table
	Range   int // rows of a range: one with more is cut in two; 0 = 256

	Released int // bytes of rows that were let go, but that callers may hold, before Apply says so
}

// Replica is the rows of one node. Its methods may be called concurrently.
//
// Invariants, besides that of the package:
//   - a row is in the map of its table if and only if a range shows it, and all ranges
//     that show it show this version;
//   - history has every change that the state sees, and that a statement at its floor or
//     later may not see.
type Replica struct {
	budget Budgets

	mu      sync.RWMutex // held for writing some microseconds a heartbeat
	resets  uint64
	synced  bool // a heartbeat was applied since the last Reset
	state   state
	tables  map[changefeed.Table]*table
	history history
	changes changes
	clock   clock
	counts  Counts

	verification verification

	parked      []*Fill // that wait for a heartbeat, the oldest first
	parkedBytes int
}

// New makes a replica that has no state.
func New(budget Budgets) *Replica {
	budget.Range = cmp.Or(budget.Range, 256)
	r := &Replica{budget: budget, verification: verification{of: map[*list.List]*Verified{}}}
	r.Reset("")
	return r
}

// Reset forgets everything: changes may have been missed. The log of an epoch follows.
func (r *Replica) Reset(epoch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tables {
		for _, l := range t.lists {
			l.version.Add(1)
		}
	}
	for _, f := range r.parked {
		r.unpark(f, Resynced)
	}
	r.resets++
	r.synced, r.state, r.changes = false, state{epoch: epoch}, newChanges(r.budget.IDs)
	r.tables, r.clock, r.parked = map[changefeed.Table]*table{}, clock{released: r.clock.released}, nil // unpark has made parkedBytes 0
	r.history = history{of: map[changefeed.Table][]*remembered{}}
}

// Apply moves the state to a heartbeat. The first one after a Reset makes the first state:
// all that came before it is not known. released = the budget of released rows is used up, and
// counted from zero again.
func (r *Replica) Apply(b *changefeed.Beat) (released bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes.begin(b.At, b.Moment)
	if !r.synced {
		r.synced = true
		r.history.floor = point{b.At, b.LSN}
	} else {
		for _, c := range b.Settled {
			r.settle(c, point{b.At, c.LSN})
		}
		r.follow(b.Followed, point{b.At, b.LSN})
	}
	r.state = state{epoch: r.state.epoch, followed: b.Followed, position: b.At, snapshot: b.Snapshot, lsn: r.state.end, end: b.LSN,
		timeline: b.Timeline, startedAt: b.StartedAt}
	for _, c := range b.Unsettled {
		if r.state.unsettled == 0 || c.LSN < r.state.unsettled {
			r.state.unsettled = c.LSN
		}
	}
	for _, l := range b.Followed {
		if r.verification.of[l] == nil {
			r.verification.of[l] = &Verified{Mismatches: map[string]uint64{Rows: 0, Folds: 0}}
		}
	}
	if b.Checkpoint != nil {
		r.changes.lasts.restore(b.Checkpoint, r.state.epoch, b.Followed)
	}
	r.history.trim(r.budget.Changes)
	r.changes.trim()
	r.retry()
	r.evict()
	released = r.clock.released > r.budget.Released
	if released {
		r.clock.released = 0
	}
	return released
}

// settle applies a change that the database shows from now on.
func (r *Replica) settle(c *changefeed.Change, at point) {
	for _, of := range c.Touched {
		if of.List == nil { // keys
			continue
		}
		r.history.add(&remembered{point: at, xid: c.XID, Touched: of})
		r.changes.settle(&of)
		t := r.tables[of.Table]
		switch {
		case of.All:
			r.forgetList(of.List)
		case t == nil:
		case len(of.Rows) == 0:
			r.forget(t)
		default:
			for i := range of.Rows {
				r.change(t, &of.Rows[i])
			}
		}
	}
}

// follow notes which lists the log follows from the heartbeat on. What was read before of a list that it did not
// follow may lack any change.
func (r *Replica) follow(followed []*list.List, at point) {
	for _, l := range r.state.followed {
		if !slices.Contains(followed, l) {
			r.forgetList(l)
		}
	}
	for _, l := range followed {
		if !slices.Contains(r.state.followed, l) {
			unknown := changefeed.AllRowsOf(l)
			r.history.add(&remembered{point: at, xid: math.MaxUint64, Touched: unknown})
			r.changes.settle(&unknown)
		}
	}
}

// forgetList gives up the tables of a list.
func (r *Replica) forgetList(l *list.List) {
	for _, t := range r.tables {
		if t.of.List == l {
			r.forget(t)
		}
	}
}

// forget gives up a table: any of its rows may have changed.
func (r *Replica) forget(t *table) {
	r.counts.Forgotten++
	for _, l := range t.made {
		r.drop(l)
	}
}

// change replaces a row of a table: first no range shows the old version, and then those
// that the new one belongs to show it. If the table does not have the row, no range shows it.
// What the change left as it was is taken from the old version, which is the one directly before it:
// the table has what the changes before have left, or does not have the row.
func (r *Replica) change(t *table, changed *list.Row) {
	r.counts.Rows++
	next, old := *changed, t.rows[changed.Key()].row // without its neighbours in the change
	row := &next
	if old != nil {
		next = *changed.Complete(old)
		if *old == next {
			return
		}
	}
	from, to := positionsOf(t.of.List, old), positionsOf(t.of.List, row)
	r.verification.changes.note(t, old, row, from, to)
	if old != nil {
		for _, l := range t.made {
			r.remove(l, old, from[l.Order])
		}
	}
	if row.State == list.Gone {
		return
	}
	searchText := sync.OnceValues(func() (string, bool) { return t.of.List.SearchText(row) })
	for _, l := range t.made {
		r.put(l, row, to[l.Order], l.stateIn(row, searchText))
	}
}

// remove removes a row from the range that shows it, if one does.
func (r *Replica) remove(l *List, row *list.Row, at list.Position) {
	if row.Match&l.Match != l.Match {
		return
	}
	i, covered := l.find(at)
	if !covered {
		return
	}
	g := l.ranges[i]
	j := g.find(at)
	if j < len(g.rows) && g.rows[j] == row {
		l.version.Add(1)
		g.rows = slices.Delete(g.rows, j, j+1)
		l.table.hide(&r.clock, row)
	}
}

// put puts a row into the range that covers its position, if it belongs there. What is not
// known for certain is not covered any more.
func (r *Replica) put(l *List, row *list.Row, at list.Position, state list.State) {
	i, covered := l.find(at)
	switch {
	case state == list.Known && covered:
		l.version.Add(1)
		g := l.ranges[i]
		g.rows = slices.Insert(g.rows, g.find(at), row)
		l.table.show(&r.clock, row)
		n := len(g.rows)
		if n > r.budget.Range {
			r.cut(l, l.position(g.rows[n/2]))
		}
	case state == list.TextUnknown && covered:
		r.counts.Uncovered++
		r.uncover(l, at, behind(at))
	case state == list.PlaceUnknown:
		r.counts.Uncovered++
		r.drop(l)
	}
}

// Begin returns Fill.Start. It is called before a statement is sent, or a copy is asked for.
func (r *Replica) Begin() Start {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.start()
}

func (r *Replica) start() Start {
	at := changefeed.ReadPoint{StartedAt: r.state.startedAt, Snapshot: r.state.snapshot, Began: r.state.position}
	return Start{At: at, Epoch: r.state.epoch, Proven: r.changes.proven, followed: r.state.followed, resets: r.resets}
}

// Changes returns which rows of a table, whose list is followed, have changed behind a point, in the order of their last
// changes, at most n.
func (r *Replica) Changes(of changefeed.Table, behind changefeed.Point, n int) (c Changes) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c.Start = r.start()
	if !c.Start.Follows(of.List) {
		return c
	}
	known, lack := r.changes.known(of)
	if known.Compare(behind) > 0 {
		c.Lack = lack
		return c
	}
	c.Rows, c.More = r.changes.since(of, behind, n)
	t := r.tables[of]
	for i := range c.Rows {
		if t != nil {
			c.Rows[i].Row = t.rows[c.Rows[i].Key].row
		}
	}
	return c
}

// Checkpoint returns when tables last changed, for nodes that begin to read the log; nil = there is no state.
func (r *Replica) Checkpoint() *changefeed.Checkpoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.synced {
		return nil
	}
	c := r.changes.lasts.checkpoint()
	c.Epoch, c.At, c.Lists = r.state.epoch, r.state.position, r.state.followed
	return c
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
	case !slices.Contains(r.state.followed, f.Table.List):
		return Unfollowed
	case r.state.isOfOtherServer(&f.At):
		return WrongServer
	case r.history.lacks(&f.At):
		return TooOld
	case !r.state.covers(&f.At):
		return Parked
	}
	rows, o := r.history.unseen(f, r.tables[f.Table])
	if o != Merged {
		return o
	}
	return r.fill(f, rows)
}

// fill makes a range of a fill. A row that is known already must be the same, and so must
// be a part of the list. Else there is a mistake, here or in what was read, and the table
// is forgotten. A verification adds nothing; of a list that was given up meanwhile it has nothing to compare.
func (r *Replica) fill(f *Fill, unseen map[string]*list.Row) Outcome {
	if f.Verifies && (r.tables[f.Table] == nil || r.tables[f.Table].lists[f.Key] == nil) {
		return Merged
	}
	rows, until, o := f.at(unseen)
	if o == AnyRow {
		return o
	}
	t, l := r.list(&f.Key)
	switch {
	case o == Merged:
		m := t.share(&l.Key, rows)
		if m != nil || f.Verifies || f.Misfold != nil || l.overlaps(behind(f.After), until) {
			o = r.verification.compare(t, l, f, m, rows, until)
		}
	case len(rows) > 0:
		r.verification.differs(differ(&f.Key, nil, rows[0]))
	}
	switch {
	case o == Inconsistent || !f.Verifies && !r.cover(l, behind(f.After), until, rows):
		r.forget(t)
		return Inconsistent
	case len(l.ranges) == 0:
		r.drop(l)
	}
	return Merged
}

// Mismatch returns the last mismatch since it was called before; nil = there was none.
func (r *Replica) Mismatch() *Mismatch { return r.verification.mismatch.Swap(nil) }

// Pick names what to verify next: a list of which there are ranges, and the position behind which a page of it begins. It goes
// round the kinds of changes, the lists that have changed, and all ranges.
func (r *Replica) Pick() (k Key, after list.Position, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, after := r.verification.pick(r.tables, r.clock.ranges)
	if l != nil {
		k = l.Key
	}
	return k, after, l != nil
}

// maxParked bounds the fills that wait. Each is looked at at every heartbeat.
const maxParked = 1024

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

// Read cuts a page from the ranges of a list: up to n rows behind a position, as many as
// have maxBytes of text, but at least one. If the ranges do not have all of this, ok is
// false, and rows are those that they have. The rows are appended to dst; they are never
// changed, and each version of a row has its own pointer.
func (r *Replica) Read(dst []*list.Row, k *Key, after list.Position, n, maxBytes int) (p Page, rows []*list.Row, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.tables[k.Table]
	if t == nil {
		return p, dst, false
	}
	l := t.lists[*k]
	if l == nil {
		return p, dst, false
	}
	return l.read(dst, after, n, maxBytes)
}

// list returns the table and the list of a key, and makes them where the node has none. Of too
// many lists it gives one up that was not read since the last time that there were too many.
func (r *Replica) list(k *Key) (*table, *List) {
	t := r.tables[k.Table]
	if t == nil {
		t = &table{of: k.Table, rows: map[string]held{}, lists: map[Key]*List{}}
		r.tables[k.Table] = t
	}
	l := t.lists[*k]
	if l != nil {
		return t, l
	}
	if len(t.lists) >= r.budget.Lists {
		var least *List
		for _, l := range t.made {
			if least == nil || least.used.Swap(false) {
				least = l
			}
		}
		r.counts.Evicted++
		r.drop(least)
		r.tables[k.Table] = t
	}
	l = &List{Key: *k, table: t}
	t.lists[*k], t.made = l, append(t.made, l)
	return t, l
}

// cover adds the rows of a list from lo to before hi: all that it has there. Where it covers these already, it has them. If a
// key is there twice, ok is false, and the range ends before the second.
func (r *Replica) cover(l *List, lo, hi list.Position, rows []*list.Row) (ok bool) {
	for lo < hi {
		i, covered := l.find(lo)
		if covered {
			lo = l.ranges[i].hi
			continue
		}
		g := &Range{list: l, lo: lo, hi: hi}
		if i < len(l.ranges) {
			g.hi = min(hi, l.ranges[i].lo)
		}
		g.rows = slices.Clone(l.within(rows, g.lo, g.hi))
		twice := slices.IndexFunc(g.rows, func(row *list.Row) bool { return !l.table.show(&r.clock, row) })
		if twice >= 0 {
			g.rows = g.rows[:twice]
		}
		g.used.Store(true)
		l.ranges = slices.Insert(l.ranges, i, g)
		r.clock.add(g)
		if twice >= 0 {
			return false
		}
		lo = g.hi
	}
	return true
}

// cut makes two ranges of the one that has the bound, if there is one.
func (r *Replica) cut(l *List, at list.Position) {
	i, covered := l.find(at)
	if !covered || l.ranges[i].lo == at {
		return
	}
	g := l.ranges[i]
	r.clock.remove(g)
	j := g.find(at)
	right := &Range{list: l, lo: at, hi: g.hi, rows: slices.Clone(g.rows[j:])}
	right.used.Store(g.used.Load())
	clear(g.rows[j:])
	g.hi, g.rows = at, g.rows[:j]
	l.ranges = slices.Insert(l.ranges, i+1, right)
	r.clock.add(g)
	r.clock.add(right)
}

// uncover gives up what the list has from lo to before hi.
func (r *Replica) uncover(l *List, lo, hi list.Position) {
	r.cut(l, lo)
	r.cut(l, hi)
	from, _ := l.find(lo)
	to, _ := l.find(hi)
	for _, g := range l.ranges[from:to] {
		for _, row := range g.rows {
			l.table.hide(&r.clock, row)
		}
		g.rows = nil // pages may have the range
		r.clock.remove(g)
	}
	l.ranges = slices.Delete(l.ranges, from, to)
	l.version.Add(1)
	if len(l.ranges) == 0 {
		delete(l.table.lists, l.Key)
		l.table.made = slices.DeleteFunc(slices.Clone(l.table.made), func(o *List) bool { return o == l }) // somebody may go through it
		if len(l.table.lists) == 0 {
			delete(r.tables, l.table.of)
		}
	}
}

// drop gives up the list.
func (r *Replica) drop(l *List) { r.uncover(l, "", listEnd) }

// maxSteps bounds the ranges that the hand passes at once, so that requests do not wait,
// unless the budget is exceeded by far.
const maxSteps = 128

// evict gives up ranges until the budget is kept.
func (r *Replica) evict() {
	c, budget := &r.clock, r.budget.Rows-r.changes.size
	for steps := 0; c.bytes > budget && len(c.ranges) > 0 && (steps < maxSteps || c.bytes > budget+budget/16); steps++ {
		c.hand++
		if c.hand >= len(c.ranges) {
			c.hand = 0
		}
		if g := c.ranges[c.hand]; steps > 2*len(c.ranges) || !g.used.Swap(false) {
			r.counts.Evicted++
			r.uncover(g.list, g.lo, g.hi)
		}
	}
}

func (r *Replica) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Stats{Counts: r.counts, Tables: len(r.tables), Ranges: len(r.clock.ranges), Bytes: r.clock.bytes,
		Changes: len(r.history.queue), ChangeBytes: r.history.bytes, Parked: len(r.parked), IDs: r.changes.ids, IDBytes: r.changes.size,
		Horizon: r.changes.knownSince(), Verified: map[string]Verified{}}
	for l, v := range r.verification.of {
		s.Verified[l.Name] = Verified{v.Pages, maps.Clone(v.Mismatches)}
	}
	for _, t := range r.tables {
		s.Lists += len(t.lists)
		s.Rows += len(t.rows)
	}
	return s
}
