package cache

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache/replica"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// worldBound is how long a proof is trusted, and how long a request waits for one.
const worldBound = 150 * time.Millisecond

var worldLists = []trackedQuery{{0, 0}, {0, listtest.Tracked}, {1, 0}, {1, listtest.Tracked}}

// trackingWorld is one run of the model.
type trackingWorld struct {
	r       *rand.Rand
	clock   *boottime.Clock
	ctx     context.Context
	epochs  []*worldDB
	nodes   []*worldNode
	stored  []*changefeed.Checkpoint
	clients []*trackClient
	serial  int
	nextXID uint64
	room    room
	narrow  bool // pages have room for few bytes
	count   map[string]int

	running sync.WaitGroup // requests, also those that clients have given up
	mu      sync.Mutex     // guards flights and answers
	flights []*flight
}

func (w *trackingWorld) db() *worldDB { return w.epochs[len(w.epochs)-1] }

func (w *trackingWorld) chance(percent int) bool { return w.r.IntN(100) < percent }

func pick[T any](w *trackingWorld, of ...T) T { return of[w.r.IntN(len(of))] }

func newWorld(seed uint64) *trackingWorld {
	w := &trackingWorld{r: rand.New(rand.NewPCG(seed, 48)), clock: boottime.New(), ctx: context.Background(), nextXID: 700, room: room{bytes: math.MaxInt, gone: 2,
		goneBytes: math.MaxInt},
		count: map[string]int{}}
	w.narrow = seed%4 == 3
	if w.narrow {
		w.room = room{bytes: pick(w, 100, 700), gone: 2, goneBytes: pick(w, 10, 40, 80)}
	}
	var base worldRows
	for ws := range 2 {
		for id := range worldIDs {
			if w.chance(60) {
				base[ws][id] = w.newVersion(id, nil)
			}
		}
	}
	at := changefeed.Position{Term: pick(w, uint64(1), 1<<32-1), N: pick(w, uint64(0), 1<<32-20, 1<<40)}
	w.epochs = []*worldDB{newWorldDB(1, base, at)}
	w.db().heartbeat(w.nextXID)
	w.nodes = make([]*worldNode, worldNodes)
	for i := range w.nodes {
		w.start(i, 1)
		w.readLog(w.nodes[i], 9)
	}
	order := w.r.Perm(3)
	for i := range 2 {
		w.clients = append(w.clients, &trackClient{list: worldLists[order[i]], marks: i == 1, trackCopy: trackCopy{rows: map[int]markedRow{}}})
	}
	return w
}

// transact is one event in the database.
func (w *trackingWorld) transact() {
	db, k := w.db(), w.r.IntN(100)
	var x *worldTransaction
	if len(db.active) > 0 {
		x = pick(w, db.active...)
	}
	switch {
	case x == nil || k < 15 && len(db.active) < 4:
		w.begin()
	case k < 50:
		w.write(x)
	case k < 70 && x.lsn == 0:
		w.commit(x)
	case x.lsn > 0 || k > 97:
		db.end(x)
	}
}

func (w *trackingWorld) write(x *worldTransaction) {
	db := w.db()
	k := worldKey{pick(w, 0, 0, 1), w.r.IntN(worldIDs)}
	now := *db.wal[len(db.wal)-1].at(k)
	for _, r := range x.rows {
		if r.key == k {
			now = r.to
		}
	}
	switch c := w.r.IntN(100); {
	case c < 20:
		db.write(x, k, nil)
	case c < 30: // a move to the other workspace
		other := worldKey{1 - k.workspace, k.id}
		if now != nil && (db.locks[k] == nil || db.locks[k] == x) && (db.locks[other] == nil || db.locks[other] == x) {
			db.write(x, k, nil)
			db.write(x, other, w.newVersion(k.id, nil))
		}
	case c < 50 && now != nil:
		db.write(x, k, w.newVersion(k.id, now))
	case c < 56: // many rows
		for id := range worldIDs {
			db.write(x, worldKey{k.workspace, id}, pick(w, nil, w.newVersion(id, nil), w.newVersion(id, nil)))
		}
	default:
		db.write(x, k, w.newVersion(k.id, nil))
	}
}

func (w *trackingWorld) commit(x *worldTransaction) {
	db, c := w.db(), w.r.IntN(100)
	var tables []int
	if c >= 2 && c < 7 {
		for ws := range 2 {
			if slices.ContainsFunc(x.rows, func(r worldChange) bool { return r.key.workspace == ws }) || ws == 0 && w.chance(50) {
				tables = append(tables, ws)
			}
		}
	}
	if c < 1 { // TRUNCATE, as far as locks permit
		for id := range worldIDs {
			db.write(x, worldKey{0, id}, nil)
		}
	}
	db.commit(x, c >= 7 || c >= 2 && tables == nil, tables)
}

