package cache

import (
	"fmt"
	"math"
	"slices"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// The model of tracking: a database, its log, nodes with the real subscription, replica and Track, and clients, in virtual
// time and at random.
//
// The database: a transaction locks rows; its commit is in the WAL, and it becomes visible later, in any order. Some name
// no rows, some leave a row whose text the log does not have, some change created_at, some move a row to the other
// workspace. A fail-over begins another epoch without the latest commits.
//
// The log: heartbeats, and before each of them the transactions that are in the WAL. Redis may lose the end of it, which
// some nodes have read: then others have a gap, or another term goes on from what is left. For a while the log may not
// follow the list.
//
// Nodes read late, start again with the end of the log, hold parts of lists, and forget ids because of a small budget. They store
// checkpoints, and read one when they start or later: the last, or, of a Redis that has lost its end, an earlier one.

const (
	worldIDs, worldTimes = 4, 3 // of a workspace; of created_at
	worldNodes           = 3
)

// worldKey is a row: a workspace and an id.
type worldKey struct{ workspace, id int }

// version is what a transaction leaves of a row; nil = nothing.
type version struct {
	row     list.Row
	unknown bool // the log does not have its text
}

type worldRows [2][worldIDs]*version

func (w *worldRows) at(k worldKey) **version { return &w[k.workspace][k.id] }

func worldTable(workspace int) changefeed.Table {
	return changefeed.Table{List: listtest.Items, Tenant: fmt.Sprint(workspace + 1)}
}

// trackedQuery names a list: all rows of a workspace, or those that a filter keeps.
type trackedQuery struct {
	workspace int
	match     uint64
}

func (q trackedQuery) has(v *version) bool { return v != nil && v.row.Match&q.match == q.match }

type worldChange struct {
	key worldKey
	to  *version
}

type worldTransaction struct {
	xid    uint64
	rows   []worldChange // each row once
	lsn    int           // 0 = it is not committed
	shown  int           // the number of the state that shows it; 0 = none does
	named  bool          // the log names its rows
	tables []int         // of an unnamed one: the workspaces that it touches; nil = all
}

func (x *worldTransaction) change() changefeed.Change {
	c := changefeed.Change{XID: x.xid, LSN: uint64(x.lsn)}
	if !x.named && x.tables == nil {
		c.Touched = []changefeed.Touched{changefeed.AllRowsOf(listtest.Items)}
	}
	for w := range 2 {
		t := changefeed.Touched{Table: worldTable(w)}
		for _, r := range x.rows {
			switch {
			case r.key.workspace != w || !x.named:
			case r.to == nil:
				t.Rows = append(t.Rows, list.GoneRow(listtest.Key(listtest.ID(r.key.id))))
			default:
				row := r.to.row
				if r.to.unknown {
					row.ForgetText()
				}
				t.Rows = append(t.Rows, row)
			}
		}
		if len(t.Rows) > 0 || slices.Contains(x.tables, w) {
			c.Touched = append(c.Touched, t)
		}
	}
	return c
}

// settlement is a heartbeat and what it settles, whoever has read it.
type settlement struct {
	at      changefeed.Position
	state   int // its snapshot shows the first states up to this number
	settled []*worldTransaction
}

// worldDB is one epoch of the database, with its log.
type worldDB struct {
	number      int
	base        worldRows
	states, wal []worldRows // by the number of visible transactions; by LSN
	active      []*worldTransaction
	logged      []*worldTransaction // by LSN
	locks       map[worldKey]*worldTransaction
	log         []changefeed.Entry
	at          changefeed.Position // of the last entry
	published   int                 // LSN
	unsettled   []*worldTransaction // published
	settlements []settlement        // also those that were lost
	unfollowed  bool                // the log does not follow the list
}

func (db *worldDB) epoch() string { return fmt.Sprint("epoch ", db.number) }
func (db *worldDB) run() string   { return fmt.Sprint("run ", db.number) }
func (db *worldDB) now() *worldRows {
	return &db.states[len(db.states)-1]
}

func newWorldDB(number int, base worldRows, at changefeed.Position) *worldDB {
	return &worldDB{number: number, base: base, states: []worldRows{base}, wal: []worldRows{base}, locks: map[worldKey]*worldTransaction{}, at: at}
}

func (db *worldDB) write(x *worldTransaction, k worldKey, to *version) {
	if x.lsn > 0 || db.locks[k] != nil && db.locks[k] != x {
		return
	}
	db.locks[k] = x
	x.rows = slices.DeleteFunc(x.rows, func(r worldChange) bool { return r.key == k })
	x.rows = append(x.rows, worldChange{k, to})
}

func (db *worldDB) commit(x *worldTransaction, named bool, tables []int) {
	x.lsn, x.named, x.tables = len(db.wal), named, tables
	next := db.wal[len(db.wal)-1]
	for _, r := range x.rows {
		*next.at(r.key) = r.to
	}
	db.wal, db.logged = append(db.wal, next), append(db.logged, x)
}

// end ends a transaction, which becomes visible if it has committed.
func (db *worldDB) end(x *worldTransaction) {
	db.active = slices.DeleteFunc(db.active, func(o *worldTransaction) bool { return o == x })
	for _, r := range x.rows {
		delete(db.locks, r.key)
	}
	if x.lsn > 0 {
		x.shown = len(db.states)
		next := *db.now()
		for _, r := range x.rows {
			*next.at(r.key) = r.to
		}
		db.states = append(db.states, next)
	}
}

// snapshot is pg_current_snapshot().
func (db *worldDB) snapshot(next uint64) changefeed.Snapshot {
	s := changefeed.Snapshot{Xmin: next, Xmax: next}
	for _, x := range db.active {
		s.Running = append(s.Running, x.xid)
	}
	slices.Sort(s.Running)
	if len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s
}

func (db *worldDB) append(e changefeed.Entry) {
	db.at.N++
	e.Position = db.at
	db.log = append(db.log, e)
}

// heartbeat takes a snapshot, publishes what is in the WAL, and then the heartbeat.
func (db *worldDB) heartbeat(nextXID uint64) {
	h := changefeed.Heartbeat{LSN: uint64(len(db.wal) - 1), Snapshot: db.snapshot(nextXID).String(), Timeline: "timeline", StartedAt: db.run(), After: db.at}
	state := len(db.states) - 1
	for _, x := range db.logged {
		if x.lsn > db.published && !db.unfollowed {
			c := x.change()
			db.append(changefeed.Entry{Change: &c})
			db.unsettled = append(db.unsettled, x)
		}
	}
	db.published = len(db.wal) - 1
	var settled []*worldTransaction
	db.unsettled = slices.DeleteFunc(db.unsettled, func(x *worldTransaction) bool {
		sees := x.shown > 0 && x.shown <= state
		if sees {
			settled = append(settled, x)
		}
		return sees
	})
	for _, x := range db.unsettled {
		c := x.change()
		h.Unsettled = append(h.Unsettled, c.Unnamed())
	}
	if !db.unfollowed {
		h.Followed = []*list.List{listtest.Items}
	}
	db.append(changefeed.Entry{Heartbeat: &h})
	db.settlements = append(db.settlements, settlement{db.at, state, settled})
}

// follow begins to follow the list again, if nothing that the log lacks is yet to be seen.
func (db *worldDB) follow() {
	if !slices.ContainsFunc(db.logged, func(x *worldTransaction) bool { return x.shown == 0 && x.lsn <= db.published }) {
		db.unfollowed = false
	}
}

// loseEnd: Redis loses the last entries. Then the same follower goes on behind them, or another one from what is left,
// and publishes again what was not settled there.
func (db *worldDB) loseEnd(n int, another bool) {
	kept := len(db.log) - n
	for kept > 0 && db.log[kept-1].Heartbeat == nil {
		kept--
	}
	if kept <= 0 || slices.ContainsFunc(db.log[kept-1:], func(e changefeed.Entry) bool {
		return e.Heartbeat != nil && (e.Heartbeat.Followed == nil) != db.unfollowed
	}) {
		return
	}
	db.log = slices.Clone(db.log[:kept])
	last := db.log[kept-1]
	if !another {
		return
	}
	snapshot, _ := changefeed.ParseSnapshot(last.Heartbeat.Snapshot)
	db.published, db.unsettled = int(last.Heartbeat.LSN), nil
	for _, x := range db.logged {
		if x.lsn <= db.published && !snapshot.Sees(x.xid) && !db.unfollowed { // published, and not settled
			db.unsettled = append(db.unsettled, x)
		}
	}
	db.at = changefeed.Position{Term: db.at.Term + 1}
	db.append(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: last.Position}})
}

