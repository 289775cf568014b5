package follower

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
)

const (
	// upkeepEvery is how often a term checks its prerequisites.
	upkeepEvery = time.Second
	// replyEvery is the longest time between two replies to Postgres, far below senderTimeout.
	replyEvery = 100 * time.Millisecond
)

// term is the state of a follower while it holds the slot: it publishes commits and heartbeats.
//
// Invariant: a heartbeat comes after all changes up to its LSN, which was read after its
// snapshot was taken. So the log has every change before a heartbeat that sees it.
type term struct {
	*Follower
	primary  *primary
	sender   *pgconn.PgConn // the replication connection
	decoder  decoder
	epoch    string
	timeline string // of the primary: its system and timeline
	version  string // of the catalog that changes are decoded with

	last         changefeed.Position // of the newest published entry
	acknowledged changefeed.Position // of the newest entry that the log acknowledged at the first attempt; zero = none
	waiting      []changefeed.Entry  // to be published after it
	waitingBytes int
	bytes        int // of entries that this term has published, or that wait

	decoded    pglogrepl.LSN // everything up to here has been received
	confirmed  pglogrepl.LSN // Postgres may release the WAL up to here
	unsettled  unsettled     // published, and no heartbeat's snapshot has seen them
	unlisted   unsettled     // they changed a relation that the catalog did not list, and no view's snapshot has seen them
	history    history
	pending    *changefeed.Heartbeat // the next heartbeat, until its LSN has been decoded; nil = none
	snapshot   changefeed.Snapshot   // the one of pending
	preparedAt time.Time             // when pending was prepared
	flushed    bool                  // WAL was flushed for pending
	replied    time.Time             // when Postgres was last sent a reply
}

// errPublicationChanged: some commits from before the change of the publication may
// still be invisible, and this slot would not publish them. Only the making of a new
// slot waits until they are visible.
var errPublicationChanged = errors.New("the publication was changed")

// begin publishes the start of the term. The term continues the present epoch if it is
// certain that no change is missing between the epoch's last entry and the next change
// of the slot. Otherwise it begins a new epoch. fresh says that the slot was just made.
func (t *term) begin(ctx context.Context, present string, fresh bool) error {
	err := t.primary.row(ctx, `SELECT pg_current_xact_id()::text::int8, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`,
		t.primary.slotName)(&t.decoder.reference, &t.confirmed)
	if err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	t.timeline = t.primary.server.TimelineName()
	next := fleet.EpochName{Identity: t.primary.server.Digest(), Timeline: t.primary.server.Timeline,
		Instance:  fleet.Digest(t.timeline + " " + t.primary.checkpointerStart),
		Published: fleet.Digest(t.primary.published), Random: rand.Text()[:8]}
	t.epoch = present
	var previous changefeed.Position
	continues := false
	switch is, ok := fleet.ParseEpoch(present); {
	case !ok || is.Identity != next.Identity: // of another database, or none
	case next.Timeline < is.Timeline:
		return &fleet.TimelineError{Server: next.Timeline, Fleet: is.Timeline}
	case is.Instance != next.Instance:
	case is.Published == next.Published:
		if previous, continues, err = t.continues(ctx); err != nil {
			return err
		}
	case !fresh:
		return errPublicationChanged
	}
	if !continues {
		t.epoch, previous = next.String(), changefeed.Position{}
	}
	t.last = changefeed.Position{Term: t.decoder.reference}
	t.enqueue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.remember(ctx, t.confirmed)
	return t.setEpoch(ctx, present)
}

// continues says whether the log of the present epoch reaches up to the LSN that
// the slot was confirmed to, so that the slot's next changes follow without a gap.
// It does not if the slot is new, if somebody advanced the slot, if the log lost its last
// entries, or if the last term ended before its first heartbeat.
func (t *term) continues(ctx context.Context) (last changefeed.Position, yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if last, err = t.options.Log.Last(ctx, t.epoch); err != nil {
		return last, false, err
	}
	reader, _, err := t.options.Log.Reader(ctx)
	if err != nil {
		return last, false, err
	}
	defer reader.Close()
	const batch = 200 // the last entries suffice
	entries, _, err := reader.Read(ctx, t.epoch, changefeed.Position{Term: last.Term, N: last.N - min(last.N, batch)}, time.Millisecond)
	if err != nil {
		return last, false, err
	}
	var newest pglogrepl.LSN
	var version string
	for _, e := range entries {
		switch {
		case e.Heartbeat != nil:
			newest, version = max(newest, pglogrepl.LSN(e.Heartbeat.LSN)), e.Heartbeat.Catalog
		case e.Change != nil:
			newest = max(newest, pglogrepl.LSN(e.Change.LSN))
		}
	}
	if newest == 0 {
		return last, false, nil
	}
	if version != t.version { // makes the first heartbeat announce a change of the schema
		t.version = ""
	}
	return last, t.confirmed <= newest, nil
}

