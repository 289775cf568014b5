package freshness

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// The model of joined pages: a database with one list, a log of its commits, a node
// that reads pages at any time and joins others of them, all at random and in any
// order that the real ones may have.
//
// A transaction locks its rows, gets its id, is committed (from then on the log may
// have it, and a standby may show it), and becomes visible, before or after the node
// has applied it, and in another order than it was committed in.
//
// The assertion: a joined page is the page that a statement would return which sees
// what the node has applied, when it is joined and for as long as it is fresh.

const (
	joinRows  = 12
	joinBound = 300 * time.Millisecond
	joinFill  = 100 * time.Millisecond
)

// joinRow is a version of a row.
type joinRow struct {
	lists.Row
	version int
}

type joinTransaction struct {
	xid, lsn uint64
	rows     []joinRow
	visible  bool
}

func (x *joinTransaction) change() *changefeed.Change {
	c := &changefeed.Change{XID: x.xid, LSN: x.lsn, Lists: []changefeed.List{modelList(0)}}
	var rows []lists.Row
	for _, row := range x.rows {
		rows = append(rows, row.Row)
	}
	c.Rows = [][]lists.Row{rows}
	return c
}

// joinPage is an entry, and the versions of its rows.
type joinPage struct {
	Validity
	of    Extent // which list, and from where on
	limit int
	rows  []joinRow
	more  bool

	joined bool
}

func (p *joinPage) Len() int             { return len(p.rows) }
func (p *joinPage) Position(i int) Bound { return positionOf(&p.rows[i].Row) }

func positionOf(r *lists.Row) Bound {
	return Bound{Kind: At, CreatedAt: r.CreatedAt, NameKey: r.NameKey, ID: r.ID}
}

func (p *joinPage) String() string {
	s := fmt.Sprintf("%d rows behind %v: ", p.limit, p.of.After)
	for _, r := range p.rows {
		s += fmt.Sprintf("%x@%d/%s.%d ", r.ID[15], r.CreatedAt, r.NameKey, r.version)
	}
	return s + fmt.Sprint(p.more)
}

func (p *joinPage) equals(o *joinPage) bool {
	return p.more == o.more && slices.EqualFunc(p.rows, o.rows, func(a, b joinRow) bool { return a.ID == b.ID && a.version == b.version })
}

type joinFillUnderWay struct {
	page  *joinPage
	start FillStart
	read  bool
}

type joinHeartbeat struct {
	moment   time.Duration
	snapshot changefeed.Snapshot
	until    int // commits that it comes after
}

type joinModel struct {
	*Tracker
	random    *rand.Rand
	now       time.Duration
	xid, lsn  uint64
	running   []*joinTransaction
	committed []*joinTransaction // in the order of the WAL
	replayed  int                // by the standby
	applied   int                // by the node
	forgotten int                // of those, in a reset
	at        changefeed.Position
	latest    map[uuid.UUID]joinRow // what the next transaction finds
	order     lists.Order           // of the lists that are read
	versions  int
	heartbeat *joinHeartbeat
	fills     []*joinFillUnderWay
	pages     []*joinPage

	joined, joinedAgain, kept, byParts int
}

func newJoinModel(seed uint64) *joinModel {
	return &joinModel{Tracker: NewTracker(joinBound, joinFill, &changefeed.Followed{}), random: rand.New(rand.NewPCG(seed, 1)),
		xid: 10, lsn: 10, latest: map[uuid.UUID]joinRow{}, order: lists.Order(seed % 2)}
}

// snapshot is one that is taken now.
func (m *joinModel) snapshot() changefeed.Snapshot {
	s := changefeed.Snapshot{Xmin: m.xid, Xmax: m.xid}
	for _, x := range slices.Concat(m.running, m.committed) {
		if !x.visible {
			s.Running, s.Xmin = append(s.Running, x.xid), min(s.Xmin, x.xid)
		}
	}
	slices.Sort(s.Running)
	return s
}

