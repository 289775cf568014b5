// Package replica holds rows of the database in the memory of a node: ranges of lists, which
// heartbeats keep equal to what the database shows. It has no I/O, no clock and no
// goroutine.
//
//	table  the rows of one collection in one workspace
//	list   those of them that match a filter and a search, in an order
//	range  a part of a list, between two positions, of which the node has every row
//	state  the snapshot of the last heartbeat that was applied
//
// Invariant. The rows of each range are those, and in the versions, that a statement with
// the snapshot of the state returns for that part of the list.
//
//	heartbeat ──► Apply: the changes that it sees and the one before does not
//	statement, or copy in Redis ──► Begin … Merge: a range, once the state shows all that it shows
//	request ──► Read: a page is cut from the ranges
//
// What is not known (a text that the log does not carry, or whether a row belongs to a
// searched list) is in no range: a page that needs it is read from the database. The log says
// that a change left a long value as it was, without the value: the version directly before
// the change has it, if that is held.
//
// Why each row has the right version although transactions become visible in another
// order than the log has them: only the order of the changes of one row matters. Let c and
// d change it, and d come later. d waited for c's lock on the row, or on its key in the
// unique index. c releases it only when all snapshots see c. So each snapshot that sees d
// sees c.
package replica

import (
	"sync"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// Budgets bound what a replica holds.
type Budgets struct {
	Rows    int // bytes of rows and ranges
	Changes int // bytes of changes that are remembered for Merge
	Parked  int // bytes of fills that wait for a heartbeat
	Lists   int // of one table

	Released int // bytes of rows that were let go, but that callers may hold, before Apply says so
}

// Replica is the rows of one node. Its methods may be called concurrently.
//
// Invariants, besides that of the package:
//   - a row is in the map of its table if and only if a range shows it, and all ranges
//     that show it show this version;
//   - history has every change that the state sees, and that a statement at its floor or
//     later may not see.
type Replica struct {
	budget  Budgets
	longest int // the most rows of a range: one with more is cut in two

	mu      sync.RWMutex // held for writing some microseconds a heartbeat
	resets  uint64
	synced  bool // a heartbeat was applied since the last Reset
	state   state
	tables  map[changefeed.List]*table
	history history
	clock   clock
	counts  Counts

	parked      []*Fill // that wait for a heartbeat, the oldest first
	parkedBytes int
	released    int // bytes of rows since Apply last said so
}

// state is what is known of the last heartbeat.
type state struct {
	position  changefeed.Position
	snapshot  changefeed.Snapshot
	end       uint64 // LSN of the heartbeat: each commit whose record lies before it is published
	lsn       uint64 // end of the heartbeat before: it was read before this snapshot was taken
	unsettled uint64 // the lowest LSN of a change that is published and not seen; 0 = there is none
	timeline  string
	startedAt string
}

// table has the rows that its lists show.
type table struct {
	of    changefeed.List
	rows  map[uuid.UUID]held
	lists map[Key]*List
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
}

// New makes a replica that has no state.
func New(budget Budgets) *Replica {
	r := &Replica{budget: budget, longest: 256}
	r.Reset()
	return r
}

// Reset forgets everything: changes may have been missed.
func (r *Replica) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tables {
		for _, l := range t.lists {
			l.version.Add(1)
		}
	}
	for _, f := range r.parked {
		r.unpark(f, Resynced)
	}
	r.resets++
	r.synced, r.state = false, state{}
	r.tables, r.clock, r.parked = map[changefeed.List]*table{}, clock{}, nil // unpark has made parkedBytes 0
	r.history = history{of: map[changefeed.List][]*remembered{}}
}

// Apply moves the state to a heartbeat. The first one after a Reset makes the first state:
// all that came before it is not known. released = the budget of released rows is used up, and
// counted from zero again.
func (r *Replica) Apply(b *changefeed.Beat) (released bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		r.synced = true
		r.history.floor = point{b.At, b.LSN}
	} else {
		for _, c := range b.Settled {
			r.settle(c, point{b.At, c.LSN})
		}
	}
	r.state = state{position: b.At, snapshot: b.Snapshot, lsn: r.state.end, end: b.LSN, timeline: b.Timeline, startedAt: b.StartedAt}
	for _, c := range b.Unsettled {
		if r.state.unsettled == 0 || c.LSN < r.state.unsettled {
			r.state.unsettled = c.LSN
		}
	}
	r.history.trim(r.budget.Changes)
	r.retry()
	r.evict()
	if released = r.released > r.budget.Released; released {
		r.released = 0
	}
	return released
}

// settle applies a change that the database shows from now on.
func (r *Replica) settle(c *changefeed.Change, at point) {
	for i, of := range c.Lists {
		if of.Collection == lists.Keys {
			continue
		}
		rows := c.RowsOf(i)
		r.history.add(&remembered{point: at, xid: c.XID, table: of, rows: rows})
		switch t := r.tables[of]; {
		case t == nil:
		case rows == nil:
			r.forget(t)
		default:
			for i := range rows {
				r.change(t, &rows[i])
			}
		}
	}
	for _, collection := range lists.All {
		if c.Touches(collection) {
			r.history.add(&remembered{point: at, xid: c.XID, table: changefeed.List{Collection: collection}})
			for of, t := range r.tables {
				if of.Collection == collection {
					r.forget(t)
				}
			}
		}
	}
}

// forget gives up a table: any of its rows may have changed.
func (r *Replica) forget(t *table) {
	r.counts.Forgotten++
	for _, l := range t.lists {
		r.drop(l)
	}
}

func (r *Replica) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Stats{Counts: r.counts, Tables: len(r.tables), Ranges: len(r.clock.ranges), Bytes: r.clock.bytes,
		Changes: len(r.history.queue), ChangeBytes: r.history.bytes, Parked: len(r.parked)}
	for _, t := range r.tables {
		s.Lists += len(t.lists)
		s.Rows += len(t.rows)
	}
	return s
}

// point is when a change was settled: the heartbeat that showed it, and the change's own LSN.
type point struct {
	at  changefeed.Position
	lsn uint64
}

// remembered is a settled change of one table, kept for fills that do not show it.
type remembered struct {
	point
	xid   uint64
	table changefeed.List // without a workspace: the whole collection
	rows  []lists.Row     // nil = any row may have changed
}

// rememberedBytes and changedBytes are the bytes of a change and of each of its rows, without
// their texts.
const rememberedBytes, changedBytes = 144, 64

func (c *remembered) bytes() int {
	n := rememberedBytes
	for i := range c.rows {
		n += changedBytes + c.rows[i].Size()
	}
	return n
}

// history has the changes that were settled last, in this order.
//
// Invariant: a change that was settled, and that it does not have, was settled by the
// floor's heartbeat or before, and its LSN is not above the floor's.
type history struct {
	queue []*remembered
	of    map[changefeed.List][]*remembered
	bytes int
	floor point
}

func (h *history) add(c *remembered) {
	h.queue = append(h.queue, c)
	h.of[c.table] = append(h.of[c.table], c)
	h.bytes += c.bytes()
}

// trim forgets the oldest changes.
func (h *history) trim(budget int) {
	for h.bytes > budget {
		c := h.queue[0]
		h.queue[0], h.queue = nil, h.queue[1:]
		h.floor = point{c.at, max(h.floor.lsn, c.lsn)}
		h.bytes -= c.bytes()
		if of := h.of[c.table]; len(of) > 1 {
			of[0], h.of[c.table] = nil, of[1:]
		} else {
			delete(h.of, c.table)
		}
	}
}
