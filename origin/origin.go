// Package origin reads pages from Postgres: the statement of a query, its rows, and which server
// answers.
//
//	Query ──► fair queue ──► breaker ──► one statement ──► rows appended as JSON ──► Read
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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/lists"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// upstream is one Postgres that pages are read from.
type upstream struct {
	server  string // primary, or the address of a standby
	pool    *pgxpool.Pool
	queue   *fairQueue
	breaker postgres.Breaker

	mu      sync.Mutex
	fetches map[string]uint64 // guarded by mu; since the start, by outcome
}

func newUpstream(server string, cooldown time.Duration, pool *pgxpool.Pool) upstream {
	return upstream{server: server, pool: pool, queue: newFairQueue(int(pool.Config().MaxConns)), breaker: postgres.NewBreaker(cooldown),
		fetches: map[string]uint64{}}
}

// fetch waits for the workspace's turn in the queue and runs a query. It fails without
// a query while the breaker is open. While the server gives no more connections, it waits in the
// queue for one that there is.
func (u *upstream) fetch(ctx context.Context, q *page.Query, query func() error) error {
	began, err := u.queue.enter(ctx, q.Workspace)
	for refused := 0; err == nil; refused++ {
		err = u.breaker.Do(query)
		if !errors.Is(err, postgres.ErrNoneLeft) {
			u.queue.leave(q.Workspace, began)
			break
		}
		if refused > 0 { // what is not in the queue has the connection, as a check may
			time.Sleep(postgres.RetryPause)
		}
		began, err = u.queue.reenter(ctx, q.Workspace, began)
	}
	u.mu.Lock()
	u.fetches[outcomeOf(err)]++
	u.mu.Unlock()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", q.Collection, err)
	}
	return nil
}

// outcomeOf names the outcome of a fetch in the metrics.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, page.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, page.ErrTimeout):
		return "timeout"
	case errors.Is(err, postgres.ErrLagging):
		return "lagging"
	case errors.Is(err, postgres.ErrOtherPrimary):
		return "wrong-server"
	}
	return "failed"
}

// Origin fetches pages.
type Origin struct {
	upstream
	db       *postgres.Database
	standbys []*standby
	queried  func(server, outcome string, took time.Duration) // see New

	statements sync.Map // shape -> *postgres.Statement
}

// New makes an Origin that reads from db, whose servers need not be reachable yet. queried is called
// after each query of a page, with the server that was asked and the outcome: ok, timeout or failed.
// It may be nil.
func New(db *postgres.Database, queried func(server, outcome string, took time.Duration)) *Origin {
	o := &Origin{upstream: newUpstream("primary", postgres.PrimaryCooldown, db.Pages.Pool), db: db, queried: queried}
	for _, pool := range db.Standbys {
		c := pool.Config().ConnConfig
		o.standbys = append(o.standbys, &standby{
			upstream: newUpstream(fmt.Sprintf("%s:%d", c.Host, c.Port), postgres.StandbyCooldown, pool), followed: db.Options.Followed, lineages: map[string]lineage{}})
	}
	return o
}

// HasStandbys says whether there are standbys to fetch from.
func (o *Origin) HasStandbys() bool { return len(o.standbys) > 0 }

// Fetch reads the rows of a page, and of pages behind it, from the primary. run is when that was
// started, as the last proof says; empty = there is no proof at the moment.
// ErrWrongServer: another server answered. ErrTimeout: the server ended the query
// (statement_timeout), or ctx ended first.
func (o *Origin) Fetch(ctx context.Context, q page.Query, run string) (rows page.Read, err error) {
	err = o.fetch(ctx, &q, func() error {
		began := time.Now()
		err := o.db.Pages.Read(ctx, run, func() (by fleet.Server, err error) {
			rows, by, err = o.readRows(ctx, &q, postgres.Acquire)
			return by, err
		})
		rows.Began, rows.Took = began, time.Since(began)
		if err != nil && ctx.Err() != nil && rows.Took < o.db.Options.QueryTimeout {
			return fmt.Errorf("%w: %w", postgres.ErrCanceled, err)
		}
		if errors.Is(err, postgres.ErrNoneLeft) { // nothing was asked
			return err
		}
		o.observe(&o.upstream, err, rows.Took)
		return err
	})
	return rows, err
}

