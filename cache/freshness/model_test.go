package freshness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// The model: a database, followers that keep their contract, a log, a Redis
// and nodes that use the real subscription and tracker, all in virtual time and
// at random.
//
// The database: a transaction gets its id, then its commit is in the WAL (in
// WAL order), the WAL is flushed (which is when the follower may learn of it),
// and it becomes visible, in any order, before or after the flush. A crash
// loses what was not flushed, and its ids are used again. A standby replays
// what was flushed, in WAL order and late; what it has replayed it shows, be it
// visible on the primary or not.
//
// The followers: one holds the slot. One that is slow may be overtaken, and goes
// on without a word of it. Reading the log, taking a snapshot and appending are
// of several steps, with pauses of any length between them. Some followers are
// of the version that does not say After.
//
// The log: a server may lose its data, and a fail-over makes a new one of what
// the old one has, without the latest entries. Nodes go on reading the old one,
// to which nothing is added, for a while.
//
// A transaction names its rows, mostly. Most pages show three rows of their list, and
// have an extent.
//
// The assertion: a page that the serving rule calls fresh omits no commit that
// changes it and that had been visible for longer than the bound.

const (
	modelBound = 100 * time.Millisecond
	modelFill  = 60 * time.Millisecond
	modelStep  = time.Millisecond
	modelLists = 6
	modelNodes = 3
)

type transaction struct {
	xid       uint64
	lists     []int         // which lists it changes
	rows      [][]lists.Row // and which rows of each; empty = any
	whole     bool          // all of them
	over      bool          // no longer running: visible, aborted, or gone in a crash
	lsn       uint64
	visible   uint64 // the order of becoming so; 0 = not
	visibleAt time.Time
	lost      bool // in a crash, although it may have been visible
	lostAt    time.Time
	commitAt  time.Time
	showAt    time.Time
	async     bool // visible without waiting for the flush
}

// changes says whether a page of the list is another one by the transaction. A page with
// an extent shows rows 1 to 3 and has the places from 200 to 100.
func (x *transaction) changes(list int, extent bool) bool {
	if x.whole {
		return true
	}
	for i, of := range x.lists {
		if of == list && (!extent || x.rows[i] == nil || slices.ContainsFunc(x.rows[i], func(r lists.Row) bool {
			return r.ID == rowID(1) || r.ID == rowID(2) || r.ID == rowID(3) || r.Flags == 0 && 100 <= r.CreatedAt && r.CreatedAt <= 200
		})) {
			return true
		}
	}
	return false
}

// someRows are what a transaction changes in a list: a few rows, mostly none that a page shows.
func (m *model) someRows() []lists.Row {
	if m.chance(4) {
		return nil
	}
	var rows []lists.Row
	for range 1 + m.r.IntN(2) {
		switch id := 1 + m.r.IntN(12); m.r.IntN(3) {
		case 0:
			rows = append(rows, gone(id))
		case 1:
			rows = append(rows, createdAt(id, 99))
		default:
			rows = append(rows, createdAt(id, []int64{50, 99, 150, 202, 250, 300}[m.r.IntN(6)]))
		}
	}
	return rows
}

func (x *transaction) change() changefeed.Change {
	c := changefeed.Change{XID: x.xid, LSN: x.lsn}
	if x.whole {
		c.Whole = 1 << lists.Items
	}
	for i, p := range x.lists {
		c.Lists, c.Rows = append(c.Lists, modelList(p)), append(c.Rows, x.rows[i])
	}
	return c
}

func modelList(i int) changefeed.List {
	return changefeed.List{Workspace: uuid.UUID{byte(i + 1)}, Collection: lists.Items}
}

type modelEntry struct {
	*Validity
	saw    uint64 // the last that was visible when it was read
	readAt time.Time

	replayed uint64         // where it was read: up to this LSN, if on the standby
	missing  []*transaction // visible on the primary by then, and not replayed
}

// shows says whether the page shows what became visible after it was read.
func (e *modelEntry) shows(x *transaction) bool {
	return e.ReadPoint.OnStandby() && x.lsn <= e.replayed
}

// copied is the entry as it comes out of Redis.
func (e *modelEntry) copied() modelEntry {
	c := *e
	c.Validity = &Validity{Proof: e.Proof, ReadAt: e.Proof, ReadPoint: e.ReadPoint, Extent: e.Extent, Epoch: e.Epoch, Position: e.Position}
	return c
}

