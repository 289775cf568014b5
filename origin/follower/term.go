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
)

const (
	// upkeepEvery is how often a term looks whether its ground still holds.
	upkeepEvery = time.Second
	// replyEvery is how often Postgres hears of this node at least, which is
	// also how other nodes know that it lives.
	replyEvery = 100 * time.Millisecond
)

// term is one take-over: what a follower knows from taking the slot to losing it.
type term struct {
	*Follower
	primary *primary
	sender  *pgconn.PgConn // the replication connection
	decoder decoder
	epoch   string
	version string // of the catalog that changes are decoded by

	unlisted unlisted

	last         changefeed.Position // of the newest entry published
	acknowledged changefeed.Position // of the newest entry that the log acknowledged at the first attempt; never zero
	waiting      []changefeed.Entry  // to be published behind it
	waitingSince time.Time           // the first of them

	decoded      pglogrepl.LSN // everything up to here has been received
	confirmation confirmation
	kept         retention
	pending      *changefeed.Heartbeat // waits until decoded that far
	asked        time.Time             // when pending was prepared
	flushed      bool                  // WAL was made to be flushed for pending
	replied      time.Time             // when Postgres last heard of this node
	olderNodes   bool                  // nodes of an older version may probe
}

func newTerm(f *Follower, p *primary) *term {
	return &term{Follower: f, primary: p, decoder: newDecoder(), acknowledged: changefeed.NeverAfter}
}

// errRepublished: what was committed before the publication was changed may
// not have been told, and not be visible yet. Only a new slot awaits that.
var errRepublished = errors.New("the publication was changed")

// take begins a term: in the present epoch if nothing can have been missed in
// it, else in a new one. The slot is fresh if it was just made.
func (t *term) take(ctx context.Context, present string, fresh bool) error {
	var xid, confirmed string
	err := t.primary.row(ctx, `SELECT pg_current_xact_id()::text, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`,
		t.primary.slotName)(&xid, &confirmed)
	if err == nil {
		_, err = fmt.Sscan(xid, &t.decoder.reference)
	}
	if err == nil {
		t.confirmation.confirmed, err = pglogrepl.ParseLSN(confirmed)
	}
	if err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	next := changefeed.EpochName{Identity: t.primary.identity.Digest(), Timeline: t.primary.timeline,
		Run: changefeed.Digest(t.primary.system + " " + t.primary.run), Published: changefeed.Digest(t.primary.published), Random: rand.Text()[:8]}
	if err := changefeed.CheckTimeline(present, next.String()); err != nil {
		return err
	}
	t.epoch = present
	var previous changefeed.Position
	goesOn := false
	switch is, ok := changefeed.ParseEpoch(present); {
	case !ok || is.Identity != next.Identity || is.Run != next.Run:
	case is.Published == next.Published:
		if previous, goesOn, err = t.continues(ctx); err != nil {
			return err
		}
	case !fresh:
		return errRepublished
	}
	if !goesOn {
		t.epoch, previous = next.String(), changefeed.Position{}
	}
	t.last = changefeed.Position{Term: t.decoder.reference}
	t.queue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.kept.add(time.Now(), t.last)
	return t.nameEpoch(ctx, present)
}