// CheckStandby returns why no page is read from the standby of that index in
// Stats().Standbys; nil = pages are read from it.
func (o *Origin) CheckStandby(ctx context.Context, i int) error {
	s := o.standbys[i]
	if err := s.look(ctx); err != nil {
		return postgres.Classify(err)
	}
	if last := s.last.Load(); last != nil && errors.Is(*last, postgres.ErrOtherPrimary) {
		return *last
	}
	if !s.breaker.IsClosed() {
		return errors.New("it failed several times in a row")
	}
	return nil
}

// FetchFromStandby reads what Fetch does from a standby of the primary of the proof. It tries one
// standby after the other, as long as they are refused before they get the query. Errors: those
// of Fetch, ErrLagging, ErrOtherPrimary.
func (o *Origin) FetchFromStandby(ctx context.Context, q page.Query, p changefeed.Proof) (rows page.Read, err error) {
	ctx, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	for _, i := range rand.Perm(len(o.standbys)) {
		s := o.standbys[i]
		if !s.breaker.IsClosed() { // Probe tries it: a page need not wait for that
			err = page.ErrUnavailable
			continue
		}
		rows, err = o.fetchFrom(ctx, s, &q, &p)
		last := err
		s.last.Store(&last)
		if !errors.Is(err, postgres.ErrLagging) && !errors.Is(err, postgres.ErrOtherPrimary) {
			break
		}
	}
	return rows, err
}

func (o *Origin) fetchFrom(ctx context.Context, s *standby, q *page.Query, p *changefeed.Proof) (rows page.Read, err error) {
	err = s.fetch(ctx, q, func() error {
		soon, cancel := context.WithTimeout(ctx, replayTimeout)
		defer cancel()
		conn, err := postgres.Acquire(soon, s.pool)
		if errors.Is(err, postgres.ErrNoneLeft) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", page.ErrUnavailable, err)
		}
		defer conn.Release()
		pos, at, err := s.replayed(soon, conn)
		if err != nil {
			return err
		}
		if err := s.admit(pos, at, p); err != nil {
			return err
		}
		began := time.Now()
		var by fleet.Server
		rows, by, err = o.read(ctx, conn, q)
		o.observe(&s.upstream, err, time.Since(began))
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", page.ErrUnavailable, err)
			}
			return err
		}
		if by.StartedAt != pos.StartedAt || by.Timeline != 0 { // a pooler led to two servers, or it was promoted
			return postgres.ErrOtherPrimary
		}
		if err := o.db.Options.Followed.RefuseDatabase(by); err != nil {
			return fmt.Errorf("%w: %w", postgres.ErrOtherPrimary, err)
		}
		rows.Began, rows.Took = began, time.Since(began)
		rows.At = changefeed.ReadPoint{Timeline: pos.TimelineName(), LSN: pos.LSN, Through: rows.At.Through}
		return nil
	})
	return rows, err
}

// observe reports a query to queried.
func (o *Origin) observe(u *upstream, err error, took time.Duration) {
	if o.queried != nil {
		o.queried(u.server, outcomeOf(postgres.Classify(err)), took)
	}
}

// Check returns why a collection cannot be read; of several errors, one that is no timeout. It
// searches each collection in each order, for a workspace that does not exist, without the queue
// and the breaker. A search needs every function of the schema.
func (o *Origin) Check(ctx context.Context) (failed error) {
	for _, c := range lists.All {
		for _, order := range c.Orders() {
			q := page.Query{Collection: c, Sort: order, Search: "none", Limit: 1, After: (&lists.Row{}).SetTexts("N", "").Position(order)}
			if _, _, err := o.readRows(ctx, &q, postgres.AcquireWaiting); err != nil {
				if failed == nil || errors.Is(failed, page.ErrTimeout) {
					failed = fmt.Errorf("%s cannot be read: %w", c, postgres.Classify(err))
				}
				break
			}
		}
	}
	return failed
}

// Probe pings the servers whose breaker is open: while all pages are served from caches,
// no query would notice that a server is back. It is called about every second.
func (o *Origin) Probe(ctx context.Context) {
	o.breaker.Probe(ctx, o.db.Pages.Ping)
	for _, s := range o.standbys {
		s.breaker.Probe(ctx, s.look)
	}
}

// readRows reads the query's rows from the primary, on a connection that acquire takes.
func (o *Origin) readRows(ctx context.Context, q *page.Query,
	acquire func(context.Context, *pgxpool.Pool) (*pgxpool.Conn, error)) (page.Read, fleet.Server, error) {
	conn, err := acquire(ctx, o.pool)
	if err != nil {
		return page.Read{}, fleet.Server{}, err
	}
	defer conn.Release()
	return o.read(ctx, conn, q)
}

