package replica

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// changes are which rows of which tables have changed, for clients that ask what they have missed since they last asked.
//
//	known ┃ a b c ┃ d e │ f … ┃   one record: the ids of a table's rows, each at its last change, in blocks
//
// An id that changes again moves to the end: rows that change all the time take no more room than others.
//
// Invariants:
//   - a row of a table that has changed behind the table's known point is in its record, once, at the point of its last
//     change, and the record says whether it is gone;
//   - points are counted as heartbeats settle changes, also of ids that have moved since, so that all nodes count alike;
//   - blocks ascend, none is empty, and two neighbours have more ids than one block may.
type changes struct {
	budget, block int // bytes; the most ids of a block

	records []*record
	of      map[changefeed.Table]*record // also of changefeed.AllRowsOf lists: it is about all their tables
	ids     int
	bytes   int       // of ids and records
	size    int       // bytes of all that is remembered, since the last heartbeat
	now     *beat     // the heartbeat that settles changes
	proven  time.Time // the moment of the last proof; zero = there was none
	first   *beat     // of rows of tables without a record nothing is known before its end; nil = there was no heartbeat
	lack    Lack      // why
	horizon int64     // a client that knows all since then has not missed what had to be dropped; as beat.moment
	lasts   lasts
}

// Lack is why a client that knows a point gets the whole list.
type Lack uint8

// The reasons.
const (
	Complete  Lack = iota // it does not: all changes behind the point are known
	NotJoined             // the log was not read before
	TooMany               // too many rows have changed
	Unnamed               // a change did not name its rows
)

// beat is a heartbeat. What it settles shares it.
type beat struct {
	changefeed.Position
	moment int64 // of its proof, or of the last one before, in nanoseconds since 1970
}

// place is the last change of a row.
type place struct {
	*beat
	ordinal uint32
	gone    bool // no list has it since
}

func (p place) point() changefeed.Point {
	return changefeed.Point{At: p.Position, Ordinal: p.ordinal}
}

// changed is the id of a row and its last change.
type changed struct {
	key string
	place
}

// record is what is remembered of a table.
type record struct {
	of     changefeed.Table
	last   *beat  // that settled a change of it
	count  uint32 // how many rows that one settled
	known  changefeed.Point
	lack   Lack // why nothing is known before
	places map[string]place
	blocks [][]changed
	bytes  int // of the ids
	most   int // ids at once in places, whose memory only grows
}

// idBytes is what an id takes besides its key, and recordBytes what a table takes besides its ids (TestMemoryOfChanges).
const idBytes, recordBytes = 152, 560

// maxBlock is the most ids of a block. Where the budget is small, blocks are: to drop one is to lose little.
const maxBlock = 64

func newChanges(budget int) changes {
	return changes{budget: budget, block: min(maxBlock, 1+budget/(maxBlock*idBytes)), of: map[changefeed.Table]*record{}, lack: NotJoined,
		lasts: newLasts(budget)}
}

// begin begins with a heartbeat.
func (c *changes) begin(at changefeed.Position, moment time.Time) {
	if !moment.IsZero() {
		if c.proven.IsZero() {
			c.horizon = moment.UnixNano()
		}
		c.proven = moment
	}
	c.now = &beat{at, c.proven.UnixNano()}
	if c.first == nil {
		c.first, c.lasts.first = c.now, at
	}
}

// knownSince returns Stats.Horizon.
func (c *changes) knownSince() (t time.Time) {
	if !c.proven.IsZero() {
		t = time.Unix(0, c.horizon)
	}
	return t
}

// settle notes which rows have changed.
func (c *changes) settle(of *changefeed.Touched) {
	c.lasts.settle(of.Table, c.now.Position)
	if len(of.Rows) == 0 {
		c.forget(of.Table)
		return
	}
	t := c.record(of.Table)
	if t.last != c.now {
		t.last, t.count = c.now, 0
	}
	for i := range of.Rows {
		t.count++
		c.note(t, of.Rows[i].Key(), place{c.now, t.count, of.Rows[i].State == list.Gone})
	}
}

// note moves an id to the end.
func (c *changes) note(t *record, key string, now place) {
	before, noted := t.places[key]
	if noted {
		key = t.remove(before, c.block)
	} else {
		key = strings.Clone(key) // without its row
		c.count(t, key, 1)
	}
	t.places[key] = now
	t.most = max(t.most, len(t.places))
	n := len(t.blocks)
	if n == 0 || len(t.blocks[n-1]) >= c.block {
		t.blocks = append(t.blocks, nil)
		n++
	}
	t.blocks[n-1] = append(t.blocks[n-1], changed{key, now})
}

