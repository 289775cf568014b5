// Package follower reads what Postgres commits, through a logical replication
// slot, and writes it to the log that all nodes read. Whoever holds the slot
// is the follower: only one can, so holding it is the election.
//
//	walsender ── pgoutput ──► decoder ── change ──────┐
//	                                                  ├─ one order ──► log
//	every 50 ms: probes, then LSN and snapshot,       │
//	             when decoded that far ── heartbeat ──┘
//
// Why heartbeats: a commit is sent when its WAL is flushed, before new
// snapshots see it. A change is therefore unsettled until a snapshot taken on
// the primary sees it, and the heartbeat that carries the snapshot proves that
// everything visible when it was taken has been published before it.
package follower

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"listedge/stream"
)

// PublicationName is what `migrate up` makes in the database.
const PublicationName = "listedge"

// slotPrefix begins a slot's name; the database's oid ends it, because slots
// belong to a database but share one space of names with those of all others.
const slotPrefix = "listedge_"

const (
	// heartbeatEvery bounds, with the time of a round trip, how fresh a page
	// can be proven to be.
	heartbeatEvery = 50 * time.Millisecond
	// askEvery is how often the walsender is asked how far it is while a
	// heartbeat waits for it.
	askEvery = 3 * time.Millisecond
	// flushAfter is how long a heartbeat waits before WAL is made to be flushed.
	flushAfter = 10 * time.Millisecond
	// senderTimeout has Postgres let go of a follower that does not answer.
	senderTimeout = 2 * time.Second
	// stalledAfter is the silence after which a candidate ends the holder's
	// connection.
	stalledAfter = 500 * time.Millisecond
	// confirmAfter is how long a published entry may still be lost with Redis;
	// until then the slot keeps what it was made of.
	confirmAfter = 3 * time.Second
	// trimEvery and logKept: how much of the log a new node finds.
	trimEvery = 10 * time.Second
	// callTimeout bounds each call to the log and to the primary.
	callTimeout = time.Second
	retryEvery  = 100 * time.Millisecond
	candidacy   = 20 * time.Millisecond // between two tries for a slot that is held
)

// Errors that Run cannot mend by trying again soon.
var (
	errHeld = errors.New("another node holds the slot")
	// ErrIncapable: this Postgres, or this user, cannot have a slot.
	ErrIncapable = errors.New("changes cannot be followed")
)

// Options of a Follower.
type Options struct {
	DatabaseURL string
	Log         stream.Log
	LogKept     time.Duration        // how much of the log is kept
	Silence     func() time.Duration // since this node read a heartbeat
	Logger      *slog.Logger
}

// Follower follows while it holds the slot and stands by while it does not.
type Follower struct {
	options   Options
	following atomic.Bool
	lag       atomic.Uint64 // bytes the primary's WAL is ahead of what has been published
	published atomic.Uint64 // entries

	mu  sync.Mutex // guards why
	why error      // ErrIncapable, with the reason
}

// New makes a follower that Run starts.
func New(o Options) *Follower { return &Follower{options: o} }

// Following says whether this node holds the slot.
func (f *Follower) Following() bool { return f.following.Load() }

// LagBytes is how far the primary was ahead when last asked, while following.
func (f *Follower) LagBytes() uint64 { return f.lag.Load() }

