package replica_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// The load of the bench, in virtual time: what bench/precision_load.go does to three nodes. Clients ask for 2,000 pages of six
// lists of 100,000 items while ten items a second change; every ten seconds transactions change, remove and
// insert ten items each, as those of bench/copies.go do. One node has read its pages, and the others have taken them a minute
// later from copies of these. Then a minute is played, in which each node verifies every 10 s, as it does by default.
const (
	loadItems    = 100_000
	loadPages    = 2_000
	loadPageSize = 50
	loadAhead    = 200 // rows of a statement that reads a page
	loadReads    = 200 // a second: a fifth of the bench's, as a hit changes nothing
	loadBeat     = time.Second / 20
	loadVerify   = 10 * time.Second / loadBeat // heartbeats
	loadSeeds    = 3
)

// loadLists are those of precisionLists, and the share of each.
var loadLists = []struct {
	key   replica.Key
	share float64
}{
	{replica.Key{Table: testTable, Order: listtest.ByCreatedAt}, 0.25}, {replica.Key{Table: testTable, Order: listtest.ByName}, 0.25},
	{replica.Key{Table: testTable, Match: listtest.Low}, 0.125}, {replica.Key{Table: testTable, Match: listtest.Tracked}, 0.125},
	{replica.Key{Table: testTable, Match: listtest.Goods}, 0.125}, {replica.Key{Table: testTable, Search: "BOLT"}, 0.125},
}

var loadWords = strings.Fields("Anchor Bolt chain Dowel hinge Nut screw Washer")

// item is a row of the load.
type item struct {
	id, created int // seconds before 2026
	name        string
	stock       int
	reorder     int // 0 = none
	tracked     bool
	goods       bool
	active      bool
	row         *list.Row
}

// version makes the row as it is now.
func (i *item) version() {
	kind, reorder := "SERVICE", listtest.Null
	if i.goods {
		kind = "GOODS"
	}
	if i.reorder > 0 {
		reorder = fmt.Sprint(i.reorder)
	}
	row := listtest.Item(0, "id", listtest.ID(i.id), "created_at", listtest.Instant(i.created), "name", i.name, "type", kind,
		"track_stock", fmt.Sprint(i.tracked)[:1], "stock_on_hand", fmt.Sprint(i.stock), "reorder_point", reorder)
	i.row = &row
}

// listed is an item in a list.
type listed struct {
	at   list.Position
	item *item
}

// loadList is a list as the database has it.
type loadList struct {
	key  replica.Key
	rows []listed
}

func (l *loadList) find(at list.Position) int {
	return sort.Search(len(l.rows), func(i int) bool { return l.rows[i].at >= at })
}

func (l *loadList) has(i *item) bool {
	return i.active && i.row.Match&l.key.Match == l.key.Match && strings.Contains(list.Fold(i.name), l.key.Search)
}

// load is the database and its nodes.
type load struct {
	r       *rand.Rand
	lists   []*loadList
	items   []*item
	nodes   []*replica.Replica
	next    uint64               // transaction
	settled []*changefeed.Change // since the last heartbeat
	beats   uint64
	pages   []loadPage
	asked   int           // statements of verifications
	found   time.Duration // when a node found the first mismatch; 0 = there was none
}

type loadPage struct {
	key   replica.Key
	after list.Position
}

// base is what all minutes begin with.
var base = sync.OnceValue(func() *load {
	r := rand.New(rand.NewPCG(1, 1))
	l := &load{next: 1}
	for id := range loadItems {
		i := &item{id: id, created: r.IntN(2557 * 86400), name: fmt.Sprintf("%s %s %d", pick(r, loadWords), pick(r, loadWords), r.IntN(1000)),
			goods: r.IntN(20) > 0, active: true}
		i.tracked = i.goods && r.IntN(4) > 0
		if i.tracked {
			i.reorder = 5 + r.IntN(50)
			i.stock = i.reorder + 1 + r.IntN(400)
			if r.IntN(50) == 0 {
				i.stock = r.IntN(i.reorder + 1)
			}
			i.reorder *= r.IntN(3) & 1
		}
		i.version()
		l.items = append(l.items, i)
	}
	for _, of := range loadLists {
		next := &loadList{key: of.key}
		for _, i := range l.items {
			if next.has(i) {
				next.rows = append(next.rows, listed{positionIn(&of.key, i.row), i})
			}
		}
		slices.SortFunc(next.rows, func(a, b listed) int { return strings.Compare(string(a.at), string(b.at)) })
		for n := 0; n < min(len(next.rows), int(of.share*loadPages)*loadPageSize); n += loadPageSize {
			p := loadPage{key: of.key}
			if n > 0 {
				p.after = next.rows[n-1].at
			}
			l.pages = append(l.pages, p)
		}
		l.lists = append(l.lists, next)
	}
	return l
})

