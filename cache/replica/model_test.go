package replica_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// The model: a database, its log, a standby and two nodes, at random.
//
// The database: a transaction locks the rows that it changes, its commit is logged, and
// then it becomes visible and releases the locks, in another order than that of the log. A
// standby replays the log, and shows what it has replayed, visible on the primary or not.
//
// The log: a heartbeat's snapshot is taken; then all that is logged is published, and the
// heartbeat. Nodes apply heartbeats later, lose entries, and join anew.
//
// A fill begins, is read, and comes back, with pauses between. It is read from the
// primary, from the standby, or from what the other node shows.
//
// The assertion, after each step of a node: each range equals the list at the node's
// state, a page that is cut equals the list, and what was cut at a version that is still
// the list's equals it, too.

// heartbeat is one in the log, with the changes before it.
type heartbeat struct {
	beat    changefeed.Beat
	changes []*changefeed.Change
}

// view is a page that a node has cut.
type view struct {
	replica.Page
	rows  []*list.Row
	after list.Position
	limit int
}

type modelNode struct {
	*replica.Replica
	next      int // heartbeat to apply
	since     int // the first that was read since the last reset
	synced    bool
	unsettled []*changefeed.Change
	snapshot  changefeed.Snapshot // of the state
	views     []view
}

// source says where a flight reads.
type source uint8

const (
	primary source = iota
	standby
	stored   // what another flight read, as Redis has it
	replicas // the rows of another node, as Redis has them
	sources
)

type flight struct {
	*replica.Fill
	source source
	node   *modelNode
	read   bool
}

type model struct {
	r *rand.Rand
	database
	beats      []heartbeat
	published  int
	taken      *changefeed.Beat // a heartbeat that is not published yet
	follows    bool             // the follower has the list
	nodes      []*modelNode
	flights    []*flight
	statements []*replica.Fill // that were read last
	run        string
	outcomes   *[replica.Outcomes]int
}

func newModel(of shape, r *rand.Rand, nodes int) *model {
	m := &model{r: r, database: database{shape: of, values: map[*list.Row]modelValues{}}, follows: true, run: "run", outcomes: new([replica.Outcomes]int)}
	for range nodes {
		m.nodes = append(m.nodes, &modelNode{Replica: replica.New(roomy)})
	}
	return m
}

func (m *model) takeSnapshot() {
	m.taken = &changefeed.Beat{Snapshot: m.snapshot(), Proof: changefeed.Proof{LSN: m.wal, Timeline: "server", StartedAt: m.run}}
	if m.follows {
		m.taken.Followed = []*list.List{m.shape.table.List}
	}
}

// changeFollower lets another node follow, which has the list or not. It publishes again what the last heartbeat does
// not see, since the slot has kept that.
func (m *model) changeFollower() {
	m.follows, m.taken = !m.follows, nil
	for i, x := range m.logged[:m.published] {
		if len(m.beats) == 0 || !m.beats[len(m.beats)-1].beat.Snapshot.Sees(x.xid) {
			m.published = i
			return
		}
	}
}

func (m *model) publish() {
	h := heartbeat{beat: *m.taken}
	for _, x := range m.logged[m.published:] {
		if m.follows {
			h.changes = append(h.changes, x.change)
		}
	}
	m.published, m.taken = len(m.logged), nil
	h.beat.At = changefeed.Position{Term: 1, N: uint64(len(m.beats) + 1)}
	m.beats = append(m.beats, h)
}

// apply lets a node read the log up to the next heartbeat, as a subscription does.
func (m *model) apply(n *modelNode) {
	h := m.beats[n.next]
	n.next++
	n.unsettled = append(n.unsettled, h.changes...)
	b := h.beat
	n.unsettled = slices.DeleteFunc(n.unsettled, func(c *changefeed.Change) bool {
		sees := b.Snapshot.Sees(c.XID)
		if sees {
			b.Settled = append(b.Settled, c)
		}
		return sees
	})
	if !n.synced { // the heartbeat names what was published before the first entry
		n.synced = true
		for _, earlier := range m.beats[:n.since] {
			for _, c := range earlier.changes {
				if !b.Snapshot.Sees(c.XID) {
					unnamed := c.Unnamed()
					n.unsettled = append(n.unsettled, &unnamed)
				}
			}
		}
	}
	b.Unsettled = n.unsettled
	n.snapshot = b.Snapshot
	n.Apply(&b)
}

// reset makes a node lose entries of the log.
func (m *model) reset(n *modelNode) {
	n.Reset("")
	n.next += m.r.IntN(len(m.beats) - n.next + 1)
	n.since, n.synced, n.unsettled = n.next, false, nil
}