// continues says whether the log of the present epoch reaches as far as the
// slot was confirmed, so that what the slot still sends follows it without a
// hole. It does not when the slot was made anew or advanced by another hand,
// or when the log lost its end.
func (t *term) continues(ctx context.Context) (last changefeed.Position, yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if last, err = t.options.Log.Last(ctx, t.epoch); err != nil {
		return last, false, err
	}
	reader, err := t.options.Log.Reader(ctx)
	if err != nil {
		return last, false, err
	}
	defer reader.Close()
	const atOnce, terms = 200, 20 // the last entries tell; a few terms may have published nothing but their take
	for at, n := last, 0; n < terms && at != (changefeed.Position{}); n++ {
		from := changefeed.Position{Term: at.Term, N: at.N - min(at.N, atOnce)}
		entries, _, err := reader.Read(ctx, t.epoch, from, time.Millisecond)
		if err != nil {
			return last, false, err
		}
		at = changefeed.Position{}
		var newest pglogrepl.LSN
		var version string
		for _, e := range entries {
			switch {
			case e.Heartbeat != nil:
				newest, version = max(newest, pglogrepl.LSN(e.Heartbeat.LSN)), e.Heartbeat.Catalog
			case e.Change != nil:
				newest = max(newest, pglogrepl.LSN(e.Change.LSN))
			case e.TermStart != nil && at == (changefeed.Position{}):
				at = e.TermStart.Previous
			}
		}
		if newest != 0 {
			if version != t.version { // the catalog was changed since, or pages go by an older one
				t.version = ""
			}
			return last, t.confirmation.confirmed <= newest, nil
		}
	}
	return last, false, nil
}

func (t *term) logEpoch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Epoch(ctx)
}

// nameEpoch lets the term's epoch follow the one that was present before the
// slot was taken, or none, should the log have lost it since. A follower that
// was overtaken, wherever it was stopped, finds another one and calls no node
// back: whoever overtook it read the present epoch later.
func (t *term) nameEpoch(ctx context.Context, from string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.SetEpoch(ctx, from, t.epoch)
}

// loop receives, publishes and beats until something fails.
func (t *term) loop(ctx context.Context) error {
	now := time.Now()
	beat, ask, upkeep := now, now, now.Add(upkeepEvery)
	t.replied, t.olderNodes = now, true
	for ctx.Err() == nil {
		now = time.Now()
		if t.due(now) {
			if err := t.publish(ctx); err != nil {
				return err
			}
		}
		if t.pending == nil && !now.Before(beat) {
			beat, ask = now.Add(t.period), now
			if err := t.prepareHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && t.decoded >= pglogrepl.LSN(t.pending.LSN) {
			if err := t.sendHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !t.flushed && now.Sub(t.asked) > flushAfter {
			if err := t.flush(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !now.Before(ask) || now.Sub(t.replied) >= replyEvery {
			ask = now.Add(askEvery)
			if err := t.reply(ctx, t.pending != nil); err != nil {
				return err
			}
		}
		if !now.Before(upkeep) {
			upkeep = now.Add(upkeepEvery)
			if err := t.upkeep(ctx); err != nil {
				return err
			}
		}
		wake := beat
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
	// A context with a deadline costs as much as a row, of which a transaction
	// may have many: that ctx has ended is noticed at wake.
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
			return t.reply(ctx, false)
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
		t.unlisted.add(*done)
		if done.touches() {
			t.publishChange(*done)
		}
		t.decoded = max(t.decoded, pglogrepl.LSN(done.change.LSN))
	}
	return nil
}

func (t *term) publishChange(c commit) {
	t.confirmation.publishing(c)
	t.queue(changefeed.Entry{Change: &c.change})
}

// checkGround looks whether the ground of the term still holds.
func (t *term) checkGround(ctx context.Context) error {
	run, published := t.primary.run, t.primary.published
	if err := t.primary.checkPrerequisites(ctx); err != nil {
		return err
	}
	if t.primary.run != run || t.primary.published != published {
		return errors.New("the server was restarted, or the publication changed")
	}
	return nil
}

// upkeep does, every now and then, what a term needs to go on.
func (t *term) upkeep(ctx context.Context) error {
	if err := t.checkGround(ctx); err != nil {
		return err
	}
	s, err := t.primary.slot(ctx)
	if err != nil {
		return err
	}
	t.retained.Store(s.retained)
	t.olderNodes = true
	if err := t.nameEpoch(ctx, ""); errors.Is(err, changefeed.ErrSuperseded) || errors.As(err, new(*changefeed.TimelineError)) {
		return err
	}
	if before, ok := t.kept.trim(time.Now(), t.options.LogKept, t.last); ok {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_ = t.options.Log.Trim(ctx, t.epoch, before) // the next time, if not now
	}
	return nil
}
