package follower

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

const (
	// confirmAfter is how long after publishing an entry Redis may still lose it, in a
	// failover. For that long the slot retains the WAL that the entry was decoded from.
	confirmAfter = 3 * time.Second
	// logBytes bounds the log when many changes are written. A node that is further behind
	// resyncs.
	logBytes = 64 << 20
	// historyEvery and historyBytes bound what is published between two milestones.
	historyEvery = time.Second
	historyBytes = 8 << 20
)

// milestone is how far a term had published at a time.
type milestone struct {
	at       time.Time
	position changefeed.Position // of the last entry
	bytes    int                 // of all entries
	lsn      pglogrepl.LSN       // everything up to here was in them
}

// history has milestones, oldest first. It says what the slot and the log need not keep.
type history []milestone

// add adds a milestone unless the last one is recent.
func (h *history) add(m milestone) (added bool) {
	if n := len(*h); n > 0 && m.at.Sub((*h)[n-1].at) < historyEvery && m.bytes-(*h)[n-1].bytes < historyBytes {
		return false
	}
	*h = append(*h, m)
	return true
}

// trim returns the position before which entries can be removed from the log: they are older
// than kept, or about logBytes from the end. ok is false if there are none. It forgets the
// milestones before that, unless confirmable still needs them.
func (h *history) trim(kept time.Duration) (before changefeed.Position, ok bool) {
	times, first := *h, 0
	now := times[len(times)-1]
	for first+1 < len(times) && (now.at.Sub(times[first+1].at) > kept || now.bytes-times[first+1].bytes > logBytes-2*historyBytes) {
		first++
	}
	before, ok = times[first].position, first > 0
	for first > 0 && now.at.Sub(times[first].at) <= confirmAfter { // mutation: a flood takes the milestones that confirm
		first--
	}
	*h = times[first:]
	return before, ok
}

// confirmable returns up to which LSN the slot may release WAL. Everything before that LSN was
// published more than confirmAfter ago. And every change before it is visible to a snapshot:
// the WAL of an unsettled change is retained.
func (h history) confirmable(now time.Time, u unsettled) (to pglogrepl.LSN) {
	for _, m := range slices.Backward(h) {
		if now.Sub(m.at) > confirmAfter {
			to = m.lsn
			break
		}
	}
	if len(u) > 0 {
		to = min(to, u[0].start)
	}
	return to
}

// reply sends the walsender a status update with the confirmed LSN, which never moves back.
// With requestReply the walsender answers with its position.
func (t *term) reply(requestReply bool) error {
	t.replied = time.Now()
	t.confirmed = max(t.confirmed, t.history.confirmable(t.replied, t.unsettled))
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), t.sender, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, t.confirmed), WALFlushPosition: t.confirmed, WALApplyPosition: t.confirmed, ReplyRequested: requestReply,
	})
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}

// remember adds a milestone, and trims the log.
func (t *term) remember(ctx context.Context, lsn pglogrepl.LSN) {
	if !t.history.add(milestone{time.Now(), t.last, t.bytes, lsn}) {
		return
	}
	if before, ok := t.history.trim(t.options.LogKept); ok {
		_ = bounded(ctx, func(ctx context.Context) error { return t.options.Log.Trim(ctx, t.epoch, before) }) // after an error a later call trims
	}
}
