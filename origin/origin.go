// Package origin answers list queries from Postgres, and knows everything
// there is to know about Postgres: schema, statements, keys, imports.
//
//	Query ──► gate ──► breaker ──► one statement ──► rows appended as JSON ──► Page
//	          (bounded,   (a dead      (keyset, index       (no Go values
//	           fair)       server       order, limit+1)      in between)
//	                       fails fast)
//
// The primary and each standby have a gate and a breaker of their own.
//
// A page is one READ COMMITTED statement whose cost depends on the page's
// size and not on how deep it lies.
package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Page is one page of a list as the database had it.
type Page struct {
	// Body is the JSON of the answer up to where the request id goes:
	// {"data":[…],"page":{"hasMore":…,"nextCursor":…}  — without the last brace.
	Body       []byte
	NextCursor string // empty when this is the last page
	Rows       int
	Snapshot   string // pg_current_snapshot() of the statement that read it, on the primary
	answerer          // that server
	Replayed          // on a standby

	Asked time.Time     // when the server was, also in vain; zero = it was not
	Took  time.Duration // it, from then on
}

// Replayed is how far a standby is.
type Replayed struct {
	Server string // its system and timeline; empty = this is no standby
	LSN    uint64 // replayed before the statement began
}

// Errors of Fetch and of key look-ups. All of them pass: the caller may answer
// with an older page, or ask again later.
var (
	ErrUnavailable = errors.New("database unavailable")
	ErrOverloaded  = errors.New("too many queries at once")
	ErrTimeout     = errors.New("query took too long")
	// ErrNotAllowed: the role lacks a right. What else it reads it may go on reading.
	ErrNotAllowed = errors.New("the database does not let this node read")
)

// errGivenUp: the caller did not give the server its time; says nothing of it.
var errGivenUp = fmt.Errorf("%w for its caller", ErrTimeout)

// Origin fetches pages.
type Origin struct {
	primary  *source
	upstream *upstream // its connections
	standbys []*standby
	next     atomic.Uint32 // which standby is asked first
	timeout  time.Duration // after which a server itself ends a query
	settings string        // what has a transaction run with those of pages
	sessions sync.Pool     // *session: their buffers are used again

	statements sync.Map // shape -> *statement

	fetched, failed, timedOut, overloaded atomic.Uint64
}

// New makes an Origin on the database, which need not be reachable yet.
func New(db *Database) *Origin {
	o := &Origin{primary: newSource("pages", db.pages, primaryRest), upstream: db.upstream(db.pages), timeout: db.queryTimeout, settings: sessionSettings(db.queryTimeout).Local(), sessions: sync.Pool{New: func() any { return new(session) }}}
	for _, pool := range db.replicas {
		o.standbys = append(o.standbys, newStandby(pool, db.followed))
	}
	return o
}

// Fetch reads one page from the primary. It takes at most as long as ctx
// allows; a query the server itself ends (statement_timeout), or whose ctx ends
// sooner, is ErrTimeout.
func (o *Origin) Fetch(ctx context.Context, q Query) (Page, error) {
	return o.FetchFrom(ctx, q, "")
}

// FetchFrom is Fetch from the primary of which is known which run of it is
// followed; empty = it is not (fromPrimary). ErrWrongServer: another one answered.
func (o *Origin) FetchFrom(ctx context.Context, q Query, run string) (Page, error) {
	var began time.Time
	var took time.Duration
	page, err := o.primary.serve(ctx, &q, func() (Page, error) {
		began = time.Now()
		defer func() { took = time.Since(began) }()
		page, err := fromPrimary(ctx, o.upstream, run, func() (Page, answerer, error) { return o.readFrom(ctx, o.primary.pool, &q) })
		if err != nil && ctx.Err() != nil && time.Since(began) < o.timeout {
			return Page{}, fmt.Errorf("%w: %w", errGivenUp, err)
		}
		return page, classify(err)
	})
	page.Asked, page.Took = began, took
	switch {
	case err == nil:
		o.fetched.Add(1)
	case errors.Is(err, ErrOverloaded):
		o.overloaded.Add(1)
	case errors.Is(err, ErrTimeout):
		o.timedOut.Add(1)
	default:
		o.failed.Add(1)
	}
	return page, err
}

// Probe finds out whether servers that were left alone are back, which nobody
// would notice while all pages are in caches. To be called now and then.
func (o *Origin) Probe(ctx context.Context) {
	o.primary.probe(ctx)
	for _, s := range o.standbys {
		s.probe(ctx)
	}
}

// Busy says whether queries of the primary wait, or would soon: what nobody
// waits for is better not asked now.
func (o *Origin) Busy() bool {
	running, waiting := o.primary.gate.load()
	return waiting > 0 || 2*running > o.primary.gate.size
}

// readFrom reads the page on a connection of the pool, and says who answered.
func (o *Origin) readFrom(ctx context.Context, pool *pgxpool.Pool, q *Query) (Page, answerer, error) {
	s, err := o.open(ctx, pool)
	if err != nil {
		return Page{}, answerer{}, err
	}
	defer o.close(s)
	page, err := o.readOn(ctx, s, q)
	page.address = addressOf(s.conn.Conn())
	return page, page.answerer, err
}

// addressOf is where the connection leads, of the servers that its URL may name.
func addressOf(conn *pgx.Conn) net.Addr { return conn.PgConn().Conn().RemoteAddr() }