// read runs the query's statement and renders its rows.
func (o *Origin) read(ctx context.Context, conn *pgxpool.Conn, q *page.Query) (rows page.Read, by fleet.Server, err error) {
	shape, arguments := shapeOf(q)
	size, asked := 0, shape.rows(q.Limit)
	rows = page.Read{Rows: make([]lists.Row, 0, asked), End: true}
	err = o.statement(shape).Query(ctx, conn.Conn(), arguments, func(values [][]byte) error {
		if values[0] != nil { // the read point
			snapshot, rest, _ := strings.Cut(string(values[0]), "@")
			through, server, _ := strings.Cut(rest, "@")
			by = postgres.ParseServer(server, conn.Conn().PgConn())
			rows.At.StartedAt = by.StartedAt
			var badSnapshot, badLSN error
			rows.At.Snapshot, badSnapshot = changefeed.ParseSnapshot(snapshot)
			rows.At.Through, badLSN = strconv.ParseUint(through, 10, 64)
			if err := cmp.Or(badSnapshot, badLSN); err != nil {
				return fmt.Errorf("%w: %w", postgres.ErrProtocol, err)
			}
			return nil
		}
		if size > page.MaxBytes { // enough for the first page
			rows.End = false
			return nil
		}
		row, err := q.Collection.Row(values[1:], 0)
		if err != nil && len(rows.Rows) >= q.Limit { // it is on a later page, which fails
			size, rows.End = page.MaxBytes+1, false
			return nil
		}
		if err != nil {
			return rowError(q, values[1:], err)
		}
		size += len(row.Text())
		rows.Rows = append(rows.Rows, row)
		return nil
	})
	var long *pgproto3.ExceededMaxBodyLenErr
	isLong := errors.As(err, &long)
	switch {
	case isLong && len(rows.Rows) > 0: // the page ends before the long row, and the next page fails
		rows.End, err = false, nil
	case isLong: // it has not been read: only the id before it is known
		_, id, _ := q.Sort.Parse(nil, q.After)
		err = fmt.Errorf("%s of workspace %s, the row after id %s: %w: it has %d bytes", q.Collection, q.Workspace, id, postgres.ErrRow, long.ActualBodyLen)
	case err == nil && by.StartedAt == "":
		err = fmt.Errorf("%w: without a snapshot", postgres.ErrProtocol)
	}
	rows.End = rows.End && len(rows.Rows) < asked
	return rows, by, err
}

// rowError says what an error of a row means for the page, and which row it is: one that
// cannot be shown, or of a server that does not speak as Postgres does.
func rowError(q *page.Query, row [][]byte, err error) error {
	kind := postgres.ErrProtocol
	if errors.Is(err, lists.ErrBounds) {
		kind = postgres.ErrRow
	}
	var id uuid.UUID
	copy(id[:], row[0])
	return fmt.Errorf("%s of workspace %s, id %s: %w: %w", q.Collection, q.Workspace, id, kind, err)
}

func (o *Origin) statement(s shape) *postgres.Statement {
	if known, ok := o.statements.Load(s); ok {
		return known.(*postgres.Statement)
	}
	known, _ := o.statements.LoadOrStore(s, s.statement())
	return known.(*postgres.Statement)
}

// Stats is a snapshot for metrics.
type Stats struct {
	ServerStats     // of the primary
	Running, Queued int
	Pool            *pgxpool.Stat
	Standbys        []ServerStats
}

// ServerStats are the counts of a server since the start, and its present state.
type ServerStats struct {
	Server      string            // primary, or the address of a standby
	Fetches     map[string]uint64 // by outcome: ok, failed, timeout, overloaded; of a standby also lagging and wrong-server
	BreakerOpen bool
}

func (u *upstream) stats() ServerStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return ServerStats{u.server, maps.Clone(u.fetches), !u.breaker.IsClosed()}
}

// Stats returns the counts since the start and the present state.
func (o *Origin) Stats() Stats {
	s := Stats{ServerStats: o.stats(), Pool: o.pool.Stat()}
	s.Running, s.Queued = o.queue.load()
	for _, standby := range o.standbys {
		s.Standbys = append(s.Standbys, standby.stats())
	}
	return s
}
