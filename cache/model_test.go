package cache

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// The model: a database, a follower that keeps its contract, a log, a Redis
// and nodes that use the real tracker, all in virtual time and at random.
//
// The database: a transaction gets its id, then its commit is in the WAL (in
// WAL order), the WAL is flushed (which is when the follower may learn of it),
// and it becomes visible, in any order, before or after the flush. A crash
// loses what was not flushed, and its ids are used again. A standby replays
// what was flushed, in WAL order and late; what it has replayed it shows, be it
// visible on the primary or not.
//
// The assertion: a page that the serving rule calls fresh omits no commit that
// had been visible for longer than the bound.

const (
	modelBound = 100 * time.Millisecond
	modelFill  = 60 * time.Millisecond
	modelStep  = time.Millisecond
	modelPairs = 6
	modelNodes = 3
)

type transaction struct {
	xid       uint64
	pairs     []int // which lists it changes
	whole     bool  // all of them
	over      bool  // no longer running: visible, aborted, or gone in a crash
	lsn       uint64
	visible   uint64 // the order of becoming so; 0 = not
	visibleAt time.Time
	lost      bool // in a crash, although it may have been visible
	lostAt    time.Time
	commitAt  time.Time
	showAt    time.Time
	async     bool // visible without waiting for the flush
}

func (x *transaction) touches(pair int) bool { return x.whole || slices.Contains(x.pairs, pair) }

func (x *transaction) change() changefeed.Change {
	c := changefeed.Change{XID: x.xid, LSN: x.lsn}
	if x.whole {
		c.Whole = 1 << changefeed.Items
	}
	for _, p := range x.pairs {
		c.Lists = append(c.Lists, modelPair(p))
	}
	return c
}

func modelPair(i int) changefeed.List {
	return changefeed.List{Workspace: uuid.UUID{byte(i + 1)}, Collection: changefeed.Items}
}

type modelPage struct {
	*Page
	saw    uint64 // the last that was visible when it was read
	readAt time.Time

	replayed uint64         // where it was read: up to this LSN, if on the standby
	missing  []*transaction // visible on the primary by then, and not replayed
}

// shows says whether the page shows what became visible after it was read.
func (p *modelPage) shows(x *transaction) bool { return p.View.standby() && x.lsn <= p.replayed }

// copied is the page as it comes out of Redis.
func (p *modelPage) copied() modelPage {
	c := *p
	c.Page = &Page{Proof: p.Proof, View: p.View, Epoch: p.Epoch, Position: p.Position}
	return c
}

// modelNode is one node: a tracker, a memory, and fills under way.
type modelNode struct {
	*following
	name     string
	nonce    uint64
	probeAt  time.Time
	pausedTo time.Time // reads no log until then
	memory   map[int]modelPage
	fills    map[int]*modelFlight
}

type modelFlight struct {
	start   fillStart
	readAt  time.Time
	endsAt  time.Time
	read    bool
	page    modelPage
	filled  Filled
	standby bool
}

type model struct {
	t    *testing.T
	r    *rand.Rand
	now  time.Time
	seed uint64
	open bool // a transaction stays open most of the time

	// the database
	nextXID, completed, lsn, flushed, shown uint64
	all, running, lost                      []*transaction
	wal                                     []*transaction // by LSN, from 1
	flushAt                                 time.Time
	cannotBefore                            time.Time // the database is down
	replayed                                uint64    // the standby's LSN
	replaysAt                               time.Time // when it goes on

	// the follower
	following  bool
	needEpoch  bool // nothing that was known holds any more
	epoch      string
	epochs     int
	position   changefeed.Position
	decoded    uint64 // LSN
	confirmed  uint64
	confirms   []uint64 // what was published, step by step of heartbeats
	unsettled  []*transaction
	unknown    []uint64 // running when the slot was made; nothing is told before they are over
	nonces     map[string]uint64
	pending    *changefeed.Heartbeat
	beatAt     time.Time
	stalledTo  time.Time
	log        map[string][]changefeed.Entry
	last       map[string]changefeed.Position
	probes     map[string]uint64
	probesLate []func()
	pages      map[int]modelPage // Redis
	nodes      []*modelNode

	hits, asked          int
	fromStandby, refused int // pages of the standby that were kept, and that were not
	names                int
	wrong                string
}