// count counts an id that has come (1) or gone (-1).
func (c *changes) count(t *record, key string, n int) {
	bytes := n * (idBytes + len(key))
	c.ids, c.bytes, t.bytes = c.ids+n, c.bytes+bytes, t.bytes+bytes
}

// remove removes the id of a place, and joins its block with a neighbour if one block has room for both.
func (t *record) remove(p place, block int) (key string) {
	n, i := t.behind(changefeed.Point{At: p.Position, Ordinal: p.ordinal - 1})
	key = t.blocks[n][i].key
	t.blocks[n] = slices.Delete(t.blocks[n], i, i+1)
	for _, left := range [...]int{n, n - 1} {
		if left >= 0 && left+1 < len(t.blocks) && len(t.blocks[left])+len(t.blocks[left+1]) <= block {
			t.blocks[left] = append(t.blocks[left], t.blocks[left+1]...)
			t.blocks = slices.Delete(t.blocks, left+1, left+2)
		}
	}
	if len(t.blocks[0]) == 0 {
		t.blocks = nil
	}
	return key
}

// behind returns where the ids behind a point begin: the block, and the index there.
func (t *record) behind(p changefeed.Point) (n, i int) {
	n = sort.Search(len(t.blocks), func(n int) bool { b := t.blocks[n]; return b[len(b)-1].point().Compare(p) > 0 })
	if n < len(t.blocks) {
		i = sort.Search(len(t.blocks[n]), func(i int) bool { return t.blocks[n][i].point().Compare(p) > 0 })
	}
	return n, i
}

// forget: any row of the table, or of all tables of its list, may have changed.
func (c *changes) forget(of changefeed.Table) {
	c.drop(func(t *record) bool { return t.of == of || of.All && t.of.List == of.List })
	t := c.record(of)
	t.last, t.known, t.lack = c.now, changefeed.EndOf(c.now.Position), Unnamed
}

func (c *changes) record(of changefeed.Table) *record {
	t := c.of[of]
	if t == nil {
		of.Tenant = strings.Clone(of.Tenant)
		t = &record{of: of, places: map[string]place{}}
		c.of[of], c.records = t, append(c.records, t)
		c.bytes += recordBytes
	}
	return t
}

// drop drops records.
func (c *changes) drop(which func(*record) bool) {
	c.records = slices.DeleteFunc(c.records, func(t *record) bool {
		if !which(t) {
			return false
		}
		c.ids -= len(t.places)
		c.bytes -= recordBytes + t.bytes
		delete(c.of, t.of)
		return true
	})
}

// dropOldest drops the oldest block of ids. The caller says what is known of the table from then on.
func (c *changes) dropOldest(t *record) (last place) {
	for _, id := range t.blocks[0] {
		delete(t.places, id.key)
		c.count(t, id.key, -1)
		last = id.place
	}
	t.blocks[0], t.blocks = nil, t.blocks[1:]
	if len(t.places) < t.most/4 {
		places := make(map[string]place, len(t.places))
		maps.Copy(places, t.places)
		t.places, t.most = places, len(places)
	}
	return last
}

// trim keeps the budget, and notes the size: see dropIDs.
func (c *changes) trim() {
	c.lasts.trim()
	ofTables := lastBytes * len(c.lasts.of)
	if c.bytes+ofTables > c.budget {
		c.dropIDs(c.budget - c.budget/256 - ofTables)
	}
	c.size = c.bytes + ofTables
}

// dropIDs keeps this many bytes of ids, with some room, so that it is not called for each change: the table with the most ids
// drops its oldest, so that the many changes of one tenant cost no other anything.
func (c *changes) dropIDs(budget int) {
	for c.bytes > budget && len(c.records) > 0 {
		most := slices.MaxFunc(c.records, func(a, b *record) int { return cmp.Compare(len(a.places), len(b.places)) })
		if len(most.blocks) < 2 {
			c.dropRecords()
			continue
		}
		for range 1 + len(most.blocks)/64 {
			last := c.dropOldest(most)
			most.known, most.lack = last.point(), TooMany
			c.horizon = max(c.horizon, last.moment)
		}
	}
}

