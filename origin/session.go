package origin

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/origin/postgres"
)

// session is a connection of a pool, while a page is read on it.
//
// pgx makes connections, keeps them and prepares statements. A page is asked
// and read past it, for pgx starts a timer at every write, which wakes a thread,
// and makes every row a slice of slices: a fifth of what a miss costs. Here a
// question is one write, and a row is read where it came to lie.
//
//	Bind Execute Sync ──►  one write
//	                  ◄──  BindComplete DataRow … CommandComplete ReadyForQuery
//
// Between two questions the connection is pgx's, as if nothing had been.
//
// Behind a pooler the next transaction may meet another server session, which
// has neither the statement nor the settings. There a question brings both
// along, in one transaction, which ends with the only Sync:
//
//	Parse Bind Execute    ──►  the settings, for this transaction
//	Parse Bind Describe
//	Execute Sync          ──►  the page
type session struct {
	conn   *pgxpool.Conn
	wire   net.Conn // beneath it
	broken bool     // nothing more can be asked on it

	question []byte
	arrived  []byte // from the wire; arrived[from:to] has not been read yet
	from, to int
	page     []byte  // under construction
	end      pageEnd // behind the last row of it
}

// errWire: what came back is no answer.
var errWire = errors.New("unexpected answer of the database")

const (
	// firstRoom is how many bytes at once are read at first. The server sends
	// pages in pieces of 8 kB.
	firstRoom = 32 << 10
	// beginning is how many bytes of a row that is too long are read.
	beginning = 64
)

// open takes a connection out of the pool.
func (o *Origin) open(ctx context.Context, pool *pgxpool.Pool) (*session, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	s := o.sessions.Get().(*session)
	s.conn, s.broken, s.from, s.to = conn, false, 0, 0
	return s, nil
}

// pooled says whether a connection pooler answers, and not a server of one's own.
func (s *session) pooled() bool { return postgres.Pooled(s.conn.Conn().PgConn()) }

// close gives the connection back, or up.
func (o *Origin) close(s *session) {
	if s.broken {
		go giveUp(s.conn) // the pool waits for it, as for every connection it gave out
	} else {
		s.conn.Release()
	}
	s.conn, s.wire = nil, nil
	if cap(s.arrived) > keepBuffer || cap(s.page) > keepBuffer {
		s.arrived, s.page = nil, nil
	}
	o.sessions.Put(s)
}

// giveUp ends a connection amid an answer. The server, which may still be at
// work on it, is told to stop, and then heard to its end: one that cannot get
// rid of its words takes the end for a failure of the network, and says so in
// its log.
func giveUp(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	pg := conn.Conn().PgConn()
	if !pg.IsClosed() { // all of it in vain where the server is gone
		_ = pg.CancelRequest(ctx)
		wire := pg.Conn()
		deadline, _ := ctx.Deadline()
		_ = wire.SetDeadline(deadline)
		if _, err := wire.Write(terminate); err == nil {
			_, _ = io.Copy(io.Discard, wire)
		}
		_ = pg.Close(ctx)
	}
	conn.Release()
}

// ask asks a prepared statement, and has read read the rows of the answer.
// Its arguments are in the binary format, its columns wanted in formats. An
// error of read, or of the server, leaves the session as good as before.
func (s *session) ask(ctx context.Context, statement string, arguments [][]byte, formats []int16, read func(row []byte) error) error {
	question, err := (&pgproto3.Bind{PreparedStatement: statement, ParameterFormatCodes: binaryFormat, Parameters: arguments, ResultFormatCodes: formats}).Encode(s.question[:0])
	if err != nil {
		return err
	}
	s.question = append(question, executeAndSync...)
	return s.exchange(ctx, expected{rows: read})
}

// askPooled is ask behind a pooler, of a statement that is not prepared there.
func (s *session) askPooled(ctx context.Context, settings string, statement *pgproto3.Parse, arguments [][]byte, formats []int16, answer expected) error {
	question := s.question[:0]
	for _, m := range []pgproto3.FrontendMessage{
		&pgproto3.Parse{Query: settings}, &pgproto3.Bind{}, &pgproto3.Execute{},
		statement, &pgproto3.Bind{ParameterFormatCodes: binaryFormat, Parameters: arguments, ResultFormatCodes: formats}, &pgproto3.Describe{ObjectType: 'P'},
	} {
		var err error
		if question, err = m.Encode(question); err != nil {
			return err
		}
	}
	s.question = append(question, executeAndSync...)
	answer.before = 1
	return s.exchange(ctx, answer)
}