// modelNode is one node: a subscription, a tracker, a memory, and fills under way.
type modelNode struct {
	listener
	subscription *changefeed.Subscription
	name         string
	server       *modelServer // that it reads the log from
	looked       time.Time    // when it last looked at the epoch; zero = it must
	reading      *modelRead
	pausedTo     time.Time // reads no log until then
	memory       map[int]modelEntry
	fills        map[int]*modelFillUnderWay
}

// modelRead is a read of the log under way.
type modelRead struct {
	epoch    string
	after    changefeed.Position
	began    time.Time
	answered bool
	entries  []changefeed.Entry
	cut      bool
}

// modelServer keeps the log.
type modelServer struct {
	epoch string
	logs  map[string]*modelLog
}

type modelLog struct {
	entries []changefeed.Entry
	last    changefeed.Position
}

func newModelServer() *modelServer { return &modelServer{logs: map[string]*modelLog{}} }

func (v *modelServer) log(epoch string) *modelLog {
	if v.logs[epoch] == nil {
		v.logs[epoch] = &modelLog{}
	}
	return v.logs[epoch]
}

// fork is a replica that is made the master, without the latest entries.
func (v *modelServer) fork(lost int) *modelServer {
	is := newModelServer()
	is.epoch = v.epoch
	for epoch, log := range v.logs {
		kept := slices.Clone(log.entries[:len(log.entries)-min(lost, len(log.entries))])
		is.logs[epoch] = &modelLog{entries: kept}
		if len(kept) > 0 {
			is.logs[epoch].last = kept[len(kept)-1].Position
		}
	}
	return is
}

// modelFollower is one that has, or had, the slot.
type modelFollower struct {
	server    *modelServer
	epoch     string
	term      uint64
	last      changefeed.Position // that was acknowledged
	waiting   []changefeed.Entry
	sent      int    // of those that wait, under way; 0 = none
	happened  bool   // and they are in the log
	decoded   uint64 // LSN
	unsettled []*transaction
	after     changefeed.Position // noted for the next heartbeat
	noted     bool
	pending   *changefeed.Heartbeat
	confirms  []uint64 // what was published, step by step of heartbeats
	beatAt    time.Time
	pausedTo  time.Time
	ended     bool
}

type modelFillUnderWay struct {
	start   FillStart
	began   time.Duration
	readAt  time.Time
	endsAt  time.Time
	read    bool
	entry   modelEntry
	seen    ReadPoint
	standby bool
}

type model struct {
	t          *testing.T
	r          *rand.Rand
	start, now time.Time
	seed       uint64
	open       bool // a transaction stays open most of the time

	// the database
	nextXID, completed, lsn, flushed, shown uint64
	all, running, lost                      []*transaction
	wal                                     []*transaction // by LSN, from 1
	flushAt                                 time.Time
	cannotBefore                            time.Time // the database is down
	replayed                                uint64    // the standby's LSN
	replaysAt                               time.Time // when it goes on

	// followers and the log
	slot      *modelFollower // of the slot
	followers []*modelFollower
	takenAt   time.Time // the slot is, not before
	needEpoch bool      // nothing that was known holds any more
	epochs    int
	confirmed uint64   // LSN
	unknown   []uint64 // running when the slot was made; nothing is published before they are over
	server    *modelServer
	late      []func()
	entries   map[int]modelEntry // Redis
	nodes     []*modelNode

	hits, asked          int
	fromStandby, refused int // pages of the standby that were kept, and that were not
	names                int
	wrong                string
}

func (m *model) chance(oneIn int) bool { return m.r.IntN(oneIn) == 0 }

func (m *model) upTo(d time.Duration) time.Duration { return time.Duration(m.r.Int64N(int64(d) + 1)) }

// newModel begins with some history and nodes that know nothing.
func newModel(t *testing.T, seed uint64, open bool) *model {
	m := &model{t: t, r: rand.New(rand.NewPCG(seed, 7)), seed: seed, open: open, start: time.Now(), now: time.Now(),
		nextXID: 700, completed: 699, server: newModelServer(), entries: map[int]modelEntry{}}
	for range modelNodes {
		m.nodes = append(m.nodes, m.newNode())
	}
	return m
}