// Incapable tells why changes cannot be followed here; nil while they may be.
func (f *Follower) Incapable() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// Run follows, or waits for its turn, until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		f.following.Store(false)
		f.mu.Lock()
		if f.why = nil; errors.Is(err, ErrIncapable) {
			f.why = err
		}
		f.mu.Unlock()
		pause := retryEvery
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errHeld):
			pause = candidacy
		case errors.Is(err, ErrIncapable):
			pause = 10 * time.Second
		default:
			f.options.Logger.Warn("following changes was interrupted", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// term is one take-over: what a follower knows from taking the slot to losing it.
type term struct {
	*Follower
	control *pgx.Conn      // ordinary, to the primary
	sender  *pgconn.PgConn // the replication connection
	decoder decoder
	slot    string
	epoch   string
	last    stream.Position // of the newest entry published

	decoded   pglogrepl.LSN // everything up to here has been received
	confirmed pglogrepl.LSN // what the slot has been told
	marks     []mark        // published, not yet confirmed; oldest first
	unsettled []stream.Change
	pending   *stream.Heartbeat // waits until decoded that far
	asked     time.Time         // when pending was prepared
	flushed   bool              // WAL was made to be flushed for pending
}

// mark remembers when everything up to an LSN had been published.
type mark struct {
	at  time.Time
	lsn pglogrepl.LSN
	n   stream.Position
}

// follow takes the slot, if nobody holds it, and follows until something fails.
func (f *Follower) follow(ctx context.Context) error {
	t := &term{Follower: f}
	t.decoder = decoder{rootOf: t.rootOf, tables: map[uint32]table{}}
	config, err := pgx.ParseConfig(f.options.DatabaseURL)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIncapable, err)
	}
	config.ConnectTimeout = callTimeout
	config.RuntimeParams["application_name"] = "listedge follower"
	config.RuntimeParams["statement_timeout"] = "0"
	config.RuntimeParams["synchronous_commit"] = "local" // of flush: a standby's answer is not what it waits for
	if t.control, err = pgx.ConnectConfig(ctx, config); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer t.control.Close(context.WithoutCancel(ctx))
	created, err := t.prepareSlot(ctx)
	if err != nil {
		return err
	}
	replication := config.Config.Copy()
	replication.RuntimeParams["replication"] = "database"
	replication.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	if t.sender, err = pgconn.ConnectConfig(ctx, replication); err != nil {
		if code(err) == "42501" || code(err) == "28000" {
			return fmt.Errorf("%w: the user may not replicate: %w", ErrIncapable, err)
		}
		return fmt.Errorf("connect for replication: %w", err)
	}
	defer t.sender.Close(context.WithoutCancel(ctx))
	system, err := pglogrepl.IdentifySystem(ctx, t.sender)
	if err != nil {
		return fmt.Errorf("identify the system: %w", err)
	}
	err = pglogrepl.StartReplication(ctx, t.sender, t.slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "publication_names '" + PublicationName + "'", "messages 'true'"}})
	if code(err) == "55006" { // object_in_use
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	if err := t.take(ctx, system, created); err != nil {
		return err
	}
	f.following.Store(true)
	f.options.Logger.Info("following changes", "epoch", t.epoch, "term", t.last.Term)
	return t.loop(ctx)
}