// read returns the page as a statement would that sees these transactions.
func (m *joinModel) read(of Extent, limit int, sees func(i int, x *joinTransaction) bool) *joinPage {
	rows := map[uuid.UUID]joinRow{}
	for i, x := range m.committed {
		if sees(i, x) {
			for _, row := range x.rows {
				rows[row.ID] = row
			}
		}
	}
	p := &joinPage{of: of, limit: limit}
	for _, row := range rows {
		// The model's own idea of what is listed, and where.
		flags := row.Flags
		if flags&lists.Gone != 0 || flags&of.Filter != of.Filter {
			continue
		}
		if of.After.Kind == Open || joinOrder(of.Order, positionOf(&row.Row), of.After) > 0 {
			p.rows = append(p.rows, row)
		}
	}
	slices.SortFunc(p.rows, func(a, b joinRow) int {
		return joinOrder(of.Order, positionOf(&a.Row), positionOf(&b.Row))
	})
	of.End = Bound{Kind: Open}
	var tags []uint32
	for i, row := range p.rows {
		if i <= limit {
			tags = append(tags, Tag(row.ID))
		}
	}
	if p.more = len(p.rows) > limit; p.more {
		of.End = positionOf(&p.rows[limit].Row)
		p.rows = p.rows[:limit]
	}
	of.Tags = tags
	p.Extent = &of
	return p
}

func joinOrder(order lists.Order, a, b Bound) int {
	if order == lists.ByName {
		return cmp.Or(cmp.Compare(a.NameKey, b.NameKey), cmp.Compare(a.ID.String(), b.ID.String()))
	}
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.ID.String(), a.ID.String()))
}

// begin begins a transaction on rows that no other one has locked.
func (m *joinModel) begin() {
	locked := map[uuid.UUID]bool{}
	for _, x := range slices.Concat(m.running, m.committed) {
		for _, row := range x.rows {
			locked[row.ID] = locked[row.ID] || !x.visible
		}
	}
	x := &joinTransaction{xid: m.xid}
	m.xid++
	for range 1 + m.random.IntN(2) {
		id := uuid.UUID{15: byte(1 + m.random.IntN(joinRows))}
		if locked[id] {
			continue
		}
		locked[id] = true
		m.versions++
		row := joinRow{Row: lists.Row{ID: id}, version: m.versions}
		last, known := m.latest[id]
		switch n := m.random.IntN(8); {
		case known && n < 3: // listed as it was
			row.Row = last.Row
		case n == 3:
			row.Flags = lists.Gone
		default:
			row.CreatedAt, row.NameKey = int64(m.random.IntN(8)), string(rune('a'+m.random.IntN(6)))
			if m.random.IntN(3) > 0 {
				row.Flags = lists.Goods
			}
		}
		m.latest[id] = row
		x.rows = append(x.rows, row)
	}
	if len(x.rows) > 0 {
		m.running = append(m.running, x)
	}
}

func (m *joinModel) commit() {
	if len(m.running) > 0 {
		i := m.random.IntN(len(m.running))
		m.lsn++
		m.running[i].lsn = m.lsn
		m.committed = append(m.committed, m.running[i])
		m.running = slices.Delete(m.running, i, i+1)
	}
}

func (m *joinModel) show() {
	hidden := slices.DeleteFunc(slices.Clone(m.committed), func(x *joinTransaction) bool { return x.visible })
	if len(hidden) > 0 {
		hidden[m.random.IntN(len(hidden))].visible = true
	}
}

func (m *joinModel) apply() {
	if m.applied < len(m.committed) {
		m.at.N++
		m.Changed(m.at, m.committed[m.applied].change())
		m.applied++
	}
}