func (m *model) newNode() *modelNode {
	m.names++
	l := listener{NewTracker(modelBound, modelFill, &changefeed.Followed{}), m.start}
	if m.chance(2) {
		l.maxLists = modelLists / 2
	}
	if m.chance(2) {
		l.ringBudget = 10 * changeSize
		l.Tracker.Reset("")
	}
	return &modelNode{
		listener:     l,
		subscription: changefeed.NewSubscription(l),
		name:         fmt.Sprint("node ", m.names), server: m.server,
		memory: map[int]modelEntry{}, fills: map[int]*modelFillUnderWay{},
	}
}

func (m *model) step() {
	m.database()
	m.take()
	for _, f := range m.followers {
		m.follow(f)
	}
	m.followers = slices.DeleteFunc(m.followers, func(f *modelFollower) bool { return f.ended })
	for i, n := range m.nodes {
		if m.chance(4000) { // a node is replaced
			m.nodes[i] = m.newNode()
			continue
		}
		m.read(n)
		m.serve(n)
	}
	m.accidents()
	boottimetest.Pass(modelStep)
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
			x.lists = append(x.lists, min(m.r.IntN(modelLists), m.r.IntN(modelLists))) // some are quiet
			x.rows = append(x.rows, m.someRows())
		}
		if m.chance(40) {
			x.lists, x.rows, x.whole = nil, nil, true
		}
		if m.chance(100) || m.open && m.chance(20) {
			x.commitAt = m.now.Add(2 * time.Second)
		}
		x.showAt = x.commitAt.Add(m.upTo(10 * time.Millisecond))
		if m.chance(6) && !x.async { // it waits for a standby
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
		for list := range modelLists {
			if f := n.fills[list]; f != nil && (!f.read || m.chance(2)) {
				delete(n.fills, list)
			}
		}
	}
	for _, f := range m.followers {
		m.end(f)
	}
	m.needEpoch = true
}

// --- followers

// beginTerm begins a term, and an epoch if one is needed.
func (m *model) take() {
	if m.slot != nil || m.now.Before(m.takenAt) || m.now.Before(m.cannotBefore) {
		return
	}
	m.confirmed = min(m.confirmed, m.flushed)
	f := &modelFollower{server: m.server, epoch: m.server.epoch, term: m.nextXID, decoded: m.confirmed}
	m.slot, m.followers = f, append(m.followers, f)
	m.nextXID++
	m.completed = max(m.completed, f.term)
	var previous changefeed.Position
	if m.needEpoch || f.epoch == "" || !f.goesOn() {
		m.epochs++
		m.needEpoch, f.epoch = false, fmt.Sprint("epoch ", m.epochs)
	} else {
		previous = f.server.log(f.epoch).last
	}
	f.last = changefeed.Position{Term: f.term}
	f.queue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
}

// goesOn says whether the log reaches as far as the slot was confirmed.
func (f *modelFollower) goesOn() bool {
	return slices.ContainsFunc(f.server.log(f.epoch).entries, func(e changefeed.Entry) bool {
		return e.Heartbeat != nil && e.Heartbeat.LSN >= f.decoded || e.Change != nil && e.Change.LSN >= f.decoded
	})
}

// end ends a follower. What it has sent may still happen.
func (m *model) end(f *modelFollower) {
	f.ended = true
	if m.slot == f {
		m.slot = nil
	}
	if f.sent > 0 && !f.happened && m.chance(2) {
		entries := slices.Clone(f.waiting[:f.sent])
		m.late = append(m.late, func() { _ = f.server.append(f.epoch, entries) })
	}
}

func (f *modelFollower) queue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: f.term, N: f.last.N + uint64(len(f.waiting)) + 1}
	f.waiting = append(f.waiting, e)
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

// follow is a few steps of a follower, which ends where the log refuses it.
func (m *model) follow(f *modelFollower) {
	for !f.ended && !m.now.Before(f.pausedTo) && !m.now.Before(m.cannotBefore) && !m.chance(4) {
		switch {
		case m.chance(2000):
			f.pausedTo = m.now.Add(m.upTo(modelBound))
		case m.chance(100):
			f.pausedTo = m.now.Add(m.upTo(modelBound / 20))
		}
		m.followOn(f)
	}
}