// exchange writes the question and reads the answer.
func (s *session) exchange(ctx context.Context, answer expected) (err error) {
	pg := s.conn.Conn().PgConn()
	if err := cmp.Or(ctx.Err(), pg.SyncConn(ctx)); err != nil {
		return err
	}
	s.wire = pg.Conn()
	s.broken = true // until the answer has been read to its end
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, s.interrupter())
		defer func() {
			if !stop() {
				s.broken = true // the deadline strikes, be it later
			}
		}()
	}
	if _, err = s.wire.Write(s.question); err == nil {
		err = s.readAnswer(answer)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// interrupter ends what is being read from the wire, and all that would be.
func (s *session) interrupter() func() {
	wire := s.wire
	return func() { _ = wire.SetDeadline(time.Unix(1, 0)) }
}

var (
	binaryFormat   = []int16{1}
	executeAndSync = func() []byte {
		b, _ := (&pgproto3.Execute{}).Encode(nil) // all rows
		b, _ = (&pgproto3.Sync{}).Encode(b)
		return b
	}()
	terminate = func() []byte {
		b, _ := (&pgproto3.Terminate{}).Encode(nil)
		return b
	}()
)

// expected is what an answer should hold.
type expected struct {
	before  int                                  // results that precede the one that is read, and have rows of their own
	columns func(*pgproto3.RowDescription) error // where they are described
	rows    func(row []byte) error
}

// readAnswer reads until the server is ready for the next question. What went
// wrong first is the error. Without a word on how it ended there was no answer,
// but the end of another: never take it for a page without rows.
func (s *session) readAnswer(want expected) (err error) {
	results, ended := 0, false
	for {
		kind, body, failed := s.message()
		if failed != nil {
			return cmp.Or(err, failed)
		}
		switch kind {
		case 'D': // DataRow
			if err == nil && results == want.before {
				err = want.rows(body)
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
				return err // its last words, even where a pooler keeps the line open
			}
		case 'N': // NoticeResponse
			s.notice(body)
		case 'Z': // ReadyForQuery
			if !ended {
				return cmp.Or(err, fmt.Errorf("%w: none", errWire))
			}
			// Nothing is to follow, and could not be given back to pgx.
			s.broken = s.from != s.to || len(body) != 1 || body[0] != 'I'
			return err
		case 'T': // RowDescription
			var m pgproto3.RowDescription
			if failed := m.Decode(body); failed != nil || want.columns == nil {
				return cmp.Or(err, failed, fmt.Errorf("%w: columns that were not asked for", errWire))
			}
			if err == nil {
				err = want.columns(&m)
			}
		case 'C': // CommandComplete
			results++
			ended = ended || results > want.before
		case '1', '2', 'S', 'A': // ParseComplete, BindComplete, ParameterStatus, NotificationResponse
		default:
			return cmp.Or(err, fmt.Errorf("%w: a message of type %q", errWire, kind))
		}
	}
}

// message returns the next message; its body is good until the next call.
func (s *session) message() (kind byte, body []byte, err error) {
	const head = 1 + 4 // the length counts itself
	if err := s.await(head); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(s.arrived[s.from+1:])) - 4
	kind = s.arrived[s.from]
	switch {
	case n > maxMessage && kind == 'D':
		if err := s.await(head + beginning); err != nil {
			return 0, nil, err
		}
		return 0, nil, &longRow{n, s.arrived[s.from+head:][:beginning]}
	case n < 0 || n > maxMessage:
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", errWire, n)
	}
	if err := s.await(head + n); err != nil {
		return 0, nil, err
	}
	kind, body = s.arrived[s.from], s.arrived[s.from+head:s.from+head+n]
	s.from += head + n
	return kind, body, nil
}

// await reads from the wire until n bytes lie there unread.
func (s *session) await(n int) error {
	for s.to-s.from < n {
		if s.from == s.to {
			s.from, s.to = 0, 0
		}
		if s.from+n > len(s.arrived) {
			room := s.arrived
			if n > len(room) {
				room = make([]byte, max(n, firstRoom))
			}
			s.from, s.to = 0, copy(room, s.arrived[s.from:s.to])
			s.arrived = room
		}
		got, err := s.wire.Read(s.arrived[s.to:])
		s.to += got
		if err != nil && s.to-s.from < n {
			return fmt.Errorf("read the database's answer: %w", err)
		}
	}
	return nil
}

// notice passes a warning on to who wants it.
func (s *session) notice(body []byte) {
	var m pgproto3.NoticeResponse
	if conn := s.conn.Conn(); conn.Config().OnNotice != nil && m.Decode(body) == nil {
		conn.Config().OnNotice(conn.PgConn(), (*pgconn.Notice)(pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&m))))
	}
}