// beat begins a heartbeat, or ends the one under way: everything that had been
// committed at its snapshot has been applied.
func (m *joinModel) beat() {
	h := m.heartbeat
	if h == nil {
		m.heartbeat = &joinHeartbeat{moment: m.now, snapshot: m.snapshot(), until: len(m.committed)}
		return
	}
	for m.applied < h.until {
		m.apply()
	}
	m.heartbeat = nil
	for _, x := range m.committed[:m.forgotten] { // the first heartbeat names them
		if !h.snapshot.Sees(x.xid) {
			m.Changed(m.at, x.change())
		}
	}
	m.forgotten = 0
	m.at.N++
	m.ValidThrough(changefeed.Proof{At: m.at, Server: "s/1", Run: "r", LSN: m.lsn}, h.moment, m.now)
	for _, x := range m.committed[:m.applied] {
		if h.snapshot.Sees(x.xid) {
			m.Settled(x.change(), m.now)
		}
	}
}

// anyPage is which page is to be read: of a list, so many rows behind a position.
func (m *joinModel) anyPage(limits int) (of Extent, limit int) {
	of = Extent{Order: m.order, After: Bound{Kind: Open}}
	if m.random.IntN(4) == 0 {
		of.Filter = lists.Goods
	}
	if m.random.IntN(4) > 0 {
		of.After = Bound{Kind: At, CreatedAt: int64(m.random.IntN(8)), NameKey: string(rune('a' + m.random.IntN(6))), ID: uuid.UUID{15: byte(1 + m.random.IntN(joinRows))}}
	}
	return of, 1 + m.random.IntN(limits)
}

// fill begins to read a page, reads it, or decides whether it is stored.
func (m *joinModel) fill() {
	if n := len(m.fills); n == 0 || n < 3 && m.random.IntN(3) == 0 {
		of, limit := m.anyPage(4)
		m.fills = append(m.fills, &joinFillUnderWay{&joinPage{of: of, limit: limit}, m.Begin(m.now, m.now), false})
		return
	}
	i := m.random.IntN(len(m.fills))
	f := m.fills[i]
	if !f.read {
		f.read = true
		of, limit := f.page.of, f.page.limit
		if m.random.IntN(3) == 0 { // from the standby, which says what it has replayed and then shows more
			said := m.replayed
			m.replayed += m.random.IntN(len(m.committed) - m.replayed + 1)
			f.page = m.read(of, limit, func(i int, _ *joinTransaction) bool { return i < m.replayed })
			f.page.ReadPoint = ReadPoint{Server: "s/1", LSN: 10}
			if said > 0 {
				f.page.ReadPoint.LSN = m.committed[said-1].lsn
			}
		} else {
			f.page = m.read(of, limit, func(_ int, x *joinTransaction) bool { return x.visible })
			f.page.ReadPoint = ReadPoint{Run: "r", Snapshot: m.snapshot()}
		}
		f.page.ReadAt, f.page.Proof = f.start.at, f.start.at
		return
	}
	m.fills = slices.Delete(m.fills, i, i+1)
	if m.Admit(f.start, &f.page.Validity, modelList(0), m.now) == Admitted {
		m.store(f.page)
	}
}

func (m *joinModel) store(p *joinPage) {
	if m.pages = append(m.pages, p); len(m.pages) > 60 {
		m.pages = slices.Delete(m.pages, 0, 1)
	}
}

// join joins a page of those that are stored, in any order.
func (m *joinModel) join() error {
	of, limit := m.anyPage(8)
	j := NewJoin(of, limit)
	var from []*joinPage
	for range MaxParts {
		for _, i := range m.random.Perm(len(m.pages)) {
			if j.Add(&m.pages[i].Validity, m.pages[i]) {
				from = append(from, m.pages[i])
				break
			}
		}
	}
	if !j.Complete {
		return nil
	}
	page := &joinPage{of: of, limit: limit, more: j.More(), joined: true}
	if _, ok := m.Join(&page.Validity, j, m.now); !ok {
		return nil
	}
	for i, p := range j.Parts {
		page.rows = append(page.rows, from[i].rows[p.From:p.To]...)
	}
	m.joined++
	m.byParts += len(j.Parts) - 1
	m.store(page)
	return m.check(page, from)
}