func (m *model) followOn(f *modelFollower) {
	if f.sent == 0 && f.server != m.server && m.chance(20) {
		f.server = m.server
	}
	switch {
	case f.sent > 0 && f.happened: // it is acknowledged
		f.last, f.waiting = f.waiting[f.sent-1].Position, slices.Clone(f.waiting[f.sent:])
		f.sent, f.happened = 0, false
		if f.last.N == 1 { // the term has begun
			f.server.epoch = f.epoch
		}
		return
	case f.sent > 0:
		if f.happened = f.server.append(f.epoch, f.waiting[:f.sent]); !f.happened {
			m.end(f)
		}
		return
	}
	for m.slot == f && f.decoded < m.flushed && !m.chance(3) {
		x := m.wal[f.decoded]
		f.decoded++
		f.unsettled = append(f.unsettled, x)
		c := x.change()
		f.queue(changefeed.Entry{Change: &c})
	}
	if m.slot == f && len(m.unknown) > 0 { // a slot is not made before these are over
		if slices.ContainsFunc(m.running, func(x *transaction) bool { return slices.Contains(m.unknown, x.xid) }) {
			f.sent = len(f.waiting)
			return
		}
		m.unknown = nil
	}
	if f.server.epoch == "" && f.last.N > 0 && m.chance(20) { // the server has lost it
		f.server.epoch = f.epoch
	}
	switch {
	case f.pending == nil && !f.noted && !m.now.Before(f.beatAt):
		f.noted, f.after = true, f.last
		f.beatAt = m.now.Add(10 * time.Millisecond)
	case f.noted:
		f.noted = false
		f.pending = &changefeed.Heartbeat{LSN: m.lsn, Snapshot: m.snapshot(), Server: "the primary", After: f.after}
	case f.pending != nil && f.decoded >= f.pending.LSN:
		m.beat(f)
	}
	if m.chance(2) || f.pending == nil && !f.noted {
		f.sent = len(f.waiting)
	}
}

// beat queues the heartbeat. The next one begins when it is acknowledged.
func (m *model) beat(f *modelFollower) {
	s, _ := changefeed.ParseSnapshot(f.pending.Snapshot)
	f.unsettled = slices.DeleteFunc(f.unsettled, func(x *transaction) bool { return s.Sees(x.xid) })
	to := f.pending.LSN
	for _, x := range f.unsettled {
		f.pending.Unsettled = append(f.pending.Unsettled, x.change())
		to = min(to, x.lsn-1)
	}
	f.queue(changefeed.Entry{Heartbeat: f.pending})
	f.sent, f.pending = len(f.waiting), nil
	if f.confirms = append(f.confirms, to); len(f.confirms) > 10 && m.slot == f { // a while ago
		m.confirmed = max(m.confirmed, min(to, f.confirms[0]))
		f.confirms = f.confirms[1:]
	}
}

// accidents are what may happen to followers, log and Redis.
func (m *model) accidents() {
	switch log := m.server.log(m.server.epoch); {
	case m.chance(3000):
		m.crash()
	case m.chance(1500) && m.slot != nil: // the follower dies
		m.end(m.slot)
		m.takenAt = m.now.Add(m.upTo(2 * modelBound))
	case m.chance(1500) && m.slot != nil: // it is slow
		m.slot.pausedTo = m.now.Add(m.upTo(2 * modelBound))
	case m.chance(3000) && m.slot != nil: // it is slow, and overtaken
		m.slot.pausedTo = m.now.Add(m.upTo(2 * modelBound))
		m.slot, m.takenAt = nil, m.now.Add(m.upTo(modelBound))
	case m.chance(4000) && m.slot != nil: // the slot is lost
		m.end(m.slot)
		m.takenAt, m.confirmed = m.now.Add(m.upTo(modelBound)), m.flushed
		for _, x := range m.running {
			m.unknown = append(m.unknown, x.xid)
		}
		m.needEpoch = true
	case m.chance(300) && len(log.entries) > 0: // trimmed, perhaps under a node that is behind
		log.entries = slices.Clone(log.entries[m.r.IntN(len(log.entries)+1):])
	case m.chance(2500): // Redis loses its data
		*m.server = *newModelServer()
		clear(m.entries)
	case m.chance(2500): // a fail-over
		m.server = m.server.fork(m.r.IntN(6))
		for _, f := range m.followers {
			if m.chance(4) { // else it finds the new master later
				m.end(f)
			}
		}
	}
	for i := len(m.late) - 1; i >= 0; i-- {
		if m.chance(3) {
			m.late[i]()
			m.late = slices.Delete(m.late, i, i+1)
		}
	}
}

