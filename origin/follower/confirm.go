package follower

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

// confirmAfter is how long Redis may lose a published entry. Until then the slot
// retains the WAL that the entry was decoded from.
const confirmAfter = 3 * time.Second

// commit is a decoded transaction.
type commit struct {
	change   changefeed.Change
	start    pglogrepl.LSN // of its commit record: a slot confirmed beyond it does not send it again
	unlisted bool          // it also changed a relation that the catalog did not list
}

// touches says whether there is anything to publish.
func (c *commit) touches() bool { return len(c.change.Lists) > 0 || c.change.Whole != 0 }

// confirmation decides up to where the slot need not retain WAL: everything that
// was published confirmAfter ago, but no change that no snapshot has seen.
type confirmation struct {
	confirmed pglogrepl.LSN // sent to the slot, or to be sent next
	safe      pglogrepl.LSN // published confirmAfter ago
	marks     []mark        // published since, oldest first
	unsettled []commit      // in the order of their commit records
}

// mark remembers when everything up to an LSN had been published.
type mark struct {
	at  time.Time
	lsn pglogrepl.LSN
}

// settle drops the changes that the snapshot sees and returns the others.
func (c *confirmation) settle(snapshot changefeed.Snapshot) (unsettled []changefeed.Change) {
	c.unsettled = slices.DeleteFunc(c.unsettled, func(u commit) bool { return snapshot.Sees(u.change.XID) })
	for _, u := range c.unsettled {
		unsettled = append(unsettled, u.change)
	}
	return unsettled
}

// upTo is the LSN that the slot may be confirmed up to now.
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

// reply confirms to the walsender, and may ask it for a reply.
func (t *term) reply(ask bool) error {
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
