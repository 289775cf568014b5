package freshness

import (
	"math"
	"time"

	"listedge/internal/changefeed"
)

// ring has the changes of all lists, the oldest first, in a budget. A change that does
// not fit any more is dropped: entries that are older than it are not current any more.
//
// Invariant: bytes is the sum of the sizes of the changes from oldest to newest.
type ring struct {
	budget, bytes  int // bytes is what the changes occupy
	changes        int
	oldest, newest *change
}

// ringBudget, in bytes, is for about 130,000 changes of one row.
const ringBudget = 16 << 20

// change is what one committed transaction changed in one list.
type change struct {
	logPosition // its lsn is not below that of an earlier change of the list
	xid         uint64
	committedAt int64         // changefeed.Change.CommittedAt
	settledAt   time.Duration // every statement that begins at this moment or later sees it; notYet = it is not visible
	rowCount    uint32
	nameOrder   uint32
	rows        rows

	list *listVersion // that has it among its changes; nil = none any more
	next *change      // in the ring
}

const notYet = time.Duration(math.MaxInt64)

// changeSize is what a change occupies beside its rows, in bytes: the struct, the
// pointer of its list's slice, and what append and the allocator round up. See
// TestMemoryOfTheRing.
const changeSize = 128

func (c *change) size() int { return changeSize + len(c.rows) }

// add adds a change, and drops the oldest ones that do not fit any more.
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

// release takes the rows of a change that its list has dropped. Fills that may not
// have seen it are judged as if it had changed any row.
func (r *ring) release(c *change) {
	r.bytes -= len(c.rows)
	c.rows, c.list = "", nil
}

// Invalidation is why an entry is not current any more.
type Invalidation struct {
	Concern     Concern
	XID         uint64              // the transaction, 64 bits wide; 0 = it is not known
	Position    changefeed.Position // and its place in the log
	CommittedAt int64               // and its time, as in changefeed.Change
}

// invalidation names the change that concerns an entry; nil = it is not known.
func (c *change) invalidation(concern Concern) *Invalidation {
	i := &Invalidation{Concern: concern}
	if c != nil {
		i.XID, i.Position, i.CommittedAt = c.xid, c.position, c.committedAt
	}
	return i
}