// dropRecords drops about an eighth of the records, those that have not changed for longest: there are many, and each has
// few ids.
func (c *changes) dropRecords() {
	var lasts []*beat
	for i := 0; i < len(c.records); i += 1 + len(c.records)/64 {
		lasts = append(lasts, c.records[i].last)
	}
	slices.SortFunc(lasts, func(a, b *beat) int { return a.Compare(b.Position) })
	c.first, c.lack = lasts[len(lasts)/8], TooMany
	c.horizon = max(c.horizon, c.first.moment)
	c.drop(func(t *record) bool { return t.last.Compare(c.first.Position) <= 0 })
}

// known returns the point behind which each change of a table is known, and why that is not earlier.
func (c *changes) known(of changefeed.Table) (p changefeed.Point, lack Lack) {
	p, lack = changefeed.EndOf(c.first.Position), c.lack
	for _, of := range [...]changefeed.Table{of, changefeed.AllRowsOf(of.List).Table} {
		t := c.of[of]
		if t != nil && t.known.Compare(p) > 0 {
			p, lack = t.known, t.lack
		}
	}
	if last := changefeed.EndOf(c.lasts.last(of)); last.Compare(p) < 0 { // since then there was no change to remember
		p = last
	}
	return p, lack
}

// since returns which rows of a table have changed behind a point, in the order of their last changes, at most n.
func (c *changes) since(of changefeed.Table, p changefeed.Point, n int) (rows []Changed, more bool) {
	t := c.of[of]
	if t == nil {
		return nil, false
	}
	from, i := t.behind(p)
	for ; from < len(t.blocks); from, i = from+1, 0 {
		for _, id := range t.blocks[from][i:] {
			if len(rows) == n {
				return rows, true
			}
			rows = append(rows, Changed{Key: id.key, At: id.point(), Gone: id.gone})
		}
	}
	return rows, false
}

// lasts are when tables last changed. A client that knows all since then has missed nothing, whatever is remembered of rows.
// A checkpoint makes them reach back to before the part of the log that the node has read.
//
// Invariant: all changes of a table behind first, up to the state, were settled at or before the position that of has for the
// table or for all rows of its list; without any there was none.
type lasts struct {
	first changefeed.Position
	of    map[uint64]changefeed.Position // by Table.Sum
	most  int                            // tables

	until   changefeed.Position // of a checkpoint: what is settled up to there is in of already
	covered []*list.List        // of these
}

// lastBytes is what a table takes (TestMemoryOfChanges), and lastsShare is the part of the budget that all may take.
const lastBytes, lastsShare = 48, 8

func newLasts(budget int) lasts {
	return lasts{of: map[uint64]changefeed.Position{}, most: max(1, budget/lastsShare/lastBytes)}
}

// settle notes that a heartbeat settles a change of a table. One that a checkpoint knows is not noted again: the checkpoint names
// the tables of changes of which the node, which has not read them, knows only the list.
func (l *lasts) settle(of changefeed.Table, at changefeed.Position) {
	if at.Compare(l.until) > 0 || !slices.Contains(l.covered, of.List) {
		l.of[of.Sum()] = at
	}
}

// last returns the heartbeat that settled the last change of a table, or a later one.
func (l *lasts) last(of changefeed.Table) changefeed.Position {
	at := l.first
	for _, of := range [...]changefeed.Table{of, changefeed.AllRowsOf(of.List).Table} {
		at = later(at, l.of[of.Sum()])
	}
	return at
}

func later(a, b changefeed.Position) changefeed.Position {
	if a.Compare(b) > 0 {
		return a
	}
	return b
}

// checkpoint returns what restore takes, but for the state that it is of.
func (l *lasts) checkpoint() *changefeed.Checkpoint {
	c := &changefeed.Checkpoint{First: l.first, Last: make([]changefeed.LastChange, 0, len(l.of))}
	for table, at := range l.of {
		c.Last = append(c.Last, changefeed.LastChange{Table: table, At: at})
	}
	return c
}

// restore takes a checkpoint of the epoch that begins earlier and reaches what the node knows itself. followed are the lists whose
// changes the node knows: of those that the checkpoint lacks, nothing more is known than before.
func (l *lasts) restore(c *changefeed.Checkpoint, epoch string, followed []*list.List) {
	if c.Epoch != epoch || c.First.Compare(l.first) >= 0 || c.At.Compare(l.first) < 0 {
		return
	}
	of := make(map[uint64]changefeed.Position, len(c.Last))
	for _, last := range c.Last {
		of[last.Table] = last.At
	}
	for _, covered := range c.Lists { // what the node knows only of the whole list, the checkpoint says of each table
		all := changefeed.AllRowsOf(covered).Sum()
		if l.of[all].Compare(c.At) <= 0 {
			delete(l.of, all)
		}
	}
	for table, at := range l.of {
		of[table] = later(of[table], at)
	}
	for _, other := range followed {
		if !slices.Contains(c.Lists, other) {
			all := changefeed.AllRowsOf(other).Sum()
			of[all] = later(of[all], l.first)
		}
	}
	l.first, l.of, l.until, l.covered = c.First, of, c.At, c.Lists
}