func (m *model) chance(oneIn int) bool { return m.r.IntN(oneIn) == 0 }

func (m *model) upTo(d time.Duration) time.Duration { return time.Duration(m.r.Int64N(int64(d) + 1)) }

// newModel begins with some history and nodes that know nothing.
func newModel(t *testing.T, seed uint64, open bool) *model {
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 7)), seed: seed, open: open, now: time.Now(),
		nextXID: 700, completed: 699, log: map[string][]changefeed.Entry{}, last: map[string]changefeed.Position{},
		probes: map[string]uint64{}, pages: map[int]modelPage{}}
	for range modelNodes {
		m.nodes = append(m.nodes, m.newNode())
	}
	return m
}

func (m *model) newNode() *modelNode {
	m.names++
	tracker := newTracker(modelBound, modelFill, boottime.New())
	if m.chance(2) {
		tracker.most = modelPairs / 2
	}
	return &modelNode{
		following: &following{tracker: tracker, database: &changefeed.Followed{}, options: Follow{Logger: slog.New(slog.DiscardHandler)}},
		name:      fmt.Sprint("node ", m.names), nonce: m.r.Uint64() >> 1,
		memory: map[int]modelPage{}, fills: map[int]*modelFlight{},
	}
}

func (m *model) step() {
	m.database()
	m.follow()
	for i, n := range m.nodes {
		if m.chance(4000) { // a node is replaced
			m.nodes[i] = m.newNode()
			continue
		}
		m.read(n)
		m.serve(n)
	}
	m.accidents()
	time.Sleep(modelStep)
	m.now = time.Now()
}

// --- the database

func (m *model) database() {
	if m.now.Before(m.cannotBefore) {
		return
	}
	if m.chance(6) {
		x := &transaction{xid: m.nextXID, async: m.chance(3), commitAt: m.now.Add(m.upTo(20 * time.Millisecond))}
		m.nextXID++
		for range 1 + m.r.IntN(2) {
			x.pairs = append(x.pairs, min(m.r.IntN(modelPairs), m.r.IntN(modelPairs))) // some are quiet
		}
		if m.chance(40) {
			x.pairs, x.whole = nil, true
		}
		if m.chance(100) || m.open && m.chance(20) {
			x.commitAt = m.now.Add(2 * time.Second)
		}
		x.showAt = x.commitAt.Add(m.upTo(10 * time.Millisecond))
		if m.chance(12) && !x.async { // it waits for a standby
			x.showAt = x.commitAt.Add(m.upTo(4 * modelBound))
		}
		m.running = append(m.running, x)
	}
	m.r.Shuffle(len(m.running), func(i, j int) { m.running[i], m.running[j] = m.running[j], m.running[i] })
	for _, x := range m.running {
		if x.lsn == 0 && !m.now.Before(x.commitAt) {
			if m.chance(10) { // rolled back
				m.finish(x)
				continue
			}
			m.lsn++
			x.lsn = m.lsn
			m.wal = append(m.wal, x)
		}
		if x.lsn != 0 && !m.now.Before(x.showAt) && (x.async || x.lsn <= m.flushed) {
			m.show(x)
		}
	}
	m.running = slices.DeleteFunc(m.running, func(x *transaction) bool { return x.over })
	if !m.now.Before(m.flushAt) {
		m.flushed, m.flushAt = m.lsn, m.now.Add(m.upTo(8*time.Millisecond))
	}
	if !m.now.Before(m.replaysAt) && m.replayed < m.flushed {
		m.replayed += 1 + uint64(m.r.Int64N(int64(m.flushed-m.replayed)))
		m.replaysAt = m.now.Add(m.upTo(4 * time.Millisecond))
		if m.chance(50) {
			m.replaysAt = m.now.Add(m.upTo(10 * modelBound))
		}
	}
}

func (m *model) finish(x *transaction) {
	x.over = true
	m.completed = max(m.completed, x.xid)
}

func (m *model) show(x *transaction) {
	m.finish(x)
	m.shown++
	x.visible, x.visibleAt = m.shown, m.now
	m.all = append(m.all, x)
}