// since returns the number of the last state that a heartbeat up to the position shows.
func (db *worldDB) since(p changefeed.Position) (state int) {
	for _, s := range db.settlements {
		if s.at.Compare(p) <= 0 {
			state = max(state, s.state)
		}
	}
	return state
}

// versions are those that the row has from a state on.
func (db *worldDB) versions(k worldKey, state int) []*version {
	all := []*version{*db.base.at(k)}
	for _, x := range db.logged {
		for _, r := range x.rows {
			switch {
			case r.key != k:
			case x.shown > 0 && x.shown <= state:
				all = []*version{r.to}
			default:
				all = append(all, r.to)
			}
		}
	}
	return all
}

// worldNode is a node: those that read from it may outlive it, as requests to a process that is paused.
type worldNode struct {
	*Cache
	subscription *changefeed.Subscription
	db           *worldDB
	from         changefeed.Position // entries before it are not in its log
	joined       joined
	fills        []*worldFill
}

// joined is the first heartbeat that a node has read since it last began.
type joined struct{ at changefeed.Position }

func (j *joined) Reset(string, changefeed.ResetCause) { j.at = changefeed.Position{} }

func (j *joined) Beat(b changefeed.Beat) {
	if j.at == (changefeed.Position{}) {
		j.at = b.At
	}
}

