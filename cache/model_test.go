package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// The model: a database, followers that keep their contract, a log, and nodes with the real
// subscription, trust and replica, all in virtual time and at random. The replica's own model
// is about lists; here is one list.
//
// The database: a transaction locks rows, its commit is in the WAL, the WAL is flushed (from
// then on the follower may learn of it), and it becomes visible, in any order, before or
// after the flush. A standby replays what was flushed, late, and shows what it has replayed.
//
// The followers: one holds the slot. One that is slow may be overtaken, and goes on without
// a word of it. What it has sent may arrive after its end.
//
// The log: a server may lose its data. A fail-over makes a new one without the latest
// entries, while nodes and followers still use the old one. A mirror has all entries late.
//
// The assertion: a page that a node would serve is one that the database had at some moment of the last modelBound. So is an
// answer whose rows wait for a heartbeat. A standby's may be ahead of that, but lacks nothing that was shown before. A
// request with no-cache gets what was the list at some moment since it arrived.

const (
	modelBound = 100 * time.Millisecond
	modelStep  = time.Millisecond
	modelRows  = 10
	modelNodes = 3
)

var (
	modelTable = changefeed.Table{List: listtest.Items, Tenant: "1"}
	modelKey   = replica.Key{Table: modelTable, Order: listtest.ByCreatedAt}
	modelQuery = page.Query{List: modelTable.List, Tenant: modelTable.Tenant, Order: modelKey.Order, Limit: modelRows}
)

type modelTransaction struct {
	xid, lsn         uint64 // lsn 0 = its commit is not in the WAL
	rows             map[int]list.Row
	async            bool // visible without waiting for the flush
	visible          bool
	commitAt, showAt time.Time
}

func (x *modelTransaction) change() changefeed.Change {
	c := changefeed.Change{XID: x.xid, LSN: x.lsn, Touched: []changefeed.Touched{{Table: modelTable}}}
	if len(x.rows) == 0 {
		c.Touched = nil
	}
	for _, row := range x.rows {
		c.Touched[0].Rows = append(c.Touched[0].Rows, row)
	}
	return c
}

// modelVersion is what the list was from a moment on.
type modelVersion struct {
	from time.Time
	rows []list.Row
	lsn  uint64 // the latest that is visible
}

// modelServer keeps the log.
type modelServer struct {
	name, epoch string
	logs        map[string]*modelLog
}

type modelLog struct {
	entries []changefeed.Entry
	last    changefeed.Position
}

func (v *modelServer) log(epoch string) *modelLog {
	if v.logs[epoch] == nil {
		v.logs[epoch] = &modelLog{}
	}
	return v.logs[epoch]
}

// fork returns another server that has all but the latest entries.
func (v *modelServer) fork(name string, without int) *modelServer {
	is := &modelServer{name, v.epoch, map[string]*modelLog{}}
	for epoch, log := range v.logs {
		kept := slices.Clone(log.entries[:len(log.entries)-min(without, len(log.entries))])
		is.logs[epoch] = &modelLog{entries: kept}
		if len(kept) > 0 {
			is.logs[epoch].last = kept[len(kept)-1].Position
		}
	}
	return is
}

func (v *modelServer) append(epoch string, entries []changefeed.Entry) (ok bool) {
	log := v.log(epoch)
	if entries[0].Position.Compare(log.last) <= 0 {
		return false
	}
	log.entries = append(log.entries, entries...)
	log.last = entries[len(entries)-1].Position
	return true
}

// modelFollower is one that has, or had, the slot.
type modelFollower struct {
	server             *modelServer
	epoch              string
	term               uint64
	first, last, after changefeed.Position // first: appended to this server; last: acknowledged; after: noted for the next heartbeat
	waiting            []changefeed.Entry
	sent               int    // of those that wait, under way; 0 = none
	happened, noted    bool   // they are in the log; after is noted
	decoded, confirms  uint64 // LSN; confirms: at the next heartbeat
	unsettled          []*modelTransaction
	pending            *changefeed.Heartbeat
	beatAt, pausedTo   time.Time
	ended              bool
}

type modelFill struct {
	*replica.Fill
	standby      bool
	began, proof time.Duration // proof: the last one when it began
	last         uint64        // LSN of that proof or of a later one
	trusted      bool          // that proof was: else no standby is asked
	readAt, ends time.Time
	read         bool
}

// modelNode is one node: a subscription, the cache's trust and replica, and fills under way.
type modelNode struct {
	*Cache
	subscription *changefeed.Subscription
	server       *modelServer // that it reads the log from
	looked       time.Time    // when it last looked at the epoch; zero = it must
	reading      *modelRead
	pausedTo     time.Time // reads no log until then
	fills        []*modelFill
	parked       []*Entry  // of fills
	asked        time.Time // when a request with no-cache arrived that waits for a proof; zero = none waits
	page         *Entry    // that memory has; nil = none
}

// modelRead is a read of the log under way.
type modelRead struct {
	epoch         string
	after         changefeed.Position
	began         time.Time
	answered, cut bool
	entries       []changefeed.Entry
}

type model struct {
	r     *rand.Rand
	clock *boottime.Clock
	now   time.Time
	open  bool // a transaction stays open most of the time

	// the database
	nextXID, completed, flushed, replayed uint64
	running, wal                          []*modelTransaction // wal: by LSN, from 1
	chains                                [modelRows][]*modelTransaction
	versions                              []modelVersion
	flushAt, replaysAt                    time.Time

	// followers and the log
	slot           *modelFollower
	followers      []*modelFollower
	takenAt        time.Time // the slot is, not before
	needEpoch      bool      // nothing that was known holds any more
	epochs, names  int
	confirmed      uint64   // LSN
	unknown        []uint64 // running when the slot was made; nothing is published before they are over
	server, mirror *modelServer
	late           []func()

	nodes       []*modelNode
	hits, asked int
	ahead       [2]int     // answers served although their rows waited: of the primary, of a standby
	arrivals    *rand.Rand // of requests with no-cache
	proven      int        // of these, those that rows have answered
}

