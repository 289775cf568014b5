package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

// confirmAfter is how long a published entry may still be lost with Redis;
// until then the slot keeps what it was made of.
const confirmAfter = 3 * time.Second

// commit is a decoded transaction.
type commit struct {
	change   changefeed.Change
	start    pglogrepl.LSN // of its commit record: a slot confirmed beyond it never sends it again
	unlisted bool          // it also changed a relation that the catalog did not list
}

// touches says whether there is anything to publish.
func (c *commit) touches() bool { return len(c.change.Lists) > 0 || c.change.Whole != 0 }

// confirmation decides what the slot need not keep any more: what was
// published confirmAfter ago, short of every change that no snapshot has seen.
type confirmation struct {
	confirmed pglogrepl.LSN // what the slot has been told, or will be next
	safe      pglogrepl.LSN // published long enough ago
	marks     []mark        // published since; oldest first
	unsettled []commit      // in the order of their commit records
}

// mark remembers when everything up to an LSN had been published.
type mark struct {
	at  time.Time
	lsn pglogrepl.LSN
}

func (c *confirmation) publishing(done commit) { c.unsettled = append(c.unsettled, done) }

func (c *confirmation) publishedUpTo(lsn pglogrepl.LSN, at time.Time) {
	c.marks = append(c.marks, mark{at, lsn})
}

// settle drops what the snapshot sees and returns what it does not see yet.
func (c *confirmation) settle(snapshot *changefeed.Snapshot) (unsettled []changefeed.Change) {
	kept := c.unsettled[:0]
	for _, u := range c.unsettled {
		if !snapshot.Sees(u.change.XID) {
			kept = append(kept, u)
			unsettled = append(unsettled, u.change)
		}
	}
	clear(c.unsettled[len(kept):])
	c.unsettled = kept
	return unsettled
}

// upTo is what the slot may be told now.
func (c *confirmation) upTo(now time.Time) pglogrepl.LSN {
	for len(c.marks) > 0 && now.Sub(c.marks[0].at) > confirmAfter {
		c.safe = c.marks[0].lsn
		c.marks = c.marks[1:]
	}
	to := c.safe
	if len(c.unsettled) > 0 {
		to = min(to, c.unsettled[0].start)
	}
	c.confirmed = max(c.confirmed, to)
	return c.confirmed
}

// reply tells the walsender how far this node is, and may ask it the same.
func (t *term) reply(_ context.Context, ask bool) error {
	t.replied = time.Now()
	confirmed := t.confirmation.upTo(t.replied)
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), t.sender, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, confirmed), WALFlushPosition: confirmed, WALApplyPosition: confirmed, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}
