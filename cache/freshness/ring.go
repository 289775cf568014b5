package freshness

import (
	"math"
	"time"

	"listedge/internal/changefeed"
)

// ring has the changes of all lists, the oldest first, in a budget. If a new change does
// not fit, the oldest changes are dropped. Entries that are older than a dropped change
// of their list are not current any more.
//
// Invariant: bytes is the sum of the sizes of the changes from oldest to newest.
type ring struct {
	budget, bytes  int
	changes        int
	oldest, newest *change
}

// ringBudget is the budget in bytes: about 110,000 changes of one row.
const ringBudget = 16 << 20

// change is what one committed transaction changed in one list.
type change struct {
	logPosition // its lsn is not below that of an earlier change of the list
	xid         uint64
	committedAt int64         // changefeed.Change.CommittedAt
	settledAt   time.Duration // every statement that begins at this moment or later sees it; notYet = it is not visible
	rowCount    uint32
	nameOrder   uint32
	rows        changefeed.Rows

	list *listVersion // the list whose changes include it; nil = the list has dropped it
	next *change      // the next newer change in the ring
}

const notYet = time.Duration(math.MaxInt64)

// changeSize is the memory of a change without its rows, in bytes: the struct, the
// pointer in its list's slice, and the rounding of append and the allocator. See
// TestMemoryOfTheRing.
const changeSize = 128

func (c *change) size() int { return changeSize + len(c.rows) }

// add adds a change, and drops the oldest changes until all fit into the budget.
func (r *ring) add(c *change) {
	if r.newest == nil {
		r.oldest = c
	} else {
		r.newest.next = c
	}
	r.newest = c
	r.bytes += c.size()
	r.changes++
	for r.bytes > r.budget && r.oldest != c {
		r.dropOldest()
	}
}

func (r *ring) dropOldest() {
	c := r.oldest
	if c.list != nil {
		c.list.dropOldest()
		r.release(c)
	}
	r.bytes -= c.size()
	r.changes--
	r.oldest, c.next = c.next, nil
}

// release frees the rows of a change that its list has dropped. For a fill that may not
// have seen the change, it counts as a change of any row.
func (r *ring) release(c *change) {
	r.bytes -= len(c.rows)
	c.rows, c.list = "", nil
}

// Invalidation is why an entry is not current any more.
type Invalidation struct {
	Concern     Concern
	XID         uint64              // the transaction's id, 64 bits wide; 0 = not known
	Position    changefeed.Position // the transaction's position in the log
	CommittedAt int64               // changefeed.Change.CommittedAt
}

// invalidation makes an Invalidation of the change that concerns an entry; nil = the
// change is not known.
func (c *change) invalidation(concern Concern) *Invalidation {
	i := &Invalidation{Concern: concern}
	if c != nil {
		i.XID, i.Position, i.CommittedAt = c.xid, c.position, c.committedAt
	}
	return i
}