func (m *model) chance(oneIn int) bool { return m.r.IntN(oneIn) == 0 }

func (m *model) in(d time.Duration) time.Time {
	return m.now.Add(time.Duration(m.r.Int64N(int64(d) + 1)))
}

func newModel(seed uint64) *model {
	m := &model{r: rand.New(rand.NewPCG(seed, 7)), arrivals: rand.New(rand.NewPCG(seed, 49)), clock: boottime.New(), now: time.Now(),
		open: seed%2 == 1, nextXID: 700, completed: 699,
		server: &modelServer{name: "server", logs: map[string]*modelLog{}}}
	m.mirror = m.server.fork("mirror", 0)
	m.versions = []modelVersion{{from: m.now}}
	for range modelNodes {
		m.nodes = append(m.nodes, m.newNode())
	}
	return m
}

func (m *model) newNode() *modelNode {
	budget := replica.Budgets{Rows: 1 << 20, Changes: 1 << 20, Parked: 1 << 20, Lists: 16, Released: 1 << 40}
	if m.chance(2) {
		budget.Changes = 3000
	}
	n := &modelNode{Cache: &Cache{clock: m.clock, replica: replica.New(budget)}, server: m.server}
	n.followed.bound = modelBound
	n.followed.known.Store(&known{})
	n.following.Store(true)
	n.subscription = changefeed.NewSubscription(n.Cache)
	n.subscription.NewSession(n.server.name)
	return n
}

func (m *model) step() error {
	m.database()
	m.take()
	for _, f := range m.followers {
		m.follow(f)
	}
	m.followers = slices.DeleteFunc(m.followers, func(f *modelFollower) bool { return f.ended })
	for i, n := range m.nodes {
		m.read(n)
		if err := m.serve(n); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	m.accidents()
	m.now = m.now.Add(modelStep)
	return nil
}

// --- the database

func (m *model) database() {
	if m.chance(6) {
		m.begin()
	}
	m.r.Shuffle(len(m.running), func(i, j int) { m.running[i], m.running[j] = m.running[j], m.running[i] })
	m.running = slices.DeleteFunc(m.running, func(x *modelTransaction) bool {
		if x.lsn == 0 && !m.now.Before(x.commitAt) {
			if m.chance(10) { // rolled back
				m.end(x)
				return true
			}
			m.wal = append(m.wal, x)
			x.lsn = uint64(len(m.wal))
		}
		x.visible = x.lsn != 0 && !m.now.Before(x.showAt) && (x.async || x.lsn <= m.flushed)
		if x.visible {
			m.end(x)
			last := m.versions[len(m.versions)-1].lsn
			m.versions = append(m.versions, modelVersion{m.now, m.list(func(x *modelTransaction) bool { return x.visible }), max(last, x.lsn)})
		}
		return x.visible
	})
	if !m.now.Before(m.flushAt) {
		m.flushed, m.flushAt = uint64(len(m.wal)), m.in(8*time.Millisecond)
	}
	if !m.now.Before(m.replaysAt) && m.replayed < m.flushed {
		m.replayed += 1 + m.r.Uint64N(m.flushed-m.replayed)
		if m.replaysAt = m.in(4 * time.Millisecond); m.chance(50) {
			m.replaysAt = m.in(10 * modelBound)
		}
	}
}

// begin begins a transaction that changes a row or two of those that are not locked.
func (m *model) begin() {
	x := &modelTransaction{xid: m.nextXID, rows: map[int]list.Row{}, async: m.chance(3), commitAt: m.in(20 * time.Millisecond)}
	m.nextXID++
	for range 1 + m.r.IntN(2) {
		i := m.r.IntN(modelRows)
		if slices.ContainsFunc(m.running, func(o *modelTransaction) bool { _, locks := o.rows[i]; return locks }) {
			continue
		}
		x.rows[i] = listtest.Item(i, "sku", fmt.Sprint(x.xid))
		if m.chance(4) {
			x.rows[i] = list.GoneRow(listtest.Key(listtest.ID(i)))
		}
		m.chains[i] = append(m.chains[i], x)
	}
	if m.chance(100) || m.open && m.chance(20) {
		x.commitAt = m.now.Add(2 * time.Second)
	}
	x.showAt = x.commitAt.Add(time.Duration(m.r.IntN(10)) * time.Millisecond)
	if m.chance(6) && !x.async { // it waits for a standby
		x.showAt = x.commitAt.Add(time.Duration(m.r.Int64N(int64(4 * modelBound))))
	}
	m.running = append(m.running, x)
}

// end ends a transaction: without a place in the WAL it never was.
func (m *model) end(x *modelTransaction) {
	m.completed = max(m.completed, x.xid)
	for i := range m.chains {
		m.chains[i] = slices.DeleteFunc(m.chains[i], func(o *modelTransaction) bool { return o == x && x.lsn == 0 })
	}
}

// list returns the list with the transactions that are shown.
func (m *model) list(shows func(*modelTransaction) bool) (rows []list.Row) {
	for i, chain := range m.chains {
		for _, x := range slices.Backward(chain) {
			if shows(x) {
				if row := x.rows[i]; row.State != list.Gone {
					rows = append(rows, row)
				}
				break
			}
		}
	}
	return rows
}

// snapshot is pg_current_snapshot().
func (m *model) snapshot() changefeed.Snapshot {
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
	return s
}
