package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxMessage, in bytes, is the longest message that is read from the server,
	// and so the longest row. Its JSON may be six times as long.
	maxMessage = 4 << 20
	// longRowHead is how many bytes of a row that is too long are read.
	longRowHead = 64
	// firstBuffer, in bytes, is the size of a new buffer. The server sends pages in
	// pieces of 8 kB.
	firstBuffer = 32 << 10
	// keepBuffer, in bytes: larger buffers are not kept for the next query.
	keepBuffer = 1 << 20
)

// LongRowError: a row is longer than maxMessage.
type LongRowError struct {
	Size int
	Head []byte // its first bytes
}

func (r *LongRowError) Error() string { return fmt.Sprintf("a row of %d bytes", r.Size) }

// Statement is a query that sessions run.
type Statement struct {
	Name       string // it is prepared under
	SQL        string
	Parameters []uint32 // types; the arguments are sent in the binary format
	Columns    []Column
	Formats    []int16 // wanted, of the columns
	// Settings is a statement that is run first, in the same transaction, if there is a
	// connection pooler (Settings.Local).
	Settings string
}

// Column is what a statement's column must be.
type Column struct {
	Name string // for errors
	Type uint32
}

// check returns ErrSchema if the server's columns are not the statement's.
func (s *Statement) check(fields []pgconn.FieldDescription) error {
	if len(fields) != len(s.Columns) {
		return fmt.Errorf("%w: %d columns instead of %d", ErrSchema, len(fields), len(s.Columns))
	}
	for i, want := range s.Columns {
		is := fields[i].DataTypeOID
		if is != want.Type && !(is == pgtype.VarcharOID && want.Type == pgtype.TextOID) { // both are sent alike
			return fmt.Errorf("%w: %s: type %d instead of %d", ErrSchema, want.Name, is, want.Type)
		}
	}
	return nil
}

// Session is a pooled connection while rows are read on it.
//
// pgx makes connections, keeps them and prepares statements. Queries bypass it. pgx starts a
// timer at every write, which wakes a thread, and makes a slice of slices of every row:
// together a fifth of the cost of a miss. Here a request is one write, and a row stays in
// the buffer that it was received in.
//
//	Bind Execute Sync ──►  one write
//	                  ◄──  BindComplete DataRow … CommandComplete ReadyForQuery
//
// Between two queries the connection is in the state that pgx expects.
//
// Behind a pooler the next transaction may run on another server connection,
// which has neither the prepared statement nor the settings. There the request
// carries both, in one transaction, which ends with the only Sync:
//
//	Parse Bind Execute    ──►  the settings, for this transaction
//	Parse Bind Describe
//	Execute Sync          ──►  the query
type Session struct {
	Conn   *pgxpool.Conn
	wire   net.Conn // of Conn
	broken bool     // the connection can run nothing more

	request  []byte
	buffer   []byte // buffer[from:to] is received and not read yet
	from, to int
}

// Acquire takes a connection from the pool. The session's buffers are used again.
func (s *Session) Acquire(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	s.Conn, s.broken, s.from, s.to = conn, false, 0, 0
	return nil
}

// Release returns the connection to the pool, or closes it if it is broken.
func (s *Session) Release() {
	if s.broken {
		go abort(s.Conn) // the pool waits for it, as for every connection in use
	} else {
		s.Conn.Release()
	}
	s.Conn, s.wire = nil, nil
	if cap(s.buffer) > keepBuffer {
		s.buffer = nil
	}
}

// abort closes a connection in the middle of an answer. It cancels the query, and reads
// until the server closes the connection: otherwise the server would log that it could not
// send the rest.
func abort(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTimeout)
	defer cancel()
	pg := conn.Conn().PgConn()
	if !pg.IsClosed() { // if the connection is broken, all of this fails
		_ = pg.CancelRequest(ctx)
		wire := pg.Conn()
		deadline, _ := ctx.Deadline()
		_ = wire.SetDeadline(deadline)
		terminate, _ := (&pgproto3.Terminate{}).Encode(nil)
		if _, err := wire.Write(terminate); err == nil {
			_, _ = io.Copy(io.Discard, wire)
		}
		_ = pg.Close(ctx)
	}
	conn.Release()
}

