package replica

import (
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// Key names a list.
type Key struct {
	Table  changefeed.Table
	Order  int    // of the table's list
	Match  uint64 // all rows of the list have these values of filters
	Search string // folded; empty = none
}

// List is a list of which the node has ranges. A page that was cut from it equals the state for
// as long as Version is the same. A list that is given up has another version for ever.
//
// Invariant: ranges are not empty intervals, they ascend and do not overlap.
type List struct {
	Key
	table   *table
	version atomic.Uint64
	used    atomic.Bool // was read since another list of the table had to be given up
	picked  int         // the last turn of verification that was its
	ranges  []*Range
}

// Version changes with each change of rows in the list's ranges, and when a range is given
// up. It takes no lock.
func (l *List) Version() uint64 { return l.version.Load() }

// position returns where the row stands in the list, and compare compares that with another position.
func (k *Key) position(row *list.Row) list.Position { return k.Table.List.Position(row, k.Order) }

func (k *Key) compare(row *list.Row, at list.Position) int {
	return k.Table.List.Compare(row, k.Order, at)
}

// find returns the index of the range that has the bound (covered), else of the next one.
func (l *List) find(at list.Position) (i int, covered bool) {
	i = sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].hi > at })
	return i, i < len(l.ranges) && l.ranges[i].lo <= at
}

// overlaps reports whether a range has a place from lo to before hi.
func (l *List) overlaps(lo, hi list.Position) bool {
	i, _ := l.find(lo)
	return i < len(l.ranges) && l.ranges[i].lo < hi
}

// within returns those of ascending rows that are from lo to before hi.
func (l *List) within(rows []*list.Row, lo, hi list.Position) []*list.Row {
	index := func(at list.Position) int {
		return sort.Search(len(rows), func(i int) bool { return l.compare(rows[i], at) >= 0 })
	}
	return rows[index(lo):index(hi)]
}

// around returns the position behind which a page begins that has a covered place in its middle, or where the ranges around
// it begin. ok is false if that is not known.
func (l *List) around(at list.Position) (after list.Position, ok bool) {
	i, _ := l.find(at)
	g, before := l.ranges[i], page.MaxLimit/2
	j := g.find(at)
	for ; j <= before && i > 0 && l.ranges[i-1].hi == g.lo; j = len(g.rows) {
		before -= j
		i--
		g = l.ranges[i]
	}
	if j > before {
		return l.position(g.rows[j-before-1]), true
	}
	return g.start()
}

// read cuts a page from the ranges: see Replica.Read.
func (l *List) read(dst []*list.Row, after list.Position, n, maxBytes int) (p Page, rows []*list.Row, ok bool) {
	touch(&l.used)
	p.List, p.Version, rows = l, l.version.Load(), dst
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].hi > after && !isBehind(l.ranges[i].hi, after) })
	if i == len(l.ranges) || l.ranges[i].lo > after && !isBehind(l.ranges[i].lo, after) {
		return p, rows, false
	}
	p.Last = l.ranges[i]
	j := sort.Search(len(p.Last.rows), func(j int) bool { return l.compare(p.Last.rows[j], after) > 0 })
	for bytes := 0; ; i, j = i+1, 0 {
		p.Last = l.ranges[i]
		touch(&p.Last.used)
		for _, row := range p.Last.rows[j:] {
			bytes += len(row.Text())
			if count := len(rows) - len(dst); count == n || bytes > maxBytes && count > 0 {
				p.More = true
				return p, rows, true
			}
			rows = append(rows, row)
		}
		if p.Last.hi == listEnd {
			return p, rows, true
		}
		if i+1 == len(l.ranges) || l.ranges[i+1].lo != p.Last.hi {
			return p, rows, false
		}
	}
}

// Page is a part of a list, without its rows.
type Page struct {
	List    *List
	Version uint64 // the List shows the page until its Version is another one
	More    bool   // the list has a row behind the page
	Last    *Range // the range that has the end of the page
}

// A bound is where a range begins or ends: at the Position of a row, directly behind one, or at
// the end of the list. A range has the positions from its lower bound to before its upper one.

// listEnd is behind each position.
var listEnd = list.Position(strings.Repeat("\xff", 32))

// behind returns the bound directly behind a position.
func behind(p list.Position) list.Position {
	if p == "" {
		return ""
	}
	return p + "\x00"
}

// isBehind says whether the bound is behind(p).
func isBehind(bound, p list.Position) bool {
	return len(bound) == len(p)+1 && bound[len(p)] == 0 && bound[:len(p)] == p
}

// Range is the rows of a list whose positions are from lo to before hi.
type Range struct {
	list   *List
	lo, hi list.Position // bounds
	rows   []*list.Row   // ascending
	used   atomic.Bool   // was read since the clock's hand passed
	index  int           // in clock.ranges
}