// trim drops an eighth of too many tables, those that have not changed for longest.
func (l *lasts) trim() {
	if len(l.of) <= l.most {
		return
	}
	all := make([]changefeed.Position, 0, len(l.of))
	for _, at := range l.of {
		all = append(all, at)
	}
	slices.SortFunc(all, changefeed.Position.Compare)
	l.first = later(l.first, all[len(all)/8])
	for table, at := range l.of {
		if at.Compare(l.first) <= 0 {
			delete(l.of, table)
		}
	}
}

// Changes are which rows of a table have changed behind a point.
type Changes struct {
	Start Start // the state that they lead to
	Lack  Lack  // then there are no rows
	Rows  []Changed
	More  bool // there are more, behind the last
}

// Changed is a row that has changed.
type Changed struct {
	Key  string
	At   changefeed.Point // of its last change
	Gone bool             // that one left it in no list
	Row  *list.Row        // the state's version; nil = no range shows it
}

// kind is what a change did to where a row stands.
type kind int

// The kinds.
const (
	gone     kind = iota // no list has it any more
	came                 // it was not held, and a list covers its place
	shifted              // it stands elsewhere in an order
	filtered             // a filter begins or ceases to keep it
	stayed               // only its text is another
	kinds
)

// lately are the last changes of a kind.
type lately struct {
	of   [64]moved // the newest is at last, and the oldest behind it
	last int
}

// latest are the last changes of each kind: verifications go where they were.
type latest [kinds]lately

// moved is where a row stood before a change (0), and stands since (1).
type moved struct {
	of        changefeed.Table
	key       string
	positions [2]positions
	match     [2]uint64
	picked    [2]bool
}

// note notes that a change replaces a version of a row; nil = none was held.
func (l *latest) note(t *table, old, row *list.Row, from, to positions) {
	m := moved{of: t.of, positions: [...]positions{from, to}, match: [...]uint64{0, row.Match}}
	k := stayed
	switch {
	case old == nil && (row.State == list.Gone || !covers(t, &to)):
		return
	case old == nil:
		k = came
	case row.State == list.Gone:
		k = gone
	case from != to:
		k = shifted
	case old.Match != row.Match:
		k = filtered
	}
	if old != nil {
		m.match[0] = old.Match
	}
	m.key = strings.Clone(row.Key())
	c := &l[k]
	c.last = (c.last + 1) % len(c.of)
	c.of[c.last] = m
}

// covers reports whether a list of the table covers the place of a row.
func covers(t *table, at *positions) bool {
	for _, l := range t.made {
		_, covered := l.find(at[l.Order])
		if covered {
			return true
		}
	}
	return false
}

// turns are the kinds, and where their changes are looked at: where the row stood before (0), or stands since (1).
var turns = [...]struct {
	kind
	side int
}{{came, 1}, {gone, 0}, {shifted, 1}, {stayed, 1}, {shifted, 0}, {filtered, 1}}

// concerns reports whether a list covers a place of a row that the list had before (0) or has since the change (1), and in which
// it has done what its kind says.
func (m *moved) concerns(k kind, l *List, side int, searchText func() (text string, known bool)) bool {
	had, has := m.match[0]&l.Match == l.Match, m.match[1]&l.Match == l.Match
	switch {
	case m.picked[side], k == filtered && had == has, k != filtered && !(had && side == 0 || has && side == 1):
		return false
	case k == shifted && m.positions[0][l.Order] == m.positions[1][l.Order]:
		return false
	}
	_, covered := l.find(m.positions[side][l.Order])
	if !covered || l.Search == "" {
		return covered
	}
	text, known := searchText()
	return !known || strings.Contains(text, l.Search)
}

// searchText returns what searches compare; no text, which none of them has, if *folds is used up.
func (m *moved) searchText(t *table, folds *int) (text string, known bool) {
	row := t.rows[m.key].row
	if row == nil {
		return "", false
	}
	*folds -= row.Size()
	if *folds < 0 {
		return "", true
	}
	return t.of.List.SearchText(row)
}