// snapshot is pg_current_snapshot().
func (m *model) snapshot() string {
	s := changefeed.Snapshot{Xmax: m.completed + 1}
	for _, x := range m.running {
		if x.xid < s.Xmax {
			s.Running = append(s.Running, x.xid)
		}
	}
	slices.Sort(s.Running)
	if s.Xmin = s.Xmax; len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s.String()
}

// crash ends what runs, loses what is not flushed, and has ids used again.
func (m *model) crash() {
	m.cannotBefore = m.now.Add(10*time.Millisecond + m.upTo(100*time.Millisecond))
	for _, x := range m.wal[m.flushed:] {
		x.lost, x.lostAt = true, m.now
		if x.visible != 0 {
			m.lost = append(m.lost, x)
		}
	}
	m.wal, m.lsn = m.wal[:m.flushed], m.flushed
	highest := uint64(699)
	for _, x := range m.running {
		if x.lsn != 0 && !x.lost {
			m.show(x) // recovered; nobody can ask before
		} else {
			x.over = true
		}
	}
	for _, x := range m.wal {
		highest = max(highest, x.xid)
	}
	m.running, m.nextXID, m.completed = nil, highest+1, highest
	for _, n := range m.nodes { // answers that were on their way may arrive
		for pair := range modelPairs {
			if f := n.fills[pair]; f != nil && (!f.read || m.chance(2)) {
				delete(n.fills, pair)
			}
		}
	}
	m.following, m.needEpoch = false, true
}

// --- the follower

func (m *model) append(e changefeed.Entry) {
	m.position.N++
	e.Position = m.position
	m.log[m.epoch] = append(m.log[m.epoch], e)
	m.last[m.epoch] = m.position
}

func (m *model) follow() {
	if m.now.Before(m.stalledTo) || m.now.Before(m.cannotBefore) {
		return
	}
	if !m.following {
		m.take()
	}
	for m.decoded < m.flushed && !m.chance(3) {
		x := m.wal[m.decoded]
		m.decoded++
		m.unsettled = append(m.unsettled, x)
		c := x.change()
		m.append(changefeed.Entry{Change: &c})
	}
	if len(m.unknown) > 0 { // a slot is not made before these are over
		if slices.ContainsFunc(m.running, func(x *transaction) bool { return slices.Contains(m.unknown, x.xid) }) {
			return
		}
		m.unknown = nil
	}
	switch {
	case m.pending == nil && m.nonces == nil && !m.now.Before(m.beatAt):
		m.nonces = maps.Clone(m.probes)
		m.beatAt = m.now.Add(10 * time.Millisecond)
	case m.nonces != nil && !m.chance(3):
		m.pending = &changefeed.Heartbeat{LSN: m.lsn, Snapshot: m.snapshot(), Server: "the primary", Nonces: m.nonces}
		m.nonces = nil
	case m.pending != nil && m.decoded >= m.pending.LSN:
		s, _ := changefeed.ParseSnapshot(m.pending.Snapshot)
		m.unsettled = slices.DeleteFunc(m.unsettled, func(x *transaction) bool { return s.Sees(x.xid) })
		to := m.pending.LSN
		for _, x := range m.unsettled {
			m.pending.Unsettled = append(m.pending.Unsettled, x.change())
			to = min(to, x.lsn-1)
		}
		m.append(changefeed.Entry{Heartbeat: m.pending})
		m.pending = nil
		if m.confirms = append(m.confirms, to); len(m.confirms) > 10 { // a while ago
			m.confirmed = max(m.confirmed, min(to, m.confirms[0]))
			m.confirms = m.confirms[1:]
		}
	}
}

// take begins a term, and an epoch if one is needed.
func (m *model) take() {
	if m.needEpoch || m.epoch == "" {
		m.epochs++
		m.needEpoch = false
		m.epoch = fmt.Sprint("epoch ", m.epochs)
	}
	m.confirmed = min(m.confirmed, m.flushed)
	m.following, m.decoded, m.pending, m.nonces, m.unsettled, m.confirms = true, m.confirmed, nil, nil, nil, nil
	m.position = changefeed.Position{Term: m.nextXID}
	m.nextXID++
	m.completed = max(m.completed, m.position.Term)
	m.append(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: m.last[m.epoch]}})
}