// begin begins a fill of a list.
func (m *model) begin(n *modelNode, k replica.Key, after list.Position, from source) *flight {
	start := n.Begin()
	f := &flight{Fill: &replica.Fill{Key: k, After: after, Start: start, Read: page.Read{At: changefeed.ReadPoint{Began: start.At.Began, LSN: m.replayed}}},
		source: from, node: n}
	m.flights = append(m.flights, f)
	return f
}

// look reads up to so many rows.
func (m *model) look(f *flight, limit int) {
	switch f.source {
	case stored:
		if len(m.statements) > 0 {
			of := pick(m.r, m.statements)
			f.Key, f.After, f.Rows, f.End, f.At, f.read = of.Key, of.After, of.Rows, of.End, of.At, true
		}
	case replicas:
		m.copy(f, pick(m.r, m.nodes), limit)
	default:
		m.statement(f, limit)
	}
}

// statement reads up to so many rows in the database.
func (m *model) statement(f *flight, limit int) {
	f.read = true
	var table []*list.Row
	if f.source == primary {
		f.At.StartedAt, f.At.Snapshot = m.run, m.snapshot()
		if m.r.IntN(100) == 0 {
			f.At.StartedAt = "another run"
		}
		table = m.seenBy(f.At.Snapshot)
	} else {
		f.At.Timeline, f.At.Through = "server", m.replayed
		table = m.shown(func(x *transaction) bool { return x.lsn <= m.replayed })
	}
	rows := m.listOf(&f.Key, table)
	for len(rows) > 0 && positionIn(&f.Key, rows[0]) <= f.After {
		rows = rows[1:]
	}
	f.End = len(rows) <= limit
	if !f.End {
		rows = rows[:limit]
	}
	for _, row := range rows {
		f.Rows = append(f.Rows, *row)
	}
	m.statements = append(m.statements[max(0, len(m.statements)-7):], f.Fill)
}

// copy takes the rows from what another node shows.
func (m *model) copy(f *flight, of *modelNode, limit int) {
	p, rows, ok := of.Read(nil, &f.Key, f.After, limit, 1<<20)
	if !ok || len(rows) == 0 {
		return
	}
	f.read, f.End, f.At = true, !p.More, of.Begin().At
	for _, row := range rows {
		f.Rows = append(f.Rows, *row)
	}
}

func (m *model) merge(f *flight) {
	m.flights = slices.DeleteFunc(m.flights, func(other *flight) bool { return other == f })
	m.outcomes[f.node.Merge(f.Fill)]++
}

// check returns what is wrong with a node.
func (m *model) check(n *modelNode) (err error) {
	table := m.seenBy(n.snapshot)
	for i := range m.keys {
		k := &m.keys[i]
		want := m.listOf(k, table)
		held := false
		n.Ranges(k, func(lo, hi list.Position, rows []*list.Row) {
			held = true
			inside := slices.DeleteFunc(slices.Clone(want), func(row *list.Row) bool {
				p := positionIn(k, row)
				return p < lo || p >= hi
			})
			if !slices.EqualFunc(inside, rows, func(a, b *list.Row) bool { return *b == *a }) {
				err = fmt.Errorf("%v from %q to %q: %s, want %s", *k, lo, hi, texts(rows), texts(inside))
			}
		})
		if err != nil {
			return err
		}
		if !held {
			continue
		}
		after := list.Position("")
		if len(want) > 0 && m.r.IntN(2) == 0 {
			after = positionIn(k, want[m.r.IntN(len(want))])
		}
		limit := 1 + m.r.IntN(4)
		if p, rows, ok := n.Read(nil, k, after, limit, 1<<20); ok {
			v := view{p, rows, after, limit}
			if err := v.check(want); err != nil {
				return fmt.Errorf("read: %w", err)
			}
			n.views = append(n.views, v)
		}
	}
	for _, v := range n.views {
		if v.List.Version() == v.Version {
			if err := v.check(m.listOf(&v.List.Key, table)); err != nil {
				return fmt.Errorf("a page at version %d: %w", v.Version, err)
			}
		}
	}
	n.views = n.views[max(0, len(n.views)-32):]
	return n.Consistent()
}

// check compares the page with its list.
func (v *view) check(want []*list.Row) error {
	for len(want) > 0 && positionIn(&v.List.Key, want[0]) <= v.after {
		want = want[1:]
	}
	more := len(want) > v.limit
	want = want[:min(len(want), v.limit)]
	if more != v.More || !slices.EqualFunc(want, v.rows, func(a, b *list.Row) bool { return *b == *a }) {
		return fmt.Errorf("%v after %q: %s, more %t, want %s, %t", v.List.Key, v.after, texts(v.rows), v.More, texts(want), more)
	}
	return nil
}

func positionIn(k *replica.Key, row *list.Row) list.Position {
	return k.Table.List.Position(row, k.Order)
}

func texts(rows []*list.Row) (all []string) {
	for _, row := range rows {
		all = append(all, fmt.Sprintf("%v", row))
	}
	return all
}