// Touch notes that a page which ends in the range was served again without Read, so that the
// range is kept. If it was cut in two meanwhile, its first part is.
func (g *Range) Touch() {
	touch(&g.list.used)
	touch(&g.used)
}

// find returns the index of the first row at the bound or behind it.
func (g *Range) find(at list.Position) int {
	return sort.Search(len(g.rows), func(i int) bool { return g.list.compare(g.rows[i], at) >= 0 })
}

// start returns the position behind which the range begins. ok is false if that is not known: the range begins at a row.
func (g *Range) start() (p list.Position, ok bool) {
	p, ok = list.Position(strings.TrimSuffix(string(g.lo), "\x00")), true
	if p != "" {
		ok = p != g.lo && g.list.Table.List.IsPosition(g.list.Order, p)
	}
	return p, ok
}

func (g *Range) bytes() int { return rangeBytes + len(g.lo) + len(g.hi) }

// touch notes a use. Most uses find it noted, and write nothing that processors share.
func touch(used *atomic.Bool) {
	if !used.Load() {
		used.Store(true)
	}
}

// rangeBytes is what a range takes besides its rows, and placeBytes what each place for a row
// in it takes (TestMemory).
const rangeBytes, placeBytes = 240, 12

// clock has all ranges and their bytes. It evicts by the CLOCK algorithm: a hand goes round, and
// a range that was used since it passed last stays until it passes again.
type clock struct {
	ranges []*Range
	hand   int
	bytes  int

	released int // bytes of rows since Apply last said so
}

func (c *clock) add(g *Range) {
	g.index = len(c.ranges)
	c.ranges = append(c.ranges, g)
	c.bytes += g.bytes()
}

// remove removes a range, and puts the last one into its place.
func (c *clock) remove(g *Range) {
	n := len(c.ranges) - 1
	last := c.ranges[n]
	last.index, c.ranges[g.index], c.ranges[n] = g.index, last, nil
	c.ranges = c.ranges[:n]
	c.bytes -= g.bytes()
}

// table has the rows that its lists show.
type table struct {
	of    changefeed.Table
	rows  map[string]held // by key
	lists map[Key]*List
	made  []*List // all of them, the oldest first: what is decided about them has this order
}

// held is a version of a row that ranges show. All of them have the same pointer to it, which
// no other version ever has.
type held struct {
	row   *list.Row
	shown int // how many ranges show it, at most one of each list
}

// share replaces rows by those that the table holds, and says which it holds in another version. Where a key may be there twice,
// another version may be another row.
func (t *table) share(k *Key, rows []*list.Row) (m *Mismatch) {
	for i, row := range rows {
		held := t.rows[row.Key()].row
		switch {
		case held == nil:
		case *held == *row:
			rows[i] = held
		case m == nil && !t.of.List.Repeats:
			m = differ(k, held, row)
		}
	}
	return m
}

// show notes that one more range shows a row, and hide that one less does. ok is false, and nothing is noted, if ranges
// show another row of its key: in a partitioned table, whose keys need not be unique.
func (t *table) show(c *clock, row *list.Row) (ok bool) {
	known := t.rows[row.Key()]
	if known.row != nil && known.row != row {
		return false
	}
	c.bytes += placeBytes
	t.rows[row.Key()] = held{row, known.shown + 1}
	if known.row == nil {
		c.bytes += rowSize(row)
	}
	return true
}

func (t *table) hide(c *clock, row *list.Row) {
	c.bytes -= placeBytes
	if shown := t.rows[row.Key()].shown - 1; shown > 0 {
		t.rows[row.Key()] = held{row, shown}
		return
	}
	c.bytes -= rowSize(row)
	c.released += rowSize(row)
	delete(t.rows, row.Key())
}

// rowBytes is what a row of a table takes besides its texts: the Row, and its place in the
// map (TestMemory).
const rowBytes = 32 + 72

func rowSize(r *list.Row) int { return rowBytes + r.Size() }

// stateIn says what is known of a row in the list: Known if it belongs there, Gone if it does not,
// TextUnknown if it may belong there at its position, and PlaceUnknown if it may anywhere. searchText returns
// the text that searches compare; known is false if the row does not have it.
func (k *Key) stateIn(row *list.Row, searchText func() (text string, known bool)) list.State {
	switch {
	case row.State == list.Gone || row.Match&k.Match != k.Match:
		return list.Gone
	case !k.Table.List.HasPosition(row, k.Order):
		return list.PlaceUnknown
	case row.State != list.Known:
		return list.TextUnknown
	case k.Search == "":
		return list.Known
	}
	switch text, known := searchText(); {
	case !known:
		return list.TextUnknown
	case strings.Contains(text, k.Search):
		return list.Known
	}
	return list.Gone
}