// accidents are what may happen to follower, log and Redis.
func (m *model) accidents() {
	log := m.log[m.epoch]
	switch {
	case m.chance(3000):
		m.crash()
	case m.chance(1500): // the follower dies
		m.following, m.stalledTo = false, m.now.Add(m.upTo(2*modelBound))
	case m.chance(1500): // it is slow
		m.stalledTo = m.now.Add(m.upTo(2 * modelBound))
	case m.chance(4000) && m.following: // the slot is lost
		m.following, m.stalledTo, m.confirmed = false, m.now.Add(m.upTo(modelBound)), m.flushed
		for _, x := range m.running {
			m.unknown = append(m.unknown, x.xid)
		}
		m.needEpoch = true
	case m.chance(300) && len(log) > 0: // trimmed, perhaps under a node that is behind
		m.log[m.epoch] = slices.Clone(log[m.r.IntN(len(log)+1):])
	case m.chance(1500): // Redis loses its data
		clear(m.log)
		clear(m.probes)
		clear(m.pages)
	case m.chance(2500) && len(log) > 0: // or only the log's latest: a fail-over to a replica
		m.log[m.epoch] = slices.Clone(log[:len(log)-1-m.r.IntN(min(len(log), 5))])
	}
	for i := len(m.probesLate) - 1; i >= 0; i-- {
		if m.chance(3) {
			m.probesLate[i]()
			m.probesLate = slices.Delete(m.probesLate, i, i+1)
		}
	}
}

// --- a node

func (m *model) read(n *modelNode) {
	if !m.now.Before(n.probeAt) {
		n.nonce++
		n.probeAt = m.now.Add(10 * time.Millisecond)
		n.probe(n.nonce)
		name, nonce := n.name, n.nonce
		m.probesLate = append(m.probesLate, func() { m.probes[name] = max(m.probes[name], nonce) })
	}
	if m.now.Before(n.pausedTo) {
		return
	}
	if m.chance(60) {
		n.pausedTo = m.now.Add(m.upTo(modelBound))
	}
	if m.epoch != "" {
		n.turnTo(m.epoch)
	}
	epoch, after := n.at()
	for _, e := range m.log[epoch] {
		if e.Position.Compare(after) <= 0 {
			continue
		}
		if m.chance(500) { // this node is of an older version, or the entry was damaged
			e = changefeed.Entry{Position: e.Position}
		}
		n.apply(epoch, n.name, e)
		if m.chance(8) {
			break
		}
	}
}

func (m *model) serve(n *modelNode) {
	for pair := range modelPairs { // in an order that the seed alone decides
		if f := n.fills[pair]; f != nil {
			m.fly(n, pair, f)
		}
	}
	for range 2 {
		pair := m.r.IntN(modelPairs)
		if pair == modelPairs-1 && !m.chance(100) { // asked for so rarely that rings are pruned in between
			continue
		}
		m.request(n, pair)
	}
}

// request is what Hit, and then fly, do.
func (m *model) request(n *modelNode, pair int) {
	if p, ok := n.memory[pair]; ok && n.fresh(p.Page, m.now) {
		m.check(n, pair, p, "memory")
		m.asked++
		if p.sequence.Load() != 0 { // else it is but shared for a moment
			m.hits++
		}
		return
	}
	if n.fills[pair] != nil { // it waits for that one
		return
	}
	m.asked++
	if p, ok := m.pages[pair]; ok && m.chance(2) {
		read := p.copied()
		if n.trusted(m.now) {
			n.adopt(read.Page, modelPair(pair))
		}
		if n.fresh(read.Page, m.now) {
			m.check(n, pair, read, "redis")
			m.hits++
			n.memory[pair] = read
			return
		}
	}
	if m.now.Before(m.cannotBefore) {
		return
	}
	needed, ok := n.needed(modelPair(pair))
	m.fill(n, pair, ok && (m.replayed >= needed.LSN || m.chance(2)) && m.chance(2)) // the origin asks no standby that is behind, but it need not know
}

func (m *model) fill(n *modelNode, pair int, standby bool) {
	f := &modelFlight{start: n.begin(), readAt: m.now.Add(m.upTo(modelFill / 4)), standby: standby}
	f.filled = Filled{Server: "the primary", LSN: m.replayed} // asked for before the page is
	if m.chance(8) {
		f.readAt = m.now.Add(m.upTo(modelFill))
	}
	f.endsAt = f.readAt.Add(m.upTo(modelFill / 8))
	if m.chance(8) {
		f.endsAt = f.readAt.Add(m.upTo(4 * modelFill))
	}
	n.fills[pair] = f
}