// Query runs the statement and calls row for each row of the answer; the row is
// valid until row returns. An error of row, or of the server, leaves the session
// usable. A statement is prepared again if the schema has changed since, or the server has
// forgotten the statement.
func (s *Session) Query(ctx context.Context, q *Statement, arguments [][]byte, row func([]byte) error) error {
	bind := &pgproto3.Bind{ParameterFormatCodes: binaryFormat, Parameters: arguments, ResultFormatCodes: q.Formats}
	if Pooled(s.Conn.Conn().PgConn()) {
		return s.exchange(ctx, answer{skip: 1, columns: q.check, row: row},
			&pgproto3.Parse{Query: q.Settings}, &pgproto3.Bind{}, &pgproto3.Execute{},
			&pgproto3.Parse{Query: q.SQL, ParameterOIDs: q.Parameters}, bind, &pgproto3.Describe{ObjectType: 'P'})
	}
	bind.PreparedStatement = q.Name
	rows := 0
	a := answer{row: func(r []byte) error { rows++; return row(r) }}
	err := s.prepare(ctx, q)
	if err == nil {
		err = s.exchange(ctx, a, bind)
	}
	if code := Code(err); rows == 0 && (code == "0A000" || code == "26000" || errors.Is(err, ErrSchema)) {
		if err = s.Conn.Conn().Deallocate(ctx, q.Name); err != nil {
			s.broken = true // pgx does not read what follows an error
		} else if err = s.prepare(ctx, q); err == nil {
			err = s.exchange(ctx, a, bind)
		}
	}
	return err
}

// prepare prepares the statement if that has not been done. It returns ErrSchema if the
// types of the arguments or the columns are not the expected ones.
func (s *Session) prepare(ctx context.Context, q *Statement) error {
	prepared, err := s.Conn.Conn().Prepare(ctx, q.Name, q.SQL)
	if err != nil {
		return err
	}
	if !slices.Equal(prepared.ParamOIDs, q.Parameters) {
		return fmt.Errorf("%w: arguments of the types %d instead of %d", ErrSchema, prepared.ParamOIDs, q.Parameters)
	}
	return q.check(prepared.Fields)
}