// positions are where one version of a row stands, in each order.
type positions [list.MaxOrders]list.Position

// positionsOf returns the positions of a version; none if it is nil or gone.
func positionsOf(l *list.List, row *list.Row) (p positions) {
	if row == nil || row.State == list.Gone {
		return p
	}
	for o := range l.Orders {
		p[o] = l.Position(row, o)
	}
	return p
}

// state is what is known of the last heartbeat.
type state struct {
	epoch     string // of the log
	position  changefeed.Position
	snapshot  changefeed.Snapshot
	end       uint64 // LSN of the heartbeat: each commit whose record lies before it is published
	lsn       uint64 // end of the heartbeat before: it was read before this snapshot was taken
	unsettled uint64 // the lowest LSN of a change that is published and not seen; 0 = there is none
	timeline  string
	startedAt string
	followed  []*list.List // the lists whose changes the log has
}

// isOfOtherServer says whether the read point is neither of this primary nor of a standby of it.
func (s *state) isOfOtherServer(v *changefeed.ReadPoint) bool {
	if v.Timeline != "" {
		return v.Timeline != s.timeline
	}
	return v.StartedAt != s.startedAt
}

// covers says whether the state shows all that the read point shows. An equal Xmax is not
// enough: transactions before it may have ended since. Neither is an LSN: a standby shows
// a commit before the primary does, also one that is no change, such as ALTER TABLE: it may
// come after a heartbeat's snapshot was taken, and before its LSN was read. So the snapshot
// must be younger than the LSN.
func (s *state) covers(v *changefeed.ReadPoint) bool {
	if v.Timeline != "" {
		return s.lsn >= v.Through && (s.unsettled == 0 || s.unsettled > v.Through)
	}
	return s.snapshot.Xmax >= v.Snapshot.Xmax && !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees)
}

// Start is the replica's state before rows are read.
type Start struct {
	At       changefeed.ReadPoint // the state: a Read returns what a statement with it would, unless a later Begin has another one
	Epoch    string               // of the log
	Proven   time.Time            // Proof.Moment of the state, or of the last one before since a Reset; zero = none
	followed []*list.List
	resets   uint64
}

// Follows reports whether the state has all changes of a list. Without a state it has none.
func (s *Start) Follows(l *list.List) bool { return slices.Contains(s.followed, l) }

// Is reports whether both are the same state.
func (s *Start) Is(o Start) bool { return s.resets == o.resets && s.At.Began == o.At.Began }

// IsAfterReset reports whether a Reset was between an earlier state and this one.
func (s *Start) IsAfterReset(earlier Start) bool { return s.resets != earlier.resets }

// Fill is what was read of a list: the rows behind After, up to the last of them.
type Fill struct {
	Key
	After list.Position
	page.Read
	Start    Start // what Begin returned before the statement was sent, or a copy was asked for
	Verifies bool  // it is compared with what is held, and adds nothing

	outcome atomic.Uint32
}

// Outcome returns what became of the fill so far. Only Parked is followed by another outcome.
func (f *Fill) Outcome() Outcome { return Outcome(f.outcome.Load()) }

func (f *Fill) bytes() int {
	n := rangeBytes
	for i := range f.Rows {
		n += rowSize(&f.Rows[i])
	}
	return n
}

// sees says whether the fill shows a change that was settled. A statement on the primary
// shows what a heartbeat showed that was taken before it began.
func (f *Fill) sees(c *remembered) bool {
	if f.At.Timeline != "" {
		return c.lsn <= f.At.LSN
	}
	return c.at.Compare(f.At.Began) <= 0 || f.At.Snapshot.Sees(c.xid)
}

// at brings the fill to the state: the list's rows behind the fill's position, to before
// until. The fill ends early at a row that may belong there and is not known. Inconsistent: then
// rows is the one that the list has elsewhere or not at all, or there is none if a key is there twice.
func (f *Fill) at(unseen map[string]*list.Row) (rows []*list.Row, until list.Position, o Outcome) {
	before := f.After
	for i := range f.Rows {
		row := f.Rows[i] // without its neighbours in the fill
		at := f.position(&row)
		if at == before {
			return nil, until, Inconsistent
		}
		if at < before {
			return []*list.Row{&row}, until, Inconsistent
		}
		before = at
		switch {
		case unseen[row.Key()] != nil:
		case row.Match&f.Match != f.Match || row.State != list.Known:
			return []*list.Row{&row}, until, Inconsistent
		default:
			rows = append(rows, &row)
		}
	}
	until = listEnd
	if !f.End && len(f.Rows) > 0 {
		until = behind(before)
	}
	for _, row := range unseen {
		switch f.stateIn(row, func() (string, bool) { return f.Table.List.SearchText(row) }) {
		case list.PlaceUnknown:
			return nil, until, AnyRow
		case list.TextUnknown:
			at := f.position(row)
			if at > f.After {
				until = min(until, at)
			}
		case list.Known:
			own := *row // without its neighbours in the change
			rows = append(rows, &own)
		}
	}
	if len(unseen) > 0 {
		rows = slices.DeleteFunc(rows, func(row *list.Row) bool {
			return f.compare(row, behind(f.After)) < 0 || f.compare(row, until) >= 0
		})
		slices.SortFunc(rows, func(a, b *list.Row) int { return f.compare(a, f.position(b)) })
	}
	return rows, until, Merged
}

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
	Unfollowed           // the log does not have the changes of the list
	Outcomes             // how many there are
)