// worldFill is a read that no client waits for.
type worldFill struct {
	*replica.Fill
	list  trackedQuery
	limit int
	read  bool
}

func (w *trackingWorld) newNode() *worldNode {
	ids := []int{3, 5, 8, 99}[w.r.IntN(4)]
	budget := replica.Budgets{Rows: []int{1 << 20, 6000, 1}[w.r.IntN(3)], Changes: 1 << 20, Parked: 1 << 20, IDs: 2*560 + ids*168, Lists: 16,
		Released: math.MaxInt}
	n := &worldNode{Cache: &Cache{clock: w.clock, replica: replica.New(budget), room: w.room}}
	n.options = Options{Origin: w, FillTimeout: time.Hour}
	n.followed.bound = worldBound
	n.followed.known.Store(&known{})
	n.following.Store(true)
	n.ctx = w.ctx
	n.options.CommitApplied = func(time.Duration) {}
	return n
}

// start starts a node, which reads the end of the log. Its clients' requests end with the old one.
func (w *trackingWorld) start(i int, entries int) {
	n := w.newNode()
	n.db = w.db()
	if from := len(n.db.log) - entries; from > 0 {
		n.from = n.db.log[from-1].Position
	}
	n.subscription = changefeed.NewSubscription(n.Cache, &n.joined)
	n.subscription.NewSession("")
	n.subscription.Follow(n.db.epoch())
	w.nodes[i] = n
}

// store stores what a node knows.
func (w *trackingWorld) store(n *worldNode) {
	if c := n.Checkpoint(); c != nil {
		w.stored = append(w.stored, c)
	}
}

// restore gives a node the checkpoint that was stored so many before the last, if there is one.
func (w *trackingWorld) restore(n *worldNode, before int) {
	if i := len(w.stored) - 1 - before; i >= 0 {
		n.subscription.Restore(w.stored[i])
	}
}

// readLog reads some entries, or all.
func (w *trackingWorld) readLog(n *worldNode, most int) {
	_, after := n.subscription.Next()
	if after.Compare(n.from) < 0 {
		after = n.from
	}
	var entries []changefeed.Entry
	for _, e := range n.db.log {
		if e.Position.Compare(after) > 0 && len(entries) < most {
			entries = append(entries, e)
		}
	}
	n.subscription.Apply(time.Now(), entries, len(entries) == most)
}

// known reports whether the node knows all changes behind a point.
func (n *worldNode) known(q trackedQuery, since changefeed.Point) bool {
	start := n.replica.Begin()
	return start.Follows(listtest.Items) && n.replica.Changes(worldTable(q.workspace), since, 1).Lack == replica.Complete
}

// rowsOf returns what a statement of the list returns behind a position.
func (q trackedQuery) rowsOf(rows *worldRows, after list.Position) (found []list.Row) {
	for _, v := range rows[q.workspace] {
		if q.has(v) && listtest.Items.Position(&v.row, 0) > after {
			found = append(found, v.row)
		}
	}
	slices.SortFunc(found, func(a, b list.Row) int { return listtest.Items.Compare(&a, 0, listtest.Items.Position(&b, 0)) })
	return found
}

// newVersion is one that no row had.
func (w *trackingWorld) newVersion(id int, of *version) *version {
	w.serial++
	created, tracked := w.r.IntN(worldTimes), w.r.IntN(2)
	v := &version{unknown: w.r.IntN(25) == 0}
	at := listtest.Instant(created)
	if of != nil { // only its text
		at, tracked = of.created(), int(of.row.Match&listtest.Tracked)
	}
	v.row = listtest.Row(listtest.Items, "id", listtest.ID(id), "created_at", at, "sku", fmt.Sprint(w.serial), "track_stock", []string{"f", "t"}[tracked])
	return v
}

func (v *version) created() string {
	value, _, _ := listtest.Items.ParsePosition(0, listtest.Items.Position(&v.row, 0))
	return value
}