// prepareSlot makes sure there is a slot that can be used, and says whether it
// had to be made: then whatever was committed before is unknown. A holder that
// has gone silent is disconnected.
func (t *term) prepareSlot(ctx context.Context) (created bool, err error) {
	var level string
	var active *int32
	var status, confirmed *string
	err = t.control.QueryRow(ctx, `SELECT current_setting('wal_level'), $1 || oid FROM pg_database WHERE datname = current_database()`, slotPrefix).
		Scan(&level, &t.slot)
	if err != nil {
		return false, fmt.Errorf("read wal_level: %w", err)
	}
	if level != "logical" {
		return false, fmt.Errorf("%w: wal_level is %s, not logical", ErrIncapable, level)
	}
	err = t.control.QueryRow(ctx, `SELECT active_pid, wal_status, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, t.slot).
		Scan(&active, &status, &confirmed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, t.createSlot(ctx)
	case err != nil:
		return false, fmt.Errorf("look at the slot: %w", err)
	case status != nil && *status == "lost":
		if _, err := t.control.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, t.slot); err != nil {
			return false, fmt.Errorf("drop the lost slot: %w", err)
		}
		return true, t.createSlot(ctx)
	case active != nil:
		if t.options.Silence() > stalledAfter {
			_, _ = t.control.Exec(ctx, `SELECT pg_terminate_backend($1)`, *active) // without the right to, its own timeout ends it
		}
		return false, errHeld
	}
	if confirmed != nil {
		t.confirmed, err = pglogrepl.ParseLSN(*confirmed)
	}
	return false, err
}

func (t *term) createSlot(ctx context.Context) error {
	var lsn string
	err := t.control.QueryRow(ctx, `SELECT lsn::text FROM pg_create_logical_replication_slot($1, 'pgoutput')`, t.slot).Scan(&lsn)
	switch code(err) {
	case "":
	case "42501", "53400": // no right, or no slot free
		return fmt.Errorf("%w: %w", ErrIncapable, err)
	case "42710": // made by another node meanwhile
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("create the slot: %w", err)
	}
	t.confirmed, err = pglogrepl.ParseLSN(lsn)
	return err
}

// take begins a term: in the present epoch if nothing can have been missed in
// it, else in a new one. The incarnation of the database changes with a
// fail-over, a restore and a crash, after which transaction ids are used again.
func (t *term) take(ctx context.Context, system pglogrepl.IdentifySystemResult, created bool) error {
	var checkpointer, xid, snapshot string
	err := t.control.QueryRow(ctx, `SELECT coalesce(max(backend_start)::text, '') FROM pg_stat_activity WHERE backend_type = 'checkpointer'`).Scan(&checkpointer)
	if err == nil {
		err = t.control.QueryRow(ctx, `SELECT pg_current_xact_id()::text, pg_current_snapshot()::text`).Scan(&xid, &snapshot)
	}
	if err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	if checkpointer == "" {
		return fmt.Errorf("%w: the user may not see the checkpointer (grant pg_read_all_stats)", ErrIncapable)
	}
	if _, err := fmt.Sscan(xid, &t.decoder.reference); err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s", system.SystemID, system.Timeline, checkpointer))
	incarnation := hex.EncodeToString(sum[:8])
	present, err := t.options.Log.Epoch(ctx)
	if err != nil {
		return err
	}
	t.epoch = present
	if of, _, _ := strings.Cut(present, "."); created || of != incarnation {
		t.epoch = incarnation + "." + rand.Text()[:8]
	}
	previous, err := t.options.Log.Last(ctx, t.epoch)
	if err != nil {
		return err
	}
	t.last = stream.Position{Term: t.decoder.reference}
	if err := t.publish(ctx, stream.Entry{Take: &stream.Take{Previous: previous}}); err != nil {
		return err
	}
	return t.options.Log.SetEpoch(ctx, t.epoch)
}

// publish appends the entry as the next of the term.
func (t *term) publish(ctx context.Context, e stream.Entry) error {
	e.Position = stream.Position{Term: t.last.Term, N: t.last.N + 1}
	for deadline := time.Now().Add(callTimeout); ; {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		err := t.options.Log.Append(ctx, t.epoch, e)
		if err != nil { // it may be there nevertheless
			if last, lastErr := t.options.Log.Last(ctx, t.epoch); lastErr == nil && last == e.Position {
				err = nil
			}
		}
		cancel()
		if err == nil {
			t.last = e.Position
			t.published.Add(1)
			return nil
		}
		if errors.Is(err, stream.ErrFenced) || time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
}

// loop receives, publishes and beats until something fails.
func (t *term) loop(ctx context.Context) error {
	beat, ask, trim := time.Now(), time.Now(), time.Now().Add(trimEvery)
	for {
		now := time.Now()
		if t.pending == nil && !now.Before(beat) {
			beat = now.Add(heartbeatEvery)
			if err := t.prepareHeartbeat(ctx); err != nil {
				return err
			}
			ask = now
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
		if t.pending != nil && !now.Before(ask) {
			ask = now.Add(askEvery)
			if err := t.confirm(ctx, true); err != nil {
				return err
			}
		}
		if now.After(trim) {
			trim = now.Add(trimEvery)
			if err := t.trim(ctx); err != nil {
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
}

// receive handles one message, or none until wake.
func (t *term) receive(ctx context.Context, wake time.Time) error {
	receiving, cancel := context.WithDeadline(ctx, wake)
	defer cancel()
	message, err := t.sender.ReceiveMessage(receiving)
	if err != nil {
		if pgconn.Timeout(err) && ctx.Err() == nil {
			return nil
		}
		return fmt.Errorf("receive: %w", err)
	}
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("receive: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyData:
		return t.handle(ctx, m.Data)
	}
	return nil
}

func (t *term) handle(ctx context.Context, data []byte) error {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		t.decoded = max(t.decoded, k.ServerWALEnd)
		if k.ReplyRequested {
			return t.confirm(ctx, false)
		}
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		change, err := t.decoder.next(ctx, x.WALData)
		if err != nil {
			return err
		}
		if change != nil {
			t.unsettled = append(t.unsettled, *change)
			if err := t.publish(ctx, stream.Entry{Change: change}); err != nil {
				return err
			}
			t.decoded = max(t.decoded, pglogrepl.LSN(change.LSN))
		}
	}
	return nil
}

// prepareHeartbeat reads the probes FIRST and then the snapshot: what it proves
// is that everything visible when a nonce was chosen has been published.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nonces, err := t.options.Log.Probes(ctx)
	if err != nil {
		return err
	}
	var lsn, snapshot string
	if err := t.control.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text, pg_current_snapshot()::text`).Scan(&lsn, &snapshot); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	at, err := pglogrepl.ParseLSN(lsn)
	if err != nil {
		return err
	}
	at = recordEnd(at)
	t.pending, t.asked, t.flushed = &stream.Heartbeat{LSN: uint64(at), Snapshot: snapshot, Nonces: nonces}, time.Now(), false
	if at > t.decoded {
		t.lag.Store(uint64(at - t.decoded))
	} else {
		t.lag.Store(0)
	}
	return nil
}