// setEpoch names the term's epoch in the log. It fails unless the log still names the
// epoch from, which was read before the slot was taken, or names none because Redis
// has lost it. A stalled follower that another one has replaced finds another epoch
// there and fails, at whatever line it stalled.
func (t *term) setEpoch(ctx context.Context, from string) error {
	return bounded(ctx, func(ctx context.Context) error { return t.options.Log.SetEpoch(ctx, from, t.epoch) })
}

// loop receives and publishes changes and heartbeats until something fails.
func (t *term) loop(ctx context.Context) error {
	now := time.Now()
	heartbeat, ask, upkeep := now, now, now.Add(upkeepEvery)
	t.replied = now
	for ctx.Err() == nil {
		now = time.Now()
		if t.waitingBytes >= batchBytes {
			if err := t.publish(ctx); err != nil {
				return err
			}
		}
		if t.pending == nil && !now.Before(t.nextSnapshot(heartbeat)) {
			heartbeat, ask = now.Add(t.period), now
			if err := t.prepareHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && t.decoded >= pglogrepl.LSN(t.pending.LSN) {
			if err := t.sendHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !t.flushed && now.Sub(t.preparedAt) > pollPause {
			if err := t.flush(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !now.Before(ask) || now.Sub(t.replied) >= replyEvery {
			ask = now.Add(pollPause)
			if err := t.reply(t.pending != nil); err != nil {
				return err
			}
		}
		if !now.Before(upkeep) {
			upkeep = now.Add(upkeepEvery)
			if err := t.upkeep(ctx); err != nil {
				return err
			}
		}
		wake := t.nextSnapshot(heartbeat)
		if t.pending != nil {
			wake = ask
		}
		if err := t.receive(ctx, wake); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// receive handles one message, or none until wake.
func (t *term) receive(ctx context.Context, wake time.Time) error {
	// A read deadline costs half as much for each row as a context with a deadline
	// would. The end of ctx is noticed at wake.
	err := t.sender.Conn().SetReadDeadline(wake)
	var message pgproto3.BackendMessage
	if err == nil {
		message, err = t.sender.ReceiveMessage(context.Background())
	}
	if err != nil {
		if pgconn.Timeout(err) && ctx.Err() == nil {
			return nil
		}
		return fmt.Errorf("receive: %w", err)
	}
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("receive: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete:
		return errors.New("receive: the server ends the stream")
	case *pgproto3.CopyData:
		return t.handle(ctx, m.Data)
	}
	return nil
}

func (t *term) handle(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("receive: an empty message")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		t.decoded = max(t.decoded, k.ServerWALEnd)
		if k.ReplyRequested {
			return t.reply(false)
		}
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		done, err := t.decoder.next(x.WALData)
		if err != nil || done == nil {
			return err
		}
		if done.unlisted && !t.snapshot.Sees(done.change.XID) { // else a term that catches up would keep all of them until its next view
			t.unlisted = append(t.unlisted, *done)
		}
		if c := &done.change; len(c.Lists) > 0 {
			t.publishChange(*done)
		}
		t.decoded = max(t.decoded, pglogrepl.LSN(done.change.LSN))
	}
	return nil
}

// publishChange publishes a commit. While the commit is unsettled, each heartbeat repeats it,
// and says only which collections it touches: only nodes that have just joined read that, and
// heartbeats stay small. To invalidate too much is safe.
func (t *term) publishChange(c commit) {
	published := c.change
	t.enqueue(changefeed.Entry{Change: &published})
	c.change, c.decoded = c.change.Unnamed(), time.Now()
	t.unsettled = append(t.unsettled, c)
}

// checkPrerequisites says whether the term may go on: the prerequisites hold, for
// the same run of the server and the same publication.
func (t *term) checkPrerequisites(ctx context.Context) error {
	checkpointer, published := t.primary.checkpointerStart, t.primary.published
	if err := t.primary.checkPrerequisites(ctx); err != nil {
		return err
	}
	if t.primary.checkpointerStart != checkpointer || t.primary.published != published {
		return errors.New("the server was restarted, or the publication changed")
	}
	t.nameRows()
	return nil
}

// nameRows makes changes name their rows, for the collections whose publication permits
// it. It runs once a second, so a dropped index is noticed up to a second late.
// Meanwhile a transaction could change two rows of the same id.
func (t *term) nameRows() {
	unnamed := t.primary.publication.rowsUnnamed()
	if reason, remedy := t.primary.publication.RowsUnnamed(); reason != "" && unnamed != t.decoder.rowsUnnamed {
		t.options.Logger.Warn("the publication "+reason, "do", remedy)
	}
	t.decoder.rowsUnnamed = unnamed
}

// upkeep is what a term does every upkeepEvery.
func (t *term) upkeep(ctx context.Context) error {
	if err := t.checkPrerequisites(ctx); err != nil {
		return err
	}
	s, err := t.primary.slot(ctx)
	if err != nil {
		return err
	}
	t.update(func() { t.stats.Retained = s.retained })
	if err := t.setEpoch(ctx, ""); errors.Is(err, changefeed.ErrSuperseded) {
		return err
	}
	return nil
}
