package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// confirmAfter is how long Redis may lose a published entry. Until then the slot
// retains the WAL that the entry was decoded from.
const confirmAfter = 3 * time.Second

// confirmation decides up to where the slot need not retain WAL: everything that
// was published confirmAfter ago, but no change that no snapshot has seen.
type confirmation struct {
	confirmed pglogrepl.LSN // sent to the slot, or to be sent next
	safe      pglogrepl.LSN // published confirmAfter ago
	marks     []mark        // published since, oldest first
}

// mark remembers when everything up to an LSN had been published.
type mark struct {
	at  time.Time
	lsn pglogrepl.LSN
}

// upTo is the LSN that the slot may be confirmed up to now.
func (c *confirmation) upTo(now time.Time, u unsettled) pglogrepl.LSN {
	for len(c.marks) > 0 && now.Sub(c.marks[0].at) > confirmAfter {
		c.safe = c.marks[0].lsn
		c.marks = c.marks[1:]
	}
	to := c.safe
	if len(u) > 0 {
		to = min(to, u[0].start)
	}
	c.confirmed = max(c.confirmed, to)
	return c.confirmed
}

// reply confirms to the walsender, and may ask it for a reply.
func (t *term) reply(ask bool) error {
	t.replied = time.Now()
	confirmed := t.confirmation.upTo(t.replied, t.unsettled)
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), t.sender, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, confirmed), WALFlushPosition: confirmed, WALApplyPosition: confirmed, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}
