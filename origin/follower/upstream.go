package follower

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"listedge/internal/fleet"
	"listedge/internal/list"
)

// Upstream is the primary as a term needs it. internal/world has another one, so that a simulated fleet has real terms.
type Upstream interface {
	// Check returns which run answers, or an error if changes cannot be followed here.
	Check(context.Context) (Run, error)
	// View takes a snapshot. It has the catalog unless that is of the known version.
	View(ctx context.Context, known string) (View, error)
	// Use has changes decoded with the catalog of a view from now on.
	Use(View)
	// Slot polls the slot.
	Slot(context.Context) (Slot, error)
	// Replicate starts streaming from the slot, which takes a persistent one. Errors: errHeld.
	Replicate(context.Context) (fleet.Server, error)
	// Begin returns the number of a transaction that begins now, and how far the slot is confirmed.
	Begin(context.Context) (xid uint64, confirmed pglogrepl.LSN, err error)
	// Emit writes a message into the WAL, and has that flushed.
	Emit(ctx context.Context, prefix, content string) error
	// Receive returns what the next message says; zero = none has come until wake.
	Receive(ctx context.Context, wake time.Time) (Received, error)
	// Reply sends the walsender a status update.
	Reply(pglogrepl.StandbyStatusUpdate) error
	// Drop ends the stream, and drops the slot, unless another node has done so.
	Drop(context.Context) error
}

// Run is one run of a server, and what it publishes. checkSettings says what its texts change with.
type Run struct {
	CheckpointerStart, Published string
	publication                  Publication
}

// Received is what a message of the walsender says.
type Received struct {
	Position       pglogrepl.LSN // everything up to here has been received
	Commit         *Commit       // nil = it commits nothing
	ReplyRequested bool
}

// follow prepares for a term.
func (p *primary) follow(lists *list.Set) {
	p.lists, p.tables, p.decoder = lists, followedOf(lists), newDecoder(lists)
}

// Check implements Upstream.
func (p *primary) Check(ctx context.Context) (Run, error) {
	err := p.checkPrerequisites(ctx, p.lists)
	p.decoder.rowsUnnamed = p.run.publication.unnamed()
	return p.run, err
}

// Use implements Upstream.
func (p *primary) Use(v View) { p.decoder.setCatalog(v.catalog) }

// Begin implements Upstream.
func (p *primary) Begin(ctx context.Context) (xid uint64, confirmed pglogrepl.LSN, err error) {
	err = p.row(ctx, `SELECT pg_current_xact_id()::text::int8, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, p.slotName)(&xid, &confirmed)
	return xid, confirmed, err
}

// Emit implements Upstream.
func (p *primary) Emit(ctx context.Context, prefix, content string) error {
	return p.row(ctx, `SELECT pg_logical_emit_message(true, $1, $2)`, prefix, content)(nil)
}

// Receive implements Upstream.
func (p *primary) Receive(ctx context.Context, wake time.Time) (r Received, err error) {
	// A read deadline costs half as much for each row as a context with a deadline
	// would. The end of ctx is noticed at wake.
	err = p.sender.Conn().SetReadDeadline(wake)
	var message pgproto3.BackendMessage
	if err == nil {
		message, err = p.sender.ReceiveMessage(context.Background())
	}
	switch {
	case pgconn.Timeout(err) && ctx.Err() == nil:
		return r, nil
	case err != nil:
		return r, fmt.Errorf("receive: %w", err)
	}
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		err = pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyDone, *pgproto3.CommandComplete:
		err = errors.New("the server ends the stream")
	case *pgproto3.CopyData:
		r, err = p.read(m.Data)
	}
	if err != nil {
		return r, fmt.Errorf("receive: %w", err)
	}
	return r, nil
}

// read decodes a message of the stream.
func (p *primary) read(data []byte) (r Received, err error) {
	if len(data) == 0 {
		return r, errors.New("an empty message")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		return Received{Position: k.ServerWALEnd, ReplyRequested: k.ReplyRequested}, err
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return r, err
		}
		r.Commit, err = p.decoder.next(x.WALData)
		if r.Commit != nil {
			r.Position = pglogrepl.LSN(r.Commit.Change.LSN)
		}
		return r, err
	}
	return r, nil
}

// Reply implements Upstream.
func (p *primary) Reply(s pglogrepl.StandbyStatusUpdate) error {
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), p.sender, s)
	if err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}

// Drop implements Upstream.
func (p *primary) Drop(ctx context.Context) error {
	p.closeSender()
	return p.dropSlot(ctx)
}