// --- a node

// read is a few steps of a node's subscriber.
func (m *model) read(n *modelNode) {
	for !m.now.Before(n.pausedTo) && !m.chance(4) {
		if m.chance(400) {
			n.pausedTo = m.now.Add(m.upTo(modelBound))
		}
		if m.chance(1000) || n.server != m.server && m.chance(100) { // the connection ends, and with it a read
			n.server, n.reading, n.looked = m.server, nil, time.Time{}
			n.subscription.NewSession("")
		}
		m.readOn(n)
	}
}

func (m *model) readOn(n *modelNode) {
	switch r := n.reading; {
	case r == nil:
		epoch, after := n.subscription.Next()
		if m.now.Sub(n.looked) > time.Second {
			n.looked = m.now
			if present := n.server.epoch; present != "" && present != epoch {
				n.subscription.Follow(present)
				epoch, after = n.subscription.Next()
			}
		}
		if epoch == "" {
			n.looked = time.Time{}
			return
		}
		n.reading = &modelRead{epoch: epoch, after: after, began: m.now}
	case !r.answered:
		const limit = 8
		for _, e := range n.server.log(r.epoch).entries {
			if e.Position.Compare(r.after) <= 0 {
				continue
			}
			if m.chance(500) { // the entry was damaged, or is of another version
				e = changefeed.Entry{Position: e.Position}
			}
			if r.entries = append(r.entries, e); len(r.entries) == limit {
				r.cut = true
				break
			}
		}
		r.answered = len(r.entries) > 0 || m.now.Sub(r.began) > modelBound/5
	default:
		n.subscription.Apply(r.began, r.entries, r.cut)
		if n.reading = nil; len(r.entries) == 0 {
			n.looked = time.Time{}
		}
	}
}

func (m *model) serve(n *modelNode) {
	for list := range modelLists { // in an order that the seed alone decides
		if f := n.fills[list]; f != nil {
			m.proceed(n, list, f)
		}
	}
	for range 2 {
		list := m.r.IntN(modelLists)
		if list == modelLists-1 && !m.chance(100) { // requested so rarely that changes are dropped in between
			continue
		}
		m.request(n, list)
	}
}

// request is what Hit and Forward do.
func (m *model) request(n *modelNode, list int) {
	if e, ok := n.memory[list]; ok && n.IsFresh(e.Validity, n.now()) {
		m.check(n, list, e, "memory")
		m.asked++
		if e.Admitted() { // else it is but shared for a moment
			m.hits++
		}
		return
	}
	if n.fills[list] != nil { // it waits for that one
		return
	}
	m.asked++
	if stored, ok := m.entries[list]; ok && m.chance(2) {
		e := stored.copied()
		n.ValidateFromRedis(e.Validity, modelList(list), n.now())
		if n.IsFresh(e.Validity, n.now()) {
			m.check(n, list, e, "redis")
			m.hits++
			n.memory[list] = e
			return
		}
	}
	if m.now.Before(m.cannotBefore) {
		return
	}
	required, ok := n.Require(modelList(list), n.now())
	m.fill(n, list, ok && (m.replayed >= required.LSN || m.chance(2)) && m.chance(2)) // the origin asks no standby that lags, but it need not know
}

func (m *model) fill(n *modelNode, list int, standby bool) {
	f := &modelFillUnderWay{start: n.Begin(n.now(), n.now()), began: n.now(), readAt: m.now.Add(m.upTo(modelFill / 4)), standby: standby}
	f.seen = ReadPoint{Server: "the primary", LSN: m.replayed} // asked for before the page is
	if m.chance(8) {
		f.readAt = m.now.Add(m.upTo(modelFill))
	}
	f.endsAt = f.readAt.Add(m.upTo(modelFill / 2))
	if m.chance(8) {
		f.endsAt = f.readAt.Add(m.upTo(4 * modelFill))
	}
	n.fills[list] = f
}

