package follower

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

const (
	// callTimeout bounds each call to the log and to the primary.
	callTimeout = time.Second
	// publishTimeout is how long the log may fail before the term ends.
	publishTimeout = time.Second
	// heartbeatEvery is the period of heartbeats. A heartbeat proves what was visible
	// three periods ago. Until the next one comes, that proof gets four periods old:
	// less than a third of the default freshness bound.
	heartbeatEvery = 33 * time.Millisecond
	// pollPause is the pause between two tries of what takes milliseconds. While a
	// heartbeat waits for the walsender's position, it is the pause between requests
	// for that position, and before the follower makes the primary flush its WAL.
	pollPause = 3 * time.Millisecond
)

// Changes wait for the next heartbeat, and are appended with it in one step. The log has each
// entry once and in order: it refuses positions that are not above its last, and a term that
// cannot find out what it has appended ends. A new term decodes again what Redis has lost in a
// failover, because the slot keeps the WAL for confirmAfter.
const (
	// appendPause is the least time between the snapshots of two heartbeats. A commit is
	// published at once if none came just before it. Where they come faster, each append
	// costs the nodes and Redis as much as several changes do.
	appendPause = 4 * time.Millisecond
	// batchBytes bounds the changes that wait for the heartbeat that sees them.
	batchBytes = 1 << 20
	// retryFor is how long after it has decoded a commit the follower takes a snapshot every
	// appendPause, to find the commit visible. Most are at the first look. One that waits for
	// a standby is found by a later heartbeat.
	retryFor = 20 * time.Millisecond
)

// enqueue gives the entry the term's next position, and lets it wait for publish.
func (t *term) enqueue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: t.last.Term, N: t.last.N + uint64(len(t.waiting)) + 1}
	t.waiting = append(t.waiting, e)
	size := sizeOf(&e)
	t.waitingBytes += size
	t.bytes += size
}

// sizeOf returns what an entry takes in Redis, in bytes, or a little more.
func sizeOf(e *changefeed.Entry) (n int) {
	n = 350
	switch {
	case e.Heartbeat != nil:
		n += len(e.Heartbeat.Snapshot) + 60*len(e.Heartbeat.Unsettled)
	case e.Change != nil:
		n += 30 * len(e.Change.Lists)
		for _, l := range e.Change.Lists {
			for i := range l.Rows {
				n += rowSize + l.Rows[i].Size()
			}
		}
	}
	return n
}

// nextSnapshot returns when to take the next snapshot: at, or earlier if a change waits.
func (t *term) nextSnapshot(at time.Time) time.Time {
	wanted := len(t.waiting) > 0
	if n := len(t.unsettled); n > 0 {
		wanted = wanted || t.preparedAt.Sub(t.unsettled[n-1].decoded) < retryFor
	}
	if early := t.preparedAt.Add(appendPause); wanted && early.Before(at) {
		return early
	}
	return at
}

// unsettled are commits that no snapshot has seen yet, in the order of their records.
type unsettled []commit

// settle drops the commits that the snapshot sees.
func (u *unsettled) settle(snapshot changefeed.Snapshot) {
	*u = slices.DeleteFunc(*u, func(c commit) bool { return snapshot.Sees(c.change.XID) })
}

// prepareHeartbeat takes the snapshot of the next heartbeat. It reads the last
// acknowledged position of the log FIRST, as the heartbeat's After. So if a node saw
// the log end before After, the snapshot sees all that was visible at that moment.
// If the catalog has changed, the snapshot is taken again after the message about it: nodes
// apply the message, too, at the heartbeat that sees the change.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	after := t.acknowledged
	var v view
	var snapshot changefeed.Snapshot
	for {
		var err error
		if v, err = t.primary.readView(ctx, t.version); err != nil {
			return err
		}
		if snapshot, err = changefeed.ParseSnapshot(v.snapshot); err != nil {
			return err
		}
		t.unlisted.settle(snapshot)
		if v.version == t.version {
			break
		}
		for _, c := range t.unlisted { // each of them may touch anything
			c.change.Lists = allRows()
			t.publishChange(c)
		}
		if err = t.announceSchemaChange(ctx, v); err != nil {
			return err
		}
	}
	t.pending = &changefeed.Heartbeat{LSN: uint64(v.at), Snapshot: v.snapshot, Timeline: t.timeline, StartedAt: t.primary.server.StartedAt,
		Catalog: t.version, After: after}
	t.snapshot, t.preparedAt, t.flushed = snapshot, time.Now(), false
	t.update(func() { t.stats.Lag = uint64(max(v.at, t.decoded) - t.decoded) })
	return nil
}

