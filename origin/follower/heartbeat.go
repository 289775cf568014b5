package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

const (
	// heartbeatEvery bounds, with the time of a round trip, how fresh a page
	// can be proven to be.
	heartbeatEvery = 50 * time.Millisecond
	// afterProbe is how long after a probe of its own node a follower beats.
	afterProbe = time.Millisecond
	// askEvery is how often the walsender is asked how far it is while a
	// heartbeat waits for it.
	askEvery = 3 * time.Millisecond
	// flushAfter is how long a heartbeat waits before WAL is made to be flushed.
	flushAfter = 10 * time.Millisecond
)

// nextBeat is when to beat again: heartbeatEvery from now, or as near to that as
// comes right after a probe of this node, which probes as often. The process
// wakes once for both then, and what is proven is a moment old.
func nextBeat(now, probed time.Time) time.Time {
	since := now.Sub(probed.Add(afterProbe))
	if since < 0 || since > 2*heartbeatEvery { // it has not begun, or does not go on
		return now.Add(heartbeatEvery)
	}
	return now.Add((since + heartbeatEvery/2).Truncate(heartbeatEvery) + heartbeatEvery - since)
}

// prepareHeartbeat reads the probes FIRST and then the snapshot: what it proves
// is that everything visible when a nonce was chosen has been published. Where
// the snapshot sees another catalog, it is sent behind the message that says so.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	nonces, err := t.probes(ctx)
	if err != nil {
		if time.Since(t.logAnswered) < logPatience {
			return nil
		}
		return err
	}
	t.logAnswered = time.Now()
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
	t.pending, t.asked, t.flushed = &changefeed.Heartbeat{LSN: uint64(v.at), Snapshot: v.snapshot, Server: t.primary.system, Run: t.primary.started, Catalog: t.version, Nonces: nonces}, time.Now(), false
	t.lag.Store(uint64(max(v.at, t.decoded) - t.decoded))
	return nil
}

func (t *term) probes(ctx context.Context) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Probes(ctx)
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
	h.Unsettled = t.confirmation.settle(&snapshot)
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