func (m *model) fly(n *modelNode, pair int, f *modelFlight) {
	if !f.read && !m.now.Before(f.readAt) {
		if m.now.Before(m.cannotBefore) {
			delete(n.fills, pair)
			return
		}
		f.read = true
		f.page = modelPage{Page: &Page{Proof: f.start.at}, saw: m.shown, readAt: m.now}
		if f.standby {
			m.readOnStandby(f)
		} else {
			f.filled = Filled{Snapshot: m.snapshot()}
		}
	}
	if !f.read || m.now.Before(f.endsAt) {
		return
	}
	delete(n.fills, pair)
	keep := n.following.accept(f.start, f.page.Page, modelPair(pair), &f.filled) == kept
	if f.standby && !keep {
		m.refused++
		m.fill(n, pair, false)
		return
	}
	if old, ok := n.memory[pair]; !ok || !old.newer(f.page.Page) {
		n.memory[pair] = f.page
	}
	if keep { // a late one may overwrite a newer one
		page := f.page.copied()
		m.probesLate = append(m.probesLate, func() { m.pages[pair] = page })
		if f.standby {
			m.fromStandby++
		}
	}
}

// readOnStandby is a page's statement there. Its snapshot claims to see what
// is running on the primary.
func (m *model) readOnStandby(f *modelFlight) {
	f.page.replayed = m.replayed
	f.filled.Snapshot = changefeed.Snapshot{Xmin: m.completed + 1, Xmax: m.completed + 1}.String()
	for i := len(m.all) - 1; i >= 0; i-- {
		if x := m.all[i]; !x.lost && x.lsn > m.replayed {
			f.page.missing = append(f.page.missing, x)
		}
	}
}

// check is the assertion.
func (m *model) check(n *modelNode, pair int, p modelPage, from string) {
	since := m.now.Add(-modelBound)
	omitted := slices.Clone(p.missing)
	for i := len(m.all) - 1; i >= 0 && m.all[i].visible > p.saw; i-- {
		if !p.shows(m.all[i]) {
			omitted = append(omitted, m.all[i])
		}
	}
	for _, x := range omitted {
		if !x.lost && x.touches(pair) && x.visibleAt.Before(since) {
			m.wrong = fmt.Sprintf("seed %d: %s shows, from its %s, list %d without transaction %d, visible for %s (%+v)",
				m.seed, n.name, from, pair, x.xid, m.now.Sub(x.visibleAt), p.View)
		}
	}
	for _, x := range m.lost {
		if !p.View.standby() && x.visible <= p.saw && x.touches(pair) && !p.readAt.After(x.lostAt) && x.lostAt.Before(since) {
			m.wrong = fmt.Sprintf("seed %d: %s shows, from its %s, list %d with transaction %d, lost in a crash %s ago",
				m.seed, n.name, from, pair, x.xid, m.now.Sub(x.lostAt))
		}
	}
}

// runModel plays one seed.
func runModel(t *testing.T, seed uint64, steps int, open bool) (played *model) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, seed, open)
		for range steps {
			if m.step(); m.wrong != "" {
				break
			}
		}
		played = m
	})
	return played
}

// A page served as fresh never omits what was visible a bound ago, and pages
// are served as fresh all the same.
func TestModel(t *testing.T) {
	for name, open := range map[string]bool{"short transactions": false, "with a long open transaction": true} {
		t.Run(name, func(t *testing.T) {
			const seeds, steps = modelSeeds, 4000
			var hits, asked, fromStandby, refused int
			for seed := range uint64(seeds) {
				m := runModel(t, seed, steps, open)
				if m.wrong != "" {
					t.Fatal(m.wrong)
				}
				hits, asked, fromStandby, refused = hits+m.hits, asked+m.asked, fromStandby+m.fromStandby, refused+m.refused
			}
			share := float64(hits) / float64(asked)
			t.Logf("hits: %.1f %%; pages of the standby: %d kept, %d refused", 100*share, fromStandby, refused)
			if share < 0.4 {
				t.Error("too few hits")
			}
			if fromStandby < seeds || refused < seeds {
				t.Error("the standby was hardly tried")
			}
		})
	}
}