// flush makes the primary flush its WAL, because the walsender sends only flushed
// WAL. Otherwise records that no commit waits for (of an open transaction, or of
// pruning) may stay unflushed for seconds. flush does so by writing a record. The
// record also helps if the insert position is just after a page header: no record
// ends there, so the walsender would never report that position.
func (t *term) flush(ctx context.Context) error {
	t.flushed = true
	if err := t.primary.row(ctx, `SELECT pg_logical_emit_message(true, 'listedge flush', '')`)(nil); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// sendHeartbeat publishes the pending heartbeat, in one append with the changes that have
// waited for it. All changes up to its LSN have been published or are published with it,
// before it.
func (t *term) sendHeartbeat(ctx context.Context) error {
	h, waited := t.pending, time.Since(t.preparedAt)
	t.pending = nil
	t.unsettled.settle(t.snapshot)
	for _, c := range t.unsettled {
		h.Unsettled = append(h.Unsettled, c.change)
	}
	t.decoder.reference = t.snapshot.Xmax
	t.enqueue(changefeed.Entry{Heartbeat: h})
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.update(func() { t.stats.LagTime, t.heartbeat = waited, time.Now() })
	t.remember(ctx, pglogrepl.LSN(h.LSN))
	return nil
}

// publish appends the waiting entries to the log, in order and in one step. After an error it
// reads the log's last position to learn whether they were appended.
//
// Entries of a second attempt are not acknowledged: no heartbeat's After names them.
// The first attempt may have appended them to a Redis that was replaced since, and
// nodes may have read them there earlier.
func (t *term) publish(ctx context.Context) error {
	end := t.waiting[len(t.waiting)-1].Position
	for deadline, again := time.Now().Add(publishTimeout), false; ; again = true {
		err := bounded(ctx, func(ctx context.Context) error { return t.options.Log.Append(ctx, t.epoch, t.waiting...) })
		if errors.Is(err, changefeed.ErrSuperseded) {
			return fmt.Errorf("publish: %w", err)
		}
		last := end
		if err != nil {
			var unknown error
			if last, unknown = call(ctx, func(ctx context.Context) (changefeed.Position, error) { return t.options.Log.Last(ctx, t.epoch) }); unknown != nil {
				last, err = changefeed.Position{}, errors.Join(err, unknown)
			}
		}
		switch {
		case last.Compare(end) > 0:
			return fmt.Errorf("publish: %w", changefeed.ErrFenced)
		case last == end:
			if t.appended(); err == nil && !again {
				t.acknowledged = end
			}
			return nil
		case ctx.Err() != nil || time.Now().After(deadline):
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
}

// appended removes the waiting entries: the log has them.
func (t *term) appended() {
	t.update(func() {
		for _, e := range t.waiting {
			if e.Change != nil {
				t.stats.Commits++
			}
		}
	})
	t.last = t.waiting[len(t.waiting)-1].Position
	clear(t.waiting) // frees the rows
	t.waiting, t.waitingBytes = t.waiting[:0], 0
}

// call bounds a call to the log by callTimeout.
func call[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// bounded bounds a call without a result by callTimeout.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

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
	lsn      pglogrepl.LSN       // every change before it was published
}

// history has milestones, oldest first. They say which WAL and entries need not be kept.
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
	for first > 0 && now.at.Sub(times[first].at) <= confirmAfter {
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