// String is the name that metrics use.
func (o Outcome) String() string {
	return [...]string{"merged", "parked", "resynced", "wrong-server", "too-old", "any-row", "inconsistent", "dropped", "unfollowed"}[o]
}

// Counts are what happened since the start.
type Counts struct {
	Rows      uint64           // versions of rows that heartbeats brought
	Forgotten uint64           // tables given up, because a change did not name its rows
	Uncovered uint64           // positions and lists given up, because a row's text or name is unknown
	Evicted   uint64           // ranges and lists given up, because of a budget
	Fills     [Outcomes]uint64 // by outcome; one that was parked is counted again at the end
}

// Stats are the numbers of a replica.
type Stats struct {
	Counts
	Tables, Lists, Ranges, Rows int // held
	Bytes                       int // of rows and ranges
	Changes, ChangeBytes        int // remembered
	Parked                      int // fills

	IDs      int // rows of which it is remembered that they have changed
	IDBytes  int
	Verified map[string]Verified // by the name of the list

	Horizon time.Time // who knows all changes since then need not get a list whole, except after one that did not name its rows; zero = nothing is proven
}

// point is when a change was settled: the heartbeat that showed it, and the change's own LSN.
type point struct {
	at  changefeed.Position
	lsn uint64
}

// remembered is a settled change of one table, kept for fills that do not show it.
type remembered struct {
	point
	xid uint64
	changefeed.Touched
}

// rememberedBytes and changedBytes are the bytes of a change and of each of its rows, without
// their texts.
const rememberedBytes, changedBytes = 144, 64

func (c *remembered) bytes() int {
	n := rememberedBytes
	for i := range c.Rows {
		n += changedBytes + c.Rows[i].Size()
	}
	return n
}

// history has the changes that were settled last, in this order.
//
// Invariant: a change that was settled, and that it does not have, was settled by the
// floor's heartbeat or before, and its LSN is not above the floor's.
type history struct {
	queue []*remembered
	of    map[changefeed.Table][]*remembered
	bytes int
	floor point
}

func (h *history) add(c *remembered) {
	h.queue = append(h.queue, c)
	h.of[c.Table] = append(h.of[c.Table], c)
	h.bytes += c.bytes()
}

// unseen returns the rows that have changed between what the fill shows and what the state
// shows, each in its last version. What a change left as it was is that of the change before. What
// all of them left is that of the fill, even if it shows some of them already, or else that of the
// table, which shows the state.
func (h *history) unseen(f *Fill, t *table) (rows map[string]*list.Row, o Outcome) {
	for _, table := range [...]changefeed.Table{f.Table, changefeed.AllRowsOf(f.Table.List).Table} {
		for _, c := range h.of[table] {
			switch {
			case f.sees(c):
				continue
			case len(c.Rows) == 0:
				return nil, AnyRow
			case rows == nil:
				rows = map[string]*list.Row{}
			}
			for i := range c.Rows {
				row := &c.Rows[i]
				rows[row.Key()] = row.Complete(rows[row.Key()])
			}
		}
	}
	for i := range f.Rows {
		row := rows[f.Rows[i].Key()]
		if row != nil {
			rows[row.Key()] = row.Complete(&f.Rows[i])
		}
	}
	if t != nil {
		for key, row := range rows {
			rows[key] = row.Complete(t.rows[key].row)
		}
	}
	return rows, Merged
}

// lacks says whether a read point may miss a change that is forgotten.
func (h *history) lacks(v *changefeed.ReadPoint) bool {
	if v.Timeline != "" {
		return v.LSN < h.floor.lsn
	}
	return v.Began.Compare(h.floor.at) < 0
}

// trim forgets the oldest changes.
func (h *history) trim(budget int) {
	for h.bytes > budget {
		c := h.queue[0]
		h.queue[0], h.queue = nil, h.queue[1:]
		h.floor = point{c.at, max(h.floor.lsn, c.lsn)}
		h.bytes -= c.bytes()
		if of := h.of[c.Table]; len(of) > 1 {
			of[0], h.of[c.Table] = nil, of[1:]
		} else {
			delete(h.of, c.Table)
		}
	}
}