// check compares a joined page with the same one read anew.
func (m *joinModel) check(p *joinPage, from []*joinPage) error {
	want := m.read(p.of, p.limit, func(i int, _ *joinTransaction) bool { return i < m.applied })
	if !p.equals(want) {
		return fmt.Errorf("joined:   %v\nread anew: %v\nof %v", p, want, from)
	}
	if !slices.Equal(p.Extent.Tags, want.Extent.Tags) || p.Extent.End != want.Extent.End {
		return fmt.Errorf("%v: its extent is %+v, read anew %+v", p, p.Extent, want.Extent)
	}
	return nil
}

// hit looks whether a joined page is still what it would be if it were read anew.
func (m *joinModel) hit() error {
	if len(m.pages) == 0 {
		return nil
	}
	p := m.pages[m.random.IntN(len(m.pages))]
	if !p.joined {
		m.IsFresh(&p.Validity, m.now)
		return nil
	}
	s := p.sequence.Load()
	if !m.Trusted(m.now) || !m.IsFresh(&p.Validity, m.now) {
		return nil
	}
	if p.sequence.Load() > s {
		m.kept++
	}
	m.joinedAgain++
	return m.check(p, nil)
}

func (m *joinModel) step() error {
	m.now += time.Millisecond
	switch n := m.random.IntN(100); {
	case n < 3:
		m.begin()
	case n < 6:
		m.commit()
	case n < 10:
		m.show()
	case n < 14:
		m.apply()
	case n < 20:
		m.beat()
	case n < 60:
		m.fill()
	case n < 85:
		return m.join()
	default:
		return m.hit()
	}
	return nil
}

func TestAJoinedPageIsTheOneReadAnew(t *testing.T) {
	t.Parallel()
	var joined, again, kept, byParts int
	for seed := range uint64(joinSeeds) {
		m := newJoinModel(seed)
		m.Reset("e")
		for step := range 3000 {
			if err := m.step(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if m.random.IntN(1000) == 0 {
				m.Reset("e")
				m.heartbeat, m.forgotten = nil, m.applied
			}
		}
		joined, again, kept, byParts = joined+m.joined, again+m.joinedAgain, kept+m.kept, byParts+m.byParts
	}
	t.Logf("%d pages joined with %d more parts, %d looked at again, of which %d had outlived changes", joined, byParts, again, kept)
	if joined < 20*joinSeeds || byParts < joined/20 || kept < joined/20 {
		t.Error("too few to be a test")
	}
}

// Keys of positions compare as bytes as the positions do in the list.
func TestKeysOfPositions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	times := []int64{-1 << 62, -1, 0, 1, 255, 256, 1 << 62}
	names := []string{"a", "ab", "a\x01", "b", "aa"}
	for _, order := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
		position := func() Bound {
			b := Bound{Kind: At, ID: uuid.UUID{15: byte(random.IntN(3)), 0: byte(random.IntN(2) * 255)}}
			if order == lists.ByName {
				b.NameKey = names[random.IntN(len(names))]
			} else {
				b.CreatedAt = times[random.IntN(len(times))]
			}
			return b
		}
		start := Bound{Kind: Open}
		for range 3000 {
			a, b := position(), position()
			keyA, keyB := string(a.AppendKey(nil, order)), string(b.AppendKey(nil, order))
			if got, want := cmp.Compare(keyA, keyB), joinOrder(order, a, b); got != want {
				t.Fatalf("%+v to %+v: %d instead of %d", a, b, got, want)
			}
			if key := string(start.AppendKey(nil, order)); key >= keyA {
				t.Fatalf("%+v is not behind the start", a)
			}
		}
	}
}