// newLoad begins a minute.
func newLoad(seed uint64) *load {
	l := *base()
	l.r, l.items = rand.New(rand.NewPCG(seed, 2)), nil
	own := make([]item, len(base().items), len(base().items)+5000)
	for n, i := range base().items {
		own[n] = *i
		l.items = append(l.items, &own[n])
	}
	l.lists = nil
	for _, of := range base().lists {
		next := &loadList{key: of.key, rows: slices.Clone(of.rows)}
		for i := range next.rows {
			next.rows[i].item = l.items[next.rows[i].item.id]
		}
		l.lists = append(l.lists, next)
	}
	for range 3 {
		l.nodes = append(l.nodes, replica.New(roomy))
	}
	return &l
}

// change changes an item, and adds it to the change.
func (l *load) change(c *changefeed.Change, i *item, do func()) {
	before := *i
	do()
	i.version()
	if before.row == nil { // it is new
		before.active = false
	}
	for _, of := range l.lists {
		had, has := before.active && of.has(&before), of.has(i)
		var from, to list.Position
		if had {
			from = positionIn(&of.key, before.row)
		}
		if has {
			to = positionIn(&of.key, i.row)
		}
		if from == to {
			continue
		}
		if had {
			n := of.find(from)
			of.rows = slices.Delete(of.rows, n, n+1)
		}
		if has {
			of.rows = slices.Insert(of.rows, of.find(to), listed{to, i})
		}
	}
	row := *i.row
	if !i.active {
		row = list.GoneRow(row.Key())
	}
	c.Touched[0].Rows = append(c.Touched[0].Rows, row)
}

// transaction begins one.
func (l *load) transaction() *changefeed.Change {
	l.next++
	return &changefeed.Change{XID: l.next, LSN: l.next, Touched: []changefeed.Touched{{Table: testTable}}}
}

// commit ends one: what it changed was visible to nobody before.
func (l *load) commit(c *changefeed.Change) { l.settled = append(l.settled, c) }

func (l *load) snapshot() changefeed.Snapshot {
	return changefeed.Snapshot{Xmin: l.next + 1, Xmax: l.next + 1}
}

func (l *load) anItem(active bool) *item {
	for {
		if i := pick(l.r, l.items); i.active == active {
			return i
		}
	}
}

// newItem makes an item, which is the newest.
func (l *load) newItem(c *changefeed.Change, name string) {
	i := &item{id: len(l.items), created: -len(l.items), name: name, goods: true, tracked: true}
	l.items = append(l.items, i)
	l.change(c, i, func() { i.active = true })
}

// write is one of the changes that the bench calls "mixed" and "as shops write".
func (l *load) write() {
	c := l.transaction()
	n := l.r.IntN(1000)
	anyScript := fmt.Sprintf("%s %d", pick(l.r, []string{"CAFÉ MUG", "東京 抹茶", "Чайник", "شاي"}), n)
	switch k := l.r.IntN(20); {
	case k < 14:
		i := l.anItem(true)
		l.change(c, i, func() { i.stock += 2*l.r.IntN(2) - 1 })
	case k == 14:
		i := l.anItem(true)
		l.change(c, i, func() { i.name = fmt.Sprintf("%s %d", pick(l.r, loadWords), n) })
	case k == 15:
		i := l.anItem(true)
		l.change(c, i, func() { i.name = anyScript })
	case k == 16:
		l.newItem(c, fmt.Sprintf("New item %d", n))
	case k == 17:
		l.newItem(c, anyScript)
	case k == 18:
		i := l.anItem(true)
		l.change(c, i, func() { i.active = false })
	default: // which is mostly that it becomes inactive
		i := pick(l.r, l.items)
		l.change(c, i, func() { i.active = !i.active })
	}
	l.commit(c)
}

// writeTens changes, removes and inserts ten items, in a transaction each.
func (l *load) writeTens() {
	for kind := range 3 {
		c := l.transaction()
		for range 10 {
			i := l.anItem(true)
			switch kind {
			case 0:
				l.change(c, i, func() { i.stock++ })
			case 1:
				l.change(c, i, func() { i.active = false })
			case 2:
				l.newItem(c, fmt.Sprintf("New, after %d", i.id))
			}
		}
		l.commit(c)
	}
}

