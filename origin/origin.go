// Package origin answers list queries from Postgres: the query and its cursor, the
// statement, the rows' JSON, and which server the page is read from.
//
//	Query ──► fair queue ──► breaker ──► one statement ──► rows appended as JSON ──► Page
//	          (bounded)      (a failing   (keyset, index    (no Go values
//	                          server       order, limit+1)   in between)
//	                          fails fast)
//
// The primary and each standby have a queue and a breaker of their own.
//
// A page is one READ COMMITTED statement whose cost depends on the page's
// size and not on its place in the list.
package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

// Errors of Fetch. All but ErrNotAllowed and ErrSchema are temporary. postgres/errors.go gives
// an error its kind.
var (
	ErrUnavailable = postgres.ErrUnavailable
	ErrOverloaded  = postgres.ErrOverloaded
	ErrTimeout     = postgres.ErrTimeout
	ErrNotAllowed  = postgres.ErrNotAllowed
	ErrSchema      = postgres.ErrSchema
	ErrWrongServer = postgres.ErrWrongServer
)

// keepBuffer bounds the buffers that are kept for the next page, in bytes.
const keepBuffer = 1 << 20

// upstream is one Postgres that pages are read from.
type upstream struct {
	pool    *pgxpool.Pool
	queue   *fairQueue
	breaker postgres.Breaker
	took    latencies
}

func newUpstream(name string, cooldown time.Duration, pool *pgxpool.Pool) upstream {
	return upstream{pool: pool, queue: newFairQueue(int(pool.Config().MaxConns)), breaker: postgres.NewBreaker(name, cooldown)}
}

// fetch waits for the workspace's turn in the queue and runs a query. It fails without
// a query while the breaker is open.
func (u *upstream) fetch(ctx context.Context, q *Query, query func() error) error {
	began, err := u.queue.enter(ctx, q.Workspace)
	if err == nil {
		defer u.queue.leave(q.Workspace, began)
		err = u.breaker.Do(query)
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", q.Collection, err)
	}
	return nil
}

// Origin fetches pages.
type Origin struct {
	upstream
	primary  *postgres.Primary // checks that the primary has answered
	standbys []*standby
	next     atomic.Uint32 // the standby that is tried first
	timeout  time.Duration // statement_timeout: the server ends a query after it
	readers  sync.Pool     // *pageReader, for their buffers

	statements sync.Map // shape -> *postgres.Statement

	fetched, failed, timedOut, overloaded atomic.Uint64
}

// New makes an Origin that reads from db. The servers need not be reachable yet.
func New(db *postgres.Database) *Origin {
	o := &Origin{
		upstream: newUpstream("pages", postgres.PrimaryCooldown, db.Pages.Pool),
		primary:  db.Pages, timeout: db.Options.QueryTimeout,
		readers: sync.Pool{New: func() any { return new(pageReader) }},
	}
	for _, pool := range db.Standbys {
		o.standbys = append(o.standbys, newStandby(pool, db.Followed))
	}
	return o
}

// HasStandbys says whether there are standbys to fetch from.
func (o *Origin) HasStandbys() bool { return len(o.standbys) > 0 }

// Fetch reads one page from the primary. run is the run of the primary that is known
// from a proof; empty = there is no proof at the moment.
// ErrWrongServer: another server answered. ErrTimeout: the server ended the query
// (statement_timeout), or ctx ended first.
func (o *Origin) Fetch(ctx context.Context, q Query, run string) (page Page, err error) {
	var began time.Time
	var took time.Duration
	err = o.fetch(ctx, &q, func() error {
		began = time.Now()
		err := o.primary.Read(ctx, run, func() (by postgres.Server, err error) {
			page, by, err = o.readPage(ctx, &q)
			return by, err
		})
		took = time.Since(began)
		if err != nil && ctx.Err() != nil && took < o.timeout {
			return fmt.Errorf("%w: %w", postgres.ErrCanceled, err)
		}
		o.took.observe(postgres.Classify(err), took)
		return err
	})
	page.Began, page.Took = began, took
	switch {
	case err == nil:
		o.fetched.Add(1)
		return page, nil
	case errors.Is(err, ErrOverloaded):
		o.overloaded.Add(1)
	case errors.Is(err, ErrTimeout):
		o.timedOut.Add(1)
	default:
		o.failed.Add(1)
	}
	return Page{Began: began, Took: took}, err
}

// Check returns which collections cannot be read, and why. It reads them without the
// queue and the breaker, for a workspace that does not exist. Its statement uses every
// function of the schema.
func (o *Origin) Check(ctx context.Context) error {
	var errs []error
	for _, c := range lists.All {
		q := Query{Collection: c, Sort: lists.ByName, Search: "none", Limit: 1, After: Position{Set: true, Name: "n", ID: uuid.Max}}
		if _, _, err := o.readPage(ctx, &q); err != nil {
			errs = append(errs, fmt.Errorf("%s cannot be read: %w", c, postgres.Classify(err)))
		}
	}
	late := func(err error) bool { return errors.Is(err, postgres.ErrTimeout) }
	if slices.ContainsFunc(errs, func(err error) bool { return !late(err) }) { // the other error is the cause to report
		errs = slices.DeleteFunc(errs, late)
	}
	return errors.Join(errs...)
}

// Probe pings the servers whose breaker is open: while all pages are served from caches,
// no query would notice that a server is back. It is called about every second.
func (o *Origin) Probe(ctx context.Context) {
	o.breaker.Probe(ctx, o.pool)
	for _, s := range o.standbys {
		s.probe(ctx)
	}
}