func (w *trackingWorld) failover() {
	db := w.db()
	kept := len(db.wal) - 1
	if w.chance(60) {
		kept = w.r.IntN(len(db.wal))
	}
	at := changefeed.Position{Term: db.at.Term}
	if w.chance(50) {
		at.N = db.at.N - min(db.at.N, w.r.Uint64N(4)) // positions of epochs may resemble each other
	}
	w.epochs = append(w.epochs, newWorldDB(db.number+1, db.wal[kept], at))
	w.db().heartbeat(w.nextXID)
}

// step is one event.
func (w *trackingWorld) step() {
	db, k := w.db(), w.r.IntN(1000)
	switch {
	case k < 360:
		w.transact()
		w.transact()
	case k < 460:
		db.heartbeat(w.nextXID)
	case k < 640:
		i := pick(w, 0, 0, 1, 1, 2)
		n := w.nodes[i]
		switch {
		case w.chance(2):
			w.start(i, w.r.IntN(8))
			if w.chance(70) {
				w.restore(w.nodes[i], pick(w, 0, 0, 0, 1, 2, 5))
			}
		case w.chance(3):
			w.store(n)
		case w.chance(2):
			w.restore(n, pick(w, 0, 0, 1, 2))
		case n.db != db && w.chance(30):
			w.turn(n)
		default:
			w.readLog(n, pick(w, 1, 3, 9, 100))
		}
	case k < 690:
		w.hold(pick(w, w.nodes...))
	case k < 810:
		w.proceed()
	case k < 813:
		w.failover()
	case k < 818:
		db.loseEnd(1+w.r.IntN(6), w.chance(50))
	case k < 821:
		db.unfollowed = true
	case k < 840:
		if db.unfollowed {
			db.follow()
		}
	default:
		w.act(pick(w, w.clients...))
	}
}

// act is what a client does next.
func (w *trackingWorld) act(c *trackClient) {
	if c.asks != nil {
		flies := slices.ContainsFunc(w.flights, func(f *flight) bool { return w.clients[f.client] == c })
		if flies && w.chance(5) { // it gives up, and repeats the cursor
			c.asks = nil
		}
		return
	}
	if len(c.past) > 0 && w.chance(5) { // it resumes at a cursor from before
		c.back(max(0, len(c.past)-1-w.r.IntN(5)))
	}
	w.send(c, pick(w, w.nodes...), pick(w, 1, 2, 2, 3, 20), Directives{NoCache: w.chance(8), OnlyIfCached: w.chance(4)})
}

// hold begins to read a part of a list that no client asks for.
func (w *trackingWorld) hold(n *worldNode) {
	start := n.replica.Begin()
	if !start.Follows(listtest.Items) || len(n.fills) > 3 {
		return
	}
	q := pick(w, worldLists...)
	f := &worldFill{list: q, limit: pick(w, 1, 2, 3, 20)}
	f.Fill = &replica.Fill{Key: replica.Key{Table: worldTable(q.workspace), Match: q.match}, Start: start}
	if rows := q.rowsOf(w.db().now(), ""); len(rows) > 0 && w.chance(60) {
		row := pick(w, rows...)
		f.After = listtest.Items.Position(&row, 0)
	}
	n.fills = append(n.fills, f)
}

// proceed lets a statement run, or answers it.
func (w *trackingWorld) proceed() {
	db, n := w.db(), pick(w, w.nodes...)
	if len(n.fills) > 0 && w.chance(50) {
		i := w.r.IntN(len(n.fills))
		f := n.fills[i]
		if f.read {
			n.replica.Merge(f.Fill)
			n.fills = slices.Delete(n.fills, i, i+1)
			return
		}
		rows := f.list.rowsOf(db.now(), f.After)
		f.read, f.Read = true, page.Read{End: len(rows) <= f.limit, Rows: rows[:min(f.limit, len(rows))],
			At: changefeed.ReadPoint{StartedAt: db.run(), Snapshot: db.snapshot(w.nextXID), Began: f.Start.At.Began}}
		return
	}
	if len(w.flights) == 0 {
		return
	}
	f := pick(w, w.flights...)
	if f.read == nil && !w.chance(3) {
		w.run(f)
	} else {
		w.land(f, f.read != nil)
	}
}

// settle lets what runs go on until it waits, and a moment pass.
func (w *trackingWorld) settle(moment time.Duration) {
	synctest.Wait()
	w.receive()
	if moment > 0 {
		time.Sleep(moment)
		synctest.Wait()
		w.receive()
	}
}

