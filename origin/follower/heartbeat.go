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
	// heartbeatEvery is the period of heartbeats. A heartbeat proves what was visible
	// three periods ago. Until the next one comes, that proof gets four periods old:
	// less than a third of the default freshness bound.
	heartbeatEvery = 33 * time.Millisecond
	// pollPause is the pause between two tries of what takes milliseconds. While a
	// heartbeat waits for the walsender's position, it is the pause between requests
	// for that position, and before the follower makes the primary flush its WAL.
	pollPause = 3 * time.Millisecond
)

// prepareHeartbeat takes the snapshot of the next heartbeat. It reads the last
// acknowledged position of the log FIRST, as the heartbeat's After. So if a node saw
// the log end before After, the snapshot sees all that was visible at that moment.
// If the catalog has changed, the snapshot is taken again after the message about it: nodes
// apply the message, too, at the heartbeat that sees the change.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	after := t.acknowledged
	var v view
	var snapshot changefeed.Snapshot
	for { // mutation: the snapshot is not taken again after the message
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
			c.change.Lists, c.change.Whole, c.change.Rows = nil, allCollections, nil
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
	t.unsettled.settle(t.snapshot) // mutation: After noted when the heartbeat is sent
	for _, c := range t.unsettled {
		h.Unsettled = append(h.Unsettled, c.change)
	}
	t.decoder.reference = t.snapshot.Xmax
	t.enqueue(changefeed.Entry{Heartbeat: h}) // mutation: After is the heartbeat's own position
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.update(func() { t.stats.LagTime, t.heartbeat = waited, time.Now() })
	t.remember(ctx, pglogrepl.LSN(h.LSN))
	return nil
}

// unsettled are commits that no snapshot has seen yet, in the order of their records.
type unsettled []commit

// settle drops the commits that the snapshot sees.
func (u *unsettled) settle(snapshot changefeed.Snapshot) {
	*u = slices.DeleteFunc(*u, func(c commit) bool { return snapshot.Sees(c.change.XID) })
}