// flush has the primary flush its WAL, up to which alone the walsender sends.
// What is neither committed nor waited for (an open transaction's rows, the
// pruning of a page) may else lie unflushed for seconds.
func (t *term) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	t.flushed = true
	if _, err := t.control.Exec(ctx, `SELECT pg_logical_emit_message(true, 'listedge flush', '')`); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// recordEnd is where the last record before an insert position ends: at the
// start of a page the insert position is already behind the page's header.
func recordEnd(insert pglogrepl.LSN) pglogrepl.LSN {
	const page, longestHeader = 8192, 40
	if into := insert % page; into <= longestHeader {
		return insert - into
	}
	return insert
}

// sendHeartbeat publishes the pending heartbeat: everything up to its LSN has
// been published before it.
func (t *term) sendHeartbeat(ctx context.Context) error {
	h := t.pending
	t.pending = nil
	snapshot, err := stream.ParseSnapshot(h.Snapshot)
	if err != nil {
		return err
	}
	kept := t.unsettled[:0]
	for _, c := range t.unsettled {
		if !snapshot.Sees(c.XID) {
			kept = append(kept, c)
		}
	}
	t.unsettled = kept
	h.Unsettled = append([]stream.Change(nil), kept...)
	t.decoder.reference = snapshot.Xmax
	if err := t.publish(ctx, stream.Entry{Heartbeat: h}); err != nil {
		return err
	}
	t.marks = append(t.marks, mark{time.Now(), pglogrepl.LSN(h.LSN), t.last})
	if t.last.N%20 == 0 { // Redis may have lost it
		return t.options.Log.SetEpoch(ctx, t.epoch)
	}
	return nil
}

// confirm tells the walsender what the slot need not keep any more.
func (t *term) confirm(ctx context.Context, ask bool) error {
	for len(t.marks) > 1 && time.Since(t.marks[0].at) > confirmAfter {
		to := t.marks[0].lsn
		if len(t.unsettled) > 0 {
			to = min(to, pglogrepl.LSN(t.unsettled[0].LSN)-1)
		}
		t.confirmed = max(t.confirmed, to)
		if len(t.marks) > 1 && time.Since(t.marks[1].at) <= confirmAfter {
			break
		}
		t.marks = t.marks[1:]
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := pglogrepl.SendStandbyStatusUpdate(ctx, t.sender, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, t.confirmed), WALFlushPosition: t.confirmed, WALApplyPosition: t.confirmed, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}

// trim lets the log forget what is older than it need be.
func (t *term) trim(ctx context.Context) error {
	// The heartbeat rate tells how many entries are how old: a position is
	// dropped once this term has been beating for longer than LogKept.
	kept := uint64(t.options.LogKept / heartbeatEvery)
	if t.last.N <= 2*kept {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.options.Log.Trim(ctx, t.epoch, stream.Position{Term: t.last.Term, N: t.last.N - 2*kept})
}

// rootOf names the table that a relation is, or is a partition of.
func (t *term) rootOf(ctx context.Context, relation uint32) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var name string
	err := t.control.QueryRow(ctx, `SELECT relname FROM pg_class WHERE oid = coalesce(pg_partition_root($1::oid::regclass), $1::oid)`, relation).Scan(&name)
	if err != nil {
		return "", fmt.Errorf("name relation %d: %w", relation, err)
	}
	return name, nil
}

func code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