// beat has all nodes apply a heartbeat.
func (l *load) beat() {
	l.beats++
	b := settled(l.beats, l.settled...)
	b.LSN, b.Snapshot = l.next, l.snapshot()
	l.settled = nil
	for _, n := range l.nodes {
		n.Apply(b)
	}
}

// statement reads up to so many rows behind a position.
func (l *load) statement(n *replica.Replica, k replica.Key, after list.Position, limit int) *replica.Fill {
	f := &replica.Fill{Key: k, After: after, Start: n.Begin()}
	f.At = changefeed.ReadPoint{Began: f.Start.At.Began, StartedAt: "run", Snapshot: l.snapshot()}
	of := l.lists[slices.IndexFunc(l.lists, func(of *loadList) bool { return of.key == k })]
	i := sort.Search(len(of.rows), func(i int) bool { return of.rows[i].at > after })
	to := min(len(of.rows), i+limit)
	for _, row := range of.rows[i:to] {
		f.Rows = append(f.Rows, *row.item.row)
	}
	f.End = to == len(of.rows)
	return f
}

// ask has a node answer for a page. It reads what it does not have.
func (l *load) ask(n *replica.Replica, p loadPage) *replica.Fill {
	_, _, ok := n.Read(nil, &p.key, p.after, loadPageSize, 1<<30)
	if ok {
		return nil
	}
	f := l.statement(n, p.key, p.after, loadAhead)
	n.Merge(f)
	return f
}

// verify has a node verify, by a statement.
func (l *load) verify(n *replica.Replica) {
	k, after, ok := n.Pick()
	if !ok {
		return
	}
	f := l.statement(n, k, after, page.MaxLimit)
	f.Verifies = true
	n.Merge(f)
	l.asked++
}

// run plays some time. It ends early once a node has found a mismatch.
func (l *load) run(length time.Duration, verify bool) {
	for n := 1; n <= int(length/loadBeat) && l.found == 0; n++ {
		if n%2 == 0 {
			l.write()
		}
		if n%int(loadVerify) == 0 {
			l.writeTens()
		}
		for i, node := range l.nodes {
			if verify && n%int(loadVerify) == i*60 {
				l.verify(node)
			}
		}
		l.beat()
		if !verify {
			continue
		}
		for range int(loadReads * loadBeat.Seconds()) {
			l.ask(pick(l.r, l.nodes), pick(l.r, l.pages))
		}
		if slices.ContainsFunc(l.nodes, func(node *replica.Replica) bool { return ofItemsVerified(node).Mismatches[replica.Rows] > 0 }) {
			l.found = time.Duration(n) * loadBeat
		}
	}
}

// minute is what came of one.
type minute struct {
	found    time.Duration
	asked    int
	verified uint64
}

func playMinute(seed uint64) (m minute) {
	l := newLoad(seed)
	l.beat()
	var copies []*replica.Fill // as the first node has stored them
	for _, p := range l.pages {
		if f := l.ask(l.nodes[0], p); f != nil {
			copies = append(copies, &replica.Fill{Key: f.Key, After: f.After, Read: f.Read})
		}
	}
	l.run(time.Minute, false)
	for i, n := range l.nodes {
		if i > 0 {
			for _, c := range copies {
				n.Merge(&replica.Fill{Key: c.Key, After: c.After, Read: c.Read, Start: n.Begin()})
			}
		}
		for range seed + 2*uint64(i) { // the nodes began at other times, and so stand at other turns
			n.Pick()
		}
	}
	l.run(time.Minute, true)
	m.found, m.asked = l.found, l.asked
	for _, n := range l.nodes {
		m.verified += ofItemsVerified(n).Pages
	}
	return m
}

// minutes are played once for both tests.
var minutes = sync.OnceValue(func() (all [loadSeeds]minute) {
	for seed := range all {
		all[seed] = playMinute(uint64(seed))
	}
	return all
})

// In the minutes nothing differs, and each node asks for a page every ten seconds.
func TestVerifyFindsNothing(t *testing.T) {
	for seed, m := range minutes() {
		if m.found > 0 || m.asked != 3*6 || m.verified != 3*6 {
			t.Errorf("seed %d: %+v", seed, m)
		}
	}
}

// TestVerifyFindsWhatIsBroken fails if a mismatch is found in each of the minutes: cmd/listedge/mutations breaks rules of the replica
// one by one, and then it must.
func TestVerifyFindsWhatIsBroken(t *testing.T) {
	var found []time.Duration
	for _, m := range minutes() {
		if m.found > 0 {
			found = append(found, m.found)
		}
	}
	if len(found) == loadSeeds {
		t.Errorf("found in each minute, after %s", found)
	}
}
