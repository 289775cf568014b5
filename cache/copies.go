package cache

import (
	"time"

	"listedge/internal/page"
)

// Copy is a page as Redis has it. Simulated fleets (internal/world) hand copies from node to node without a Redis.
type Copy struct {
	page.Read
	Epoch string        // of the log
	Age   time.Duration // since the page was known to equal the database
}

// CopyOf makes a copy of what a statement has just read: as of the node's present state, so not later than the answer.
func (c *Cache) CopyOf(read page.Read) Copy {
	start := c.replica.Begin()
	read.At.Began = start.At.Began
	return Copy{Read: read, Epoch: start.Epoch}
}

// Shown is what storeState stores of a page; false = it stores nothing.
func (c *Cache) Shown(q *page.Query) (of Copy, ok bool) {
	key, at := listOf(q), c.replica.Begin().At
	cut, rows, whole := c.replica.Read(nil, &key, q.After, q.Limit+1, page.MaxBytes)
	if !whole && len(rows) <= q.Limit || c.Mode() != ModeFollowed {
		return of, false
	}
	of = Copy{Read: page.Read{End: whole && !cut.More, At: at}, Epoch: c.followed.known.Load().epoch, Age: c.ProofAge()}
	for _, row := range rows {
		of.Rows = append(of.Rows, *row)
	}
	return of, true
}

// Take takes a copy as a page that Redis has.
func (c *Cache) Take(q *page.Query, of Copy) {
	now := c.clock.Now()
	l := newLookup(c, q, nil)
	e := l.merged(c.replica.Begin(), &reading{Read: of.Read, epoch: of.Epoch, readAt: now - of.Age}, now)
	if c.judge(e, now) == fresh {
		c.memory.put(e, c.remaining(e))
	}
}