// readOn reads the page, over again when the schema changed under the prepared
// statement, or the server, or a pooler before it, has forgotten it.
func (o *Origin) readOn(ctx context.Context, s *session, q *Query) (Page, error) {
	page, err := o.read(ctx, s, q)
	if s.pooled() { // nothing is prepared there
		return page, err
	}
	if code := pgCode(err); code == "0A000" || code == "26000" || errors.Is(err, errShape) {
		shape, _ := shapeOf(q)
		if err := s.conn.Conn().Deallocate(ctx, o.statement(shape).name); err != nil {
			s.broken = true // pgx does not read what follows a refusal
			return Page{}, err
		}
		page, err = o.read(ctx, s, q)
	}
	return page, err
}

// read runs the page's statement and encodes its rows.
func (o *Origin) read(ctx context.Context, s *session, q *Query) (Page, error) {
	shape, arguments := shapeOf(q)
	statement, listed := o.statement(shape), q.Collection.listed()
	s.page = append(s.page[:0], `{"data":[`...)
	page, next := Page{}, *q
	full, more := false, false
	err := o.ask(ctx, s, shape, statement, arguments, func(row []byte) error {
		seen, row, err := cutSeen(row, len(listed))
		if err != nil {
			return err
		}
		if seen != nil {
			snapshot, server, _ := strings.Cut(string(seen), "@")
			page.Snapshot, page.answerer = snapshot, answererOf(server)
			return nil
		}
		if full || page.Rows == q.Limit {
			more = true // this row only tells so
			return nil
		}
		before := len(s.page)
		if page.Rows > 0 {
			s.page = append(s.page, ',')
		}
		if s.page, err = appendRow(s.page, listed, row); err != nil {
			return err
		}
		if full = len(s.page) > maxPage; full && page.Rows > 0 {
			s.page, more = s.page[:before], true // the next page begins with it
			return nil
		}
		page.Rows++
		s.end.put(q.Sort, row)
		return nil
	})
	if _, long := err.(*longRow); long && page.Rows > 0 {
		more, err = true, nil // the page ends before it; the next one fails
	}
	if err == nil && page.Snapshot == "" {
		err = fmt.Errorf("%w: it does not say what it shows", errWire)
	}
	if err != nil {
		return Page{}, nameLongRow(q, err)
	}
	if more {
		next.After = s.end.position(q.Sort)
		page.NextCursor = string(next.AppendCursor(nil))
		s.page = append(s.page, `],"page":{"hasMore":true,"nextCursor":"`...)
		s.page = append(append(s.page, page.NextCursor...), `"}`...)
	} else {
		s.page = append(s.page, `],"page":{"hasMore":false,"nextCursor":null}`...)
	}
	page.Body = bytes.Clone(s.page)
	return page, nil
}

// ask asks the statement of the shape.
func (o *Origin) ask(ctx context.Context, s *session, shape shape, statement *statement, arguments [][]byte, read func(row []byte) error) error {
	if s.pooled() {
		return s.askPooled(ctx, o.settings, &pgproto3.Parse{Query: statement.sql, ParameterOIDs: shape.parameters()}, arguments, pageFormats[shape.collection], expected{
			columns: func(m *pgproto3.RowDescription) error {
				return checkColumns(shape.collection, len(m.Fields), func(i int) uint32 { return m.Fields[i].DataTypeOID })
			},
			rows: read,
		})
	}
	prepared, err := s.conn.Conn().Prepare(ctx, statement.name, statement.sql)
	if err == nil {
		err = checkShape(shape.collection, shape, prepared)
	}
	if err != nil {
		return err
	}
	return s.ask(ctx, statement.name, arguments, pageFormats[shape.collection], read)
}

// statement is a page's statement and the name it is prepared under.
type statement struct{ name, sql string }

func (o *Origin) statement(s shape) *statement {
	if known, ok := o.statements.Load(s); ok {
		return known.(*statement)
	}
	known, _ := o.statements.LoadOrStore(s, &statement{s.name(), s.sql()})
	return known.(*statement)
}

// classify puts what went wrong into the words of this package; nil stays nil.
func classify(err error) error {
	var (
		server  *pgconn.PgError
		refused *pgconn.ConnectError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused): // not let in, be it that a password or a database is being replaced
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, errShape), errors.Is(err, ErrRowTooLong), errors.Is(err, ErrUnavailable):
		return err
	case errors.As(err, &server):
		switch server.Code[:2] {
		case "08", "53", "57", "58": // connection, resources, shutdown and crash, system
			if server.Code == "57014" { // query_canceled: statement_timeout
				return fmt.Errorf("%w: %w", ErrTimeout, err)
			}
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		case "42":
			if server.Code == "42501" { // insufficient_privilege
				return fmt.Errorf("%w: %w", ErrNotAllowed, err)
			}
		case "25":
			if server.Code == "25001" { // active_sql_transaction: Settings.Local
				return fmt.Errorf("behind a connection pooler this role needs default_transaction_isolation = 'read committed': %w", err)
			}
		case "40": // serialization, deadlock, a standby's conflict: passes
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err // a defect of ours or of the schema
	default: // no answer, a broken one, or none in time
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

func pgCode(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// Stats is a snapshot for metrics.
type Stats struct {
	Fetched, Failed, TimedOut, Overloaded uint64
	Running, Queued                       int
	BreakerOpen                           bool
	Pool                                  PoolStats
	Standbys                              []StandbyStats
}

// Stats returns the counts since the start and the present state.
func (o *Origin) Stats() Stats {
	running, queued := o.primary.gate.load()
	s := Stats{
		Fetched: o.fetched.Load(), Failed: o.failed.Load(), TimedOut: o.timedOut.Load(), Overloaded: o.overloaded.Load(),
		Running: running, Queued: queued,
		BreakerOpen: o.primary.failing(),
		Pool:        poolStats(o.primary.pool),
	}
	for _, standby := range o.standbys {
		s.Standbys = append(s.Standbys, standby.stats())
	}
	return s
}
