package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

const (
	// heartbeatEvery decides how old proofs get: a heartbeat proves what was
	// visible three of them ago, so that undisturbed a proof is never more than
	// four of them old, which is less than a third of the usual freshness bound.
	heartbeatEvery = 33 * time.Millisecond
	// askEvery is how often the walsender is asked how far it is while a
	// heartbeat waits for it.
	askEvery = 3 * time.Millisecond
	// flushAfter is how long a heartbeat waits before WAL is made to be flushed.
	flushAfter = 10 * time.Millisecond
)

// prepareHeartbeat notes the last entry that the log has acknowledged FIRST, and
// takes the snapshot then: what is visible when a node sees the log end before
// that entry, the snapshot sees. Where it sees another catalog, the heartbeat is
// sent behind the message that says so.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	after := t.acknowledged
	nonces := t.probes(ctx)
	v, err := t.primary.look(ctx, t.version)
	if err != nil {
		return err
	}
	snapshot, err := changefeed.ParseSnapshot(v.snapshot)
	if err != nil {
		return err
	}
	unseen := t.unlisted.look(snapshot)
	if v.catalog.version != t.version {
		for _, c := range unseen {
			c.change.Lists, c.change.Whole = nil, everything
			t.publishChange(c)
		}
		if v.at, err = t.announceSchemaChange(ctx, v.catalog); err != nil {
			return err
		}
	}
	t.pending, t.asked, t.flushed = &changefeed.Heartbeat{LSN: uint64(v.at), Snapshot: v.snapshot, Server: t.primary.system, Run: t.primary.started, Catalog: t.version, After: after, Nonces: nonces}, time.Now(), false
	t.lag.Store(uint64(max(v.at, t.decoded) - t.decoded))
	return nil
}

// probes reads the nonces of nodes of older versions, while there are any. Where
// that fails, publishing finds out whether the log is away.
func (t *term) probes(ctx context.Context) map[string]uint64 {
	log, ok := t.options.Log.(*changefeed.Redis)
	if !ok || !t.olderNodes {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nonces, err := log.Probes(ctx)
	t.olderNodes = err != nil || len(nonces) > 0
	return nonces
}

// flush has the primary flush its WAL, up to which alone the walsender sends.
// What is neither committed nor waited for (an open transaction's rows, the
// pruning of a page) may else lie unflushed for seconds. It also writes WAL,
// and so moves an insert position that lies behind a page's header, where no
// record ends, and which would else be awaited for ever.
func (t *term) flush(ctx context.Context) error {
	t.flushed = true
	var lsn string
	if err := t.primary.row(ctx, `SELECT pg_logical_emit_message(true, 'listedge flush', '')::text`)(&lsn); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// sendHeartbeat publishes the pending heartbeat, behind everything up to its LSN.
func (t *term) sendHeartbeat(ctx context.Context) error {
	h, waited := t.pending, time.Since(t.asked)
	t.pending = nil
	snapshot, err := changefeed.ParseSnapshot(h.Snapshot)
	if err != nil {
		return err
	}
	h.Unsettled = withoutManyLists(t.confirmation.settle(&snapshot))
	t.decoder.reference = snapshot.Xmax
	t.queue(changefeed.Entry{Heartbeat: h})
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.lagTime.Store(int64(waited))
	t.beat.Store(int64(time.Since(t.start)))
	t.confirmation.publishedUpTo(pglogrepl.LSN(h.LSN), time.Now())
	return nil
}

// withoutManyLists bounds what a heartbeat says of changes that are not visible
// yet: each heartbeat says it again, and only nodes that join need it. Above
// maxLists in all, a change touches whole collections instead: too much is safe.
func withoutManyLists(changes []changefeed.Change) []changefeed.Change {
	lists := 0
	for _, c := range changes {
		lists += len(c.Lists)
	}
	if lists <= maxLists {
		return changes
	}
	for i := range changes {
		c := &changes[i]
		for _, l := range c.Lists {
			c.Whole |= 1 << l.Collection
		}
		c.Lists = nil
	}
	return changes
}