// proceed is what a fill does next: it reads, and later it ends.
func (m *model) proceed(n *modelNode, list int, f *modelFillUnderWay) {
	if !f.read && !m.now.Before(f.readAt) {
		if m.now.Before(m.cannotBefore) {
			delete(n.fills, list)
			return
		}
		f.read = true
		f.entry = modelEntry{Validity: &Validity{Proof: f.began, ReadAt: f.began}, saw: m.shown, readAt: m.now}
		if f.standby {
			m.readOnStandby(f)
		} else {
			f.seen = ReadPoint{Snapshot: parse(m.t, m.snapshot())}
		}
		f.entry.ReadPoint = f.seen
		if !m.chance(4) {
			f.entry.Extent = shows(1, 2, 3)
		}
	}
	if !f.read || m.now.Before(f.endsAt) {
		return
	}
	delete(n.fills, list)
	admitted := n.Admit(f.start, f.entry.Validity, modelList(list), n.now()) == Admitted
	if f.standby && !admitted {
		m.refused++
		m.fill(n, list, false)
		return
	}
	if old, ok := n.memory[list]; !ok || !old.NewerThan(f.entry.Validity) {
		n.memory[list] = f.entry
	}
	if admitted { // a late one may overwrite a newer one
		entry := f.entry.copied()
		m.late = append(m.late, func() { m.entries[list] = entry })
		if f.standby {
			m.fromStandby++
		}
	}
}

// readOnStandby is a statement there. Its snapshot claims to see what is running on
// the primary.
func (m *model) readOnStandby(f *modelFillUnderWay) {
	f.entry.replayed = m.replayed
	f.seen.Snapshot = changefeed.Snapshot{Xmin: m.completed + 1, Xmax: m.completed + 1}
	for i := len(m.all) - 1; i >= 0; i-- {
		if x := m.all[i]; !x.lost && x.lsn > m.replayed {
			f.entry.missing = append(f.entry.missing, x)
		}
	}
}

// check is the assertion.
func (m *model) check(n *modelNode, list int, p modelEntry, from string) {
	since := m.now.Add(-modelBound)
	omitted := slices.Clone(p.missing)
	for i := len(m.all) - 1; i >= 0 && m.all[i].visible > p.saw; i-- {
		if !p.shows(m.all[i]) {
			omitted = append(omitted, m.all[i])
		}
	}
	for _, x := range omitted {
		if !x.lost && x.changes(list, p.Extent != nil) && x.visibleAt.Before(since) {
			m.wrong = fmt.Sprintf("seed %d: %s shows, from its %s, list %d without transaction %d, visible for %s (%+v)",
				m.seed, n.name, from, list, x.xid, m.now.Sub(x.visibleAt), p.ReadPoint)
		}
	}
	for _, x := range m.lost {
		if !p.ReadPoint.OnStandby() && x.visible <= p.saw && x.changes(list, false) && !p.readAt.After(x.lostAt) && x.lostAt.Before(since) {
			m.wrong = fmt.Sprintf("seed %d: %s shows, from its %s, list %d with transaction %d, lost in a crash %s ago",
				m.seed, n.name, from, list, x.xid, m.now.Sub(x.lostAt))
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
			var compared [Concerns]uint64
			for seed := range uint64(seeds) {
				m := runModel(t, seed, steps, open)
				if m.wrong != "" {
					t.Fatal(m.wrong)
				}
				hits, asked, fromStandby, refused = hits+m.hits, asked+m.asked, fromStandby+m.fromStandby, refused+m.refused
				for _, n := range m.nodes {
					for c, count := range n.Stats().Compared {
						compared[c] += count
					}
				}
			}
			share := float64(hits) / float64(asked)
			t.Logf("hits: %.1f %%; pages of the standby: %d kept, %d refused; compared with changes: %v", 100*share, fromStandby, refused, compared)
			for _, c := range []Concern{Unconcerned, ShowsRow, RowEntered, AnyRow, NoExtent, Forgotten} {
				if compared[c] == 0 {
					t.Errorf("no page: %s", c)
				}
			}
			if seeds >= 50 && share < 0.35 { // of a few seeds it may be anything
				t.Error("too few hits")
			}
			if fromStandby < seeds || refused < seeds {
				t.Error("the standby was hardly tried")
			}
		})
	}
}
