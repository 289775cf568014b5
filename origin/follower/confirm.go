package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// confirmAfter is how long after publishing an entry Redis may still lose it, in a
// failover. For that long the slot retains the WAL that the entry was decoded from.
const confirmAfter = 3 * time.Second

// confirmation decides up to which LSN the slot may release WAL. Everything before
// that LSN was published more than confirmAfter ago. And every change before it is
// visible to a snapshot: the WAL of an unsettled change is retained.
type confirmation struct {
	confirmed pglogrepl.LSN // sent to the slot, or to be sent next
	safe      pglogrepl.LSN // everything up to here was published confirmAfter ago
	recent    []publishedTo // published since, oldest first
}

// publishedTo says that everything up to lsn had been published at that time.
type publishedTo struct {
	at  time.Time
	lsn pglogrepl.LSN
}

// advance returns the LSN that the slot may be confirmed up to now. It never moves
// back.
func (c *confirmation) advance(now time.Time, u unsettled) pglogrepl.LSN {
	for len(c.recent) > 0 && now.Sub(c.recent[0].at) > confirmAfter {
		c.safe = c.recent[0].lsn
		c.recent = c.recent[1:]
	}
	to := c.safe
	if len(u) > 0 {
		to = min(to, u[0].start)
	}
	c.confirmed = max(c.confirmed, to)
	return c.confirmed
}

// reply sends the walsender a status update with the confirmed LSN. With
// requestReply the walsender answers with its position.
func (t *term) reply(requestReply bool) error {
	t.replied = time.Now()
	confirmed := t.confirmation.advance(t.replied, t.unsettled)
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), t.sender, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, confirmed), WALFlushPosition: confirmed, WALApplyPosition: confirmed, ReplyRequested: requestReply,
	})
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}