// exchange sends the request, with Execute and Sync behind it, and reads the answer.
func (s *Session) exchange(ctx context.Context, a answer, request ...pgproto3.FrontendMessage) (err error) {
	s.request = s.request[:0]
	for _, m := range append(request, &pgproto3.Execute{}, &pgproto3.Sync{}) { // Execute: all rows
		if s.request, err = m.Encode(s.request); err != nil {
			return err
		}
	}
	pg := s.Conn.Conn().PgConn()
	if err := cmp.Or(ctx.Err(), pg.SyncConn(ctx)); err != nil {
		return err
	}
	s.wire = pg.Conn()
	s.broken = true // until the answer has been read to its end
	if ctx.Done() != nil {
		wire := s.wire
		stop := context.AfterFunc(ctx, func() { _ = wire.SetDeadline(time.Unix(1, 0)) })
		defer func() {
			if !stop() {
				s.broken = true // the deadline may still be set later
			}
		}()
	}
	if _, err = s.wire.Write(s.request); err == nil {
		err = s.readAnswer(a)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// answer says how readAnswer reads an answer.
type answer struct {
	skip    int                                   // how many results come before the one to read
	columns func([]pgconn.FieldDescription) error // nil = no description is expected
	row     func([]byte) error
}

// readAnswer reads until the server is ready for the next query, and returns the first
// error. An answer without the end of a result is an error, so that it is not taken for a
// page without rows.
func (s *Session) readAnswer(a answer) (err error) {
	results, ended := 0, false
	for {
		kind, body, failed := s.message()
		if failed != nil {
			return cmp.Or(err, failed)
		}
		switch kind {
		case 'D': // DataRow
			if err == nil && results == a.skip {
				err = a.row(body)
			}
		case 'E': // ErrorResponse
			var m pgproto3.ErrorResponse
			if failed := m.Decode(body); failed != nil {
				return cmp.Or(err, failed)
			}
			ended = true
			if err == nil {
				err = pgconn.ErrorResponseToPgError(&m)
			}
			if m.Severity == "FATAL" || m.SeverityUnlocalized == "FATAL" {
				return err // the server sends nothing more, even where a pooler keeps the connection open
			}
		case 'N': // NoticeResponse
			s.notice(body)
		case 'Z': // ReadyForQuery
			if !ended {
				return cmp.Or(err, fmt.Errorf("%w: none", ErrProtocol))
			}
			// More bytes would be lost: they cannot be given back to pgx.
			s.broken = s.from != s.to || len(body) != 1 || body[0] != 'I'
			return err
		case 'T': // RowDescription
			var m pgproto3.RowDescription
			if failed := m.Decode(body); failed != nil || a.columns == nil {
				return cmp.Or(err, failed, fmt.Errorf("%w: columns that were not requested", ErrProtocol))
			}
			if err == nil {
				fields := make([]pgconn.FieldDescription, len(m.Fields))
				for i := range m.Fields {
					fields[i].DataTypeOID = m.Fields[i].DataTypeOID
				}
				err = a.columns(fields)
			}
		case 'C': // CommandComplete
			results++
			ended = ended || results > a.skip
		case '1', '2', 'S', 'A': // ParseComplete, BindComplete, ParameterStatus, NotificationResponse
		default:
			return cmp.Or(err, fmt.Errorf("%w: a message of type %q", ErrProtocol, kind))
		}
	}
}

// message returns the next message; its body is valid until the next call.
func (s *Session) message() (kind byte, body []byte, err error) {
	const head = 1 + 4 // the length counts itself
	if err := s.receive(head); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(s.buffer[s.from+1:])) - 4
	kind = s.buffer[s.from]
	switch {
	case n > maxMessage && kind == 'D':
		if err := s.receive(head + longRowHead); err != nil {
			return 0, nil, err
		}
		return 0, nil, &LongRowError{n, s.buffer[s.from+head:][:longRowHead]}
	case n < 0 || n > maxMessage:
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", ErrProtocol, n)
	}
	if err := s.receive(head + n); err != nil {
		return 0, nil, err
	}
	kind, body = s.buffer[s.from], s.buffer[s.from+head:s.from+head+n]
	s.from += head + n
	return kind, body, nil
}

// receive reads from the wire until n unread bytes are in the buffer.
func (s *Session) receive(n int) error {
	for s.to-s.from < n {
		if s.from == s.to {
			s.from, s.to = 0, 0
		}
		if s.from+n > len(s.buffer) {
			room := s.buffer
			if n > len(room) {
				room = make([]byte, max(n, firstBuffer))
			}
			s.from, s.to = 0, copy(room, s.buffer[s.from:s.to])
			s.buffer = room
		}
		got, err := s.wire.Read(s.buffer[s.to:])
		s.to += got
		if err != nil && s.to-s.from < n {
			return fmt.Errorf("read the database's answer: %w", err)
		}
	}
	return nil
}

// notice calls the connection's handler of notices, if it has one.
func (s *Session) notice(body []byte) {
	var m pgproto3.NoticeResponse
	if conn := s.Conn.Conn(); conn.Config().OnNotice != nil && m.Decode(body) == nil {
		conn.Config().OnNotice(conn.PgConn(), (*pgconn.Notice)(pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&m))))
	}
}