// Busy says whether queries wait for the primary or soon would. Then no page should be
// fetched in advance.
func (o *Origin) Busy() bool {
	running, waiting := o.queue.load()
	return waiting > 0 || 2*running > o.queue.slots
}

// readPage reads the page from the primary.
func (o *Origin) readPage(ctx context.Context, q *Query) (Page, postgres.Server, error) {
	r, err := o.open(ctx, &o.upstream)
	if err != nil {
		return Page{}, postgres.Server{}, err
	}
	defer o.close(r)
	return o.read(ctx, r, q)
}

// pageReader is a connection with the buffers of the page that is read on it.
type pageReader struct {
	conn    *pgxpool.Conn
	page    []byte    // the page's JSON so far
	last    [3][]byte // of the page's last row so far: id, name, created_at
	showing showing
}

func (o *Origin) open(ctx context.Context, u *upstream) (*pageReader, error) {
	r := o.readers.Get().(*pageReader)
	var err error
	if r.conn, err = u.pool.Acquire(ctx); err != nil {
		o.readers.Put(r)
		return nil, err
	}
	return r, nil
}

func (o *Origin) close(r *pageReader) {
	r.conn.Release()
	r.conn = nil
	if cap(r.page) > keepBuffer {
		r.page = nil
	}
	o.readers.Put(r)
}

// read runs the page's statement and encodes its rows.
func (o *Origin) read(ctx context.Context, r *pageReader, q *Query) (page Page, by postgres.Server, err error) {
	shape, arguments := shapeOf(q)
	r.page = append(r.page[:0], pageHead...)
	r.showing = showing{ids: r.showing.ids[:0]}
	full, more := false, false
	err = o.statement(shape).Query(ctx, r.conn.Conn(), arguments, func(row [][]byte) (err error) {
		readPoint, row := row[0], row[1:]
		if readPoint != nil {
			snapshot, server, _ := strings.Cut(string(readPoint), "@")
			by = postgres.ParseServer(server, r.conn.Conn())
			page.Snapshot, page.Run = snapshot, by.Run
			return nil
		}
		if full || page.Rows == q.Limit {
			if !more {
				r.showing.endBefore(row, q.Sort)
			}
			more = true // this row belongs to the next page
			return nil
		}
		before := len(r.page)
		if page.Rows > 0 {
			r.page = append(r.page, ',')
		}
		if r.page, err = q.Collection.AppendText(r.page, row); err != nil {
			return nameRow(q, row, rowError(err))
		}
		if full = len(r.page) > maxPage; full && page.Rows > 0 {
			r.showing.endBefore(row, q.Sort)
			r.page, more = r.page[:before], true // the next page begins with it
			return nil
		}
		page.Rows++
		r.showing.add(row, q.Sort)
		for i, at := range [...]int{0, 1, len(row) - 1} {
			r.last[i] = append(r.last[i][:0], row[at]...)
		}
		return nil
	})
	if _, long := err.(*postgres.LongRowError); long && page.Rows > 0 {
		more, err = true, nil // the page ends before the long row, and the next page fails
		r.showing.unknown = true
	}
	if err == nil && page.Snapshot == "" {
		err = fmt.Errorf("%w: without a snapshot", postgres.ErrProtocol)
	}
	if err != nil {
		return Page{}, by, locateLongRow(q, err)
	}
	if more {
		next := *q
		next.After = positionAfter(r.last[:], q.Sort)
		page.NextCursor = string(next.AppendCursor(nil))
	}
	r.page = appendPageEnd(r.page, page.NextCursor)
	page.Body = bytes.Clone(r.page)
	page.Shown = r.showing.shown()
	return page, by, nil
}

// locateLongRow turns a LongRowError into an ErrRow that says where the row is: the row itself
// has not been read.
func locateLongRow(q *Query, err error) error {
	if long := (*postgres.LongRowError)(nil); errors.As(err, &long) {
		return fmt.Errorf("%s of workspace %s, the row after id %s: %w: it has %d bytes", q.Collection, q.Workspace, q.After.ID, postgres.ErrRow, long.Size)
	}
	return err
}

// nameRow adds to an error the row that it is about.
func nameRow(q *Query, row [][]byte, err error) error {
	var id uuid.UUID
	copy(id[:], row[0])
	return fmt.Errorf("%s of workspace %s, id %s: %w", q.Collection, q.Workspace, id, err)
}

func (o *Origin) statement(s shape) *postgres.Statement {
	if known, ok := o.statements.Load(s); ok {
		return known.(*postgres.Statement)
	}
	known, _ := o.statements.LoadOrStore(s, s.statement(postgres.SessionSettings(o.timeout)))
	return known.(*postgres.Statement)
}

// Stats is a snapshot for metrics.
type Stats struct {
	Fetched, Failed, TimedOut, Overloaded uint64
	Running, Queued                       int
	BreakerOpen                           bool
	Pool                                  postgres.PoolStats
	Standbys                              []StandbyStats
	Latencies                             []Latency
}

// Stats returns the counts since the start and the present state.
func (o *Origin) Stats() Stats {
	running, queued := o.queue.load()
	s := Stats{
		Fetched: o.fetched.Load(), Failed: o.failed.Load(), TimedOut: o.timedOut.Load(), Overloaded: o.overloaded.Load(),
		Running: running, Queued: queued,
		BreakerOpen: !o.breaker.IsClosed(),
		Pool:        postgres.StatsOf(o.pool),
		Latencies:   o.took.stats("primary"),
	}
	for _, standby := range o.standbys {
		s.Standbys = append(s.Standbys, standby.stats())
		s.Latencies = append(s.Latencies, standby.took.stats(standby.host)...)
	}
	return s
}