// turn lets a node follow the present epoch.
func (w *trackingWorld) turn(n *worldNode) {
	if n.db != w.db() {
		n.db, n.from = w.db(), changefeed.Position{}
		n.subscription.Follow(n.db.epoch())
	}
}

// pump lets all nodes read all, and prove it.
func (w *trackingWorld) pump() {
	db := w.db()
	for range 2 {
		for _, n := range w.nodes {
			w.readLog(n, math.MaxInt)
		}
		time.Sleep(time.Millisecond)
		db.heartbeat(w.nextXID)
		db.heartbeat(w.nextXID)
	}
	for _, n := range w.nodes {
		w.readLog(n, math.MaxInt)
	}
	w.settle(0)
}

// quiet: everything ends, all nodes have it, and a round under way and one more make the copy the list.
func (w *trackingWorld) quiet() {
	db := w.db()
	for _, x := range slices.Clone(db.active) {
		db.end(x)
	}
	db.follow()
	for len(w.flights) > 0 {
		w.land(w.flights[0], false)
		synctest.Wait()
	}
	w.running.Wait()
	w.settle(0)
	for _, n := range w.nodes {
		w.turn(n)
	}
	w.pump()
	for _, c := range w.clients {
		c.asks = nil
		for range 2 {
			w.round(c, w.nodes, pick(w, 1, 2, 20))
		}
		w.compare(c)
	}
	w.judge()
	for range 3 {
		w.restartOften()
	}
	w.deploy()
}

// compare compares a copy with the list.
func (w *trackingWorld) compare(c *trackClient) {
	rows := c.list.rowsOf(w.db().now(), "")
	if len(rows) != len(c.rows) || slices.ContainsFunc(rows, func(row list.Row) bool { return c.rows[idOf(row.Key())].Row != row }) {
		w.fail("B: client of %+v, marks %t: %v, not %v", c.list, c.marks, c.rows, rows)
	}
}

// restartOften has few changes and many restarts between two rounds of a client, and takes checkpoints of any age. Each node then
// brings the copy up to date.
func (w *trackingWorld) restartOften() {
	c := pick(w, w.clients...)
	w.round(c, w.nodes, 20)
	w.store(pick(w, w.nodes...))
	for range 4 + w.r.IntN(20) {
		db, i := w.db(), w.r.IntN(worldNodes)
		switch k := w.r.IntN(100); {
		case k < 15:
			x := w.change(pick(w, c.list.workspace, 1-c.list.workspace, 1-c.list.workspace), w.chance(90))
			if w.chance(40) { // it becomes visible after the heartbeat
				db.heartbeat(w.nextXID)
			}
			db.end(x)
		case k < 40:
			db.heartbeat(w.nextXID)
			w.readLog(w.nodes[i], math.MaxInt)
		case k < 65:
			w.readLog(w.nodes[i], pick(w, 1, math.MaxInt))
			w.store(w.nodes[i])
		case k < 90:
			w.start(i, w.r.IntN(7))
			w.restore(w.nodes[i], pick(w, 0, 0, 0, 1, 2))
			w.readLog(w.nodes[i], pick(w, 1, math.MaxInt, math.MaxInt))
		case k < 93:
			w.restore(w.nodes[i], pick(w, 0, 1, 2))
		case k < 95:
			db.unfollowed = true
		case k < 97:
			db.follow()
		case k < 99:
			db.loseEnd(1+w.r.IntN(3), w.chance(50))
		default:
			w.failover()
			for _, n := range w.nodes {
				w.turn(n)
			}
		}
	}
	w.db().follow()
	w.pump()
	before := c.save()
	for _, n := range w.nodes {
		c.trackCopy = before
		c.trackCopy = c.save()
		w.round(c, []*worldNode{n}, 20)
		w.compare(c)
	}
}

// change commits a change of a row of a workspace, which is not visible yet.
func (w *trackingWorld) change(workspace int, named bool) *worldTransaction {
	x := w.begin()
	w.rewrite(x, workspace)
	w.db().commit(x, named, nil)
	return x
}

func (w *trackingWorld) begin() *worldTransaction {
	x := &worldTransaction{xid: w.nextXID}
	w.nextXID++
	w.db().active = append(w.db().active, x)
	return x
}

// rewrite changes or removes a row of a workspace, if nobody else has locked it.
func (w *trackingWorld) rewrite(x *worldTransaction, workspace int) {
	id := w.r.IntN(worldIDs)
	w.db().write(x, worldKey{workspace, id}, pick(w, nil, w.newVersion(id, nil), w.newVersion(id, nil)))
}

// deploy starts all nodes anew, one after the other, each with the end of the log alone. The other workspace changes meanwhile. A
// client that had all has it, and pays one request.
func (w *trackingWorld) deploy() {
	c, db := pick(w, w.clients...), w.db()
	w.round(c, w.nodes, 20)
	for i := range w.nodes {
		w.pump()
		w.store(pick(w, w.nodes...))
		w.start(i, pick(w, 1, 2))
		w.restore(w.nodes[i], 0)
		db.end(w.change(1-c.list.workspace, true))
	}
	w.pump()
	requests, none := c.requests, w.count["none, from before the log"]
	w.round(c, w.nodes, 1)
	if c.requests-requests != 1 || w.count["none, from before the log"] == none {
		w.fail("C: %d requests after a deployment, none that a checkpoint answers", c.requests-requests)
	}
}

// judge counts the requests of a round after some changes, over nodes that know since: rows and removals decide, whatever
// is held. Without a change it is one.
func (w *trackingWorld) judge() {
	if w.narrow {
		return
	}
	c, db, limit := pick(w, w.clients...), w.db(), pick(w, 1, 2, 3)
	w.round(c, w.nodes, 20)
	since, before := c.cursor.Known(), len(db.logged)
	for range w.r.IntN(4) {
		x := w.begin()
		for range 1 + w.r.IntN(4) {
			w.rewrite(x, c.list.workspace)
		}
		db.commit(x, true, nil)
		db.end(x)
		if w.chance(60) {
			db.heartbeat(w.nextXID)
		}
	}
	w.pump()
	nodes := slices.Clone(w.nodes)
	nodes = slices.DeleteFunc(nodes, func(n *worldNode) bool { return !n.known(c.list, since) })
	if len(nodes) == 0 {
		return
	}
	changed := map[worldKey]bool{}
	for _, x := range db.logged[before:] {
		for _, r := range x.rows {
			changed[r.key] = true
		}
	}
	requests := c.requests
	w.round(c, nodes, limit)
	took, room := c.requests-requests, min(limit, w.room.gone)
	if took > (len(changed)+room-1)/room+1 || len(changed) == 0 && took != 1 {
		w.fail("D: %d requests for %d rows, %d a page", took, len(changed), limit)
	}
	w.count["judged"]++
}

// round is a whole round.
func (w *trackingWorld) round(c *trackClient, nodes []*worldNode, limit int) {
	rounds := c.rounds
	for range 200 {
		w.send(c, pick(w, nodes...), limit, Directives{})
		for c.asks != nil {
			w.settle(0)
			switch {
			case c.asks == nil:
			case len(w.flights) > 0:
				w.run(w.flights[0])
				w.land(w.flights[0], true)
			default:
				w.pump()
			}
		}
		if c.rounds > rounds {
			return
		}
	}
	w.fail("B: a round does not end: %+v", c.cursor)
}

// runWorld runs one seed, and returns what has happened.
func runWorld(t *testing.T, seed uint64) (count map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed)
		defer func() {
			failed := recover()
			for len(w.flights) > 0 {
				w.land(w.flights[0], false)
				synctest.Wait()
			}
			w.running.Wait()
			e, ours := failed.(worldError)
			switch {
			case ours:
				t.Fatalf("seed %d: %s", seed, e.text)
			case failed != nil:
				panic(fmt.Sprintf("seed %d: %v", seed, failed))
			}
			count = w.count
		}()
		for range 60 + w.r.IntN(500) {
			w.step()
			w.settle(time.Millisecond)
		}
		w.quiet()
	})
	return count
}

var (
	trackingSeeds = flag.Int("tracking-seeds", 2000, "runs of the model of tracking")
	trackingFirst = flag.Uint64("tracking-first", 1, "the seed of the first run")
)

// The copies of clients are what the list was, rounds take no more requests than rows and removals need, and nothing of
// another workspace is on a page: with the rules, and the real Track and replica, whatever happens in between.
func TestTrackingModel(t *testing.T) {
	total := map[string]int{}
	for seed := *trackingFirst; seed < *trackingFirst+uint64(*trackingSeeds); seed++ {
		for what, n := range runWorld(t, seed) {
			total[what] += n
		}
		if t.Failed() {
			return
		}
	}
	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	for what, percent := range map[string]int{ // of the runs
		"rounds": 500, "none": 200, "delta": 80, "delta, cut": 20, "full": 300, "full, dropped": 30, "full, epoch": 30, "full, joined": 10, "full, unnamed": 30,
		"gone": 60, "by id": 50, "by id, cut": 1, "judged": 30, "none, from before the log": 110, ErrUnproven.Error(): 50,
	} {
		if 100*total[what] < percent**trackingSeeds {
			t.Errorf("%d %s in %d runs", total[what], what, *trackingSeeds)
		}
	}
}
