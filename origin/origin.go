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

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
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

// fetch waits for the tenant's turn in the queue and runs a query. It fails without
// a query while the breaker is open. While the server gives no more connections, it waits in the
// queue for one that there is. refused is how often the query was refused a connection.
func (u *upstream) fetch(ctx context.Context, q *page.Query, query func(refused int) error) error {
	began, err := u.queue.enter(ctx, q.Tenant)
	for refused := 0; err == nil; refused++ {
		err = u.breaker.Do(func() error { return query(refused) })
		if !errors.Is(err, postgres.ErrNoneLeft) {
			u.queue.leave(q.Tenant, began)
			break
		}
		if refused > 0 { // what is not in the queue has the connection, as a check may
			time.Sleep(postgres.RetryPause)
		}
		began, err = u.queue.reenter(ctx, q.Tenant, began)
	}
	u.mu.Lock()
	u.fetches[outcomeOf(err)]++
	u.mu.Unlock()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", q.List.Name, err)
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
	lists    *list.Set
	standbys []*standby
	queried  func(server, outcome string, took time.Duration) // see New

	statements sync.Map // shape or rowsShape -> *postgres.Statement
}

// New makes an Origin that reads the lists from db, whose servers need not be reachable yet. queried is called
// after each query of a page, with the server that was asked and the outcome: ok, timeout or failed.
// It may be nil.
func New(db *postgres.Database, lists *list.Set, queried func(server, outcome string, took time.Duration)) *Origin {
	o := &Origin{upstream: newUpstream("primary", postgres.PrimaryCooldown, db.Pages.Pool), db: db, lists: lists, queried: queried}
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
	return o.fetchFromPrimary(ctx, &q, run, o.page(&q))
}

// FetchRows reads the rows of keys (list.Row.Key) that the query's list has, wherever it has them, from the primary: they
// are in the order of the keys, and a key without one has none (in a partitioned table one may have more). Without Read.End
// the keys behind that of the last row were not read: there was no more room, or a row follows that cannot be shown. run
// and errors are those of Fetch. ErrRow: the first row that the keys have cannot be shown.
func (o *Origin) FetchRows(ctx context.Context, q page.Query, keys []string, run string) (rows page.Read, err error) {
	of := rowsOfKeys(&q, keys)
	of.Statement = o.statement(rowsShape{q.List, q.Match})
	rows, err = o.fetchFromPrimary(ctx, &q, run, of)
	next := 0
	for i := range rows.Rows {
		key := rows.Rows[i].Key()
		for next < len(keys) && keys[next] != key {
			next++
		}
		if next == len(keys) && err == nil {
			return page.Read{}, fmt.Errorf("%s: %w: a row that was not asked for, or out of order", rowsOf(&q), postgres.ErrProtocol)
		}
	}
	return rows, err
}

// Verify reads from the primary what Fetch does, as far as rows can be shown, and compares their folds with those of the
// database. No client waits for it, so it runs only while the primary answers, no query waits and fewer than half of those that
// may run do. It is not counted. Else, and if there is no row that can be shown, it returns an error.
func (o *Origin) Verify(ctx context.Context, q page.Query, run string) (rows page.Read, err error) {
	if !o.breaker.IsClosed() || !o.queue.enterIdle() {
		return rows, page.ErrOverloaded
	}
	defer o.queue.leaveIdle()
	s, arguments := shapeOf(&q)
	s.Folds = true
	return o.readPrimary(ctx, &q, run, 0, inquiry{Statement: o.statement(s), arguments: arguments, rows: s.rows(q.Limit), whole: 1})
}

// readPrimary runs a statement on the primary, which has refused the query that many connections.
func (o *Origin) readPrimary(ctx context.Context, q *page.Query, run string, refused int, of inquiry) (rows page.Read, err error) {
	err = o.db.Pages.Read(ctx, run, func() (by fleet.Server, err error) {
		conn, err := postgres.Acquire(ctx, o.pool, refused)
		if err != nil {
			return by, err
		}
		defer conn.Release()
		rows, by, err = of.read(ctx, conn, q)
		return by, err
	})
	return rows, err
}

// fetchFromPrimary reads rows of the query from the primary.
func (o *Origin) fetchFromPrimary(ctx context.Context, q *page.Query, run string, of inquiry) (rows page.Read, err error) {
	err = o.fetch(ctx, q, func(refused int) error {
		began := time.Now()
		rows, err = o.readPrimary(ctx, q, run, refused, of)
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
	last := s.last.Load()
	if last != nil && errors.Is(*last, postgres.ErrOtherPrimary) && !errors.Is(*last, errNoStandby) { // of the latter, look knows better
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
	err = s.fetch(ctx, q, func(refused int) error {
		soon, cancel := context.WithTimeout(ctx, replayTimeout)
		defer cancel()
		conn, err := postgres.Acquire(soon, s.pool, refused)
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
		rows, by, err = o.page(q).read(ctx, conn, q)
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

// Check returns why a list cannot be read; of several errors, one that is no timeout. It searches each
// list in each order, for nobody's rows, without the queue and the breaker. A search needs every function
// of the schema.
func (o *Origin) Check(ctx context.Context) (failed error) {
	for _, l := range o.lists.Lists {
		for order := range l.Orders {
			err := o.check(ctx, shape{l, list.Shape{Order: order, Search: list.IndexedSearch, After: true}})
			if err != nil {
				if failed == nil || errors.Is(failed, page.ErrTimeout) {
					failed = fmt.Errorf("%s cannot be read: %w", l.Name, postgres.Classify(err))
				}
				break
			}
		}
	}
	return failed
}

// unseen is a term that the index of grams narrows down to nothing: a character of private use. One without grams would have
// the whole index read.
const unseen = "\U0010fffd"

// check runs a shape's statement for no row.
func (o *Origin) check(ctx context.Context, s shape) error {
	if len(s.list.Search) == 0 {
		s.Search = list.NoSearch
	}
	conn, err := postgres.AcquireWaiting(ctx, o.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	return o.statement(s).Query(ctx, conn.Conn(), s.arguments(nil, 1, []byte(unseen), nil, nil), func([][]byte) error { return nil })
}

// Probe pings the servers whose breaker is open: while all pages are served from caches,
// no query would notice that a server is back. It is called about every second.
func (o *Origin) Probe(ctx context.Context) {
	o.breaker.Probe(ctx, o.db.Pages.Ping)
	for _, s := range o.standbys {
		s.breaker.Probe(ctx, s.look)
	}
}

// inquiry is a statement, and what it is asked.
type inquiry struct {
	*postgres.Statement
	arguments [][]byte
	rows      int      // at most; one that returns less has returned all
	whole     int      // rows, behind which one that cannot be shown is left to a later inquiry
	keys      []string // that are asked for; nil = a page
}

// unread names the first row, which was not read.
func (r *inquiry) unread(q *page.Query) string {
	if r.keys != nil {
		return "the first row of keys from " + q.List.KeyText(r.keys[0]) + " on"
	}
	_, key, _ := q.List.ParsePosition(q.Order, q.After)
	return "the row after the key " + key
}

// page returns how the query's page is read.
func (o *Origin) page(q *page.Query) inquiry {
	s, arguments := shapeOf(q)
	return inquiry{Statement: o.statement(s), arguments: arguments, rows: s.rows(q.Limit), whole: q.Limit}
}

// read runs the statement and renders its rows.
func (r inquiry) read(ctx context.Context, conn *pgxpool.Conn, q *page.Query) (rows page.Read, by fleet.Server, err error) {
	size := 0
	rows = page.Read{Rows: make([]list.Row, 0, r.rows), End: true}
	err = r.Query(ctx, conn.Conn(), r.arguments, func(values [][]byte) error {
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
		row, err := q.List.Row(values[1:1+q.List.Selected], nil)
		if err != nil && len(rows.Rows) >= r.whole { // it is on a later page, which fails
			size, rows.End = page.MaxBytes+1, false
			return nil
		}
		if err != nil {
			return rowError(q, values[1:], err)
		}
		rows.Misfold = cmp.Or(rows.Misfold, misfold(q.List, &row, values[1+q.List.Selected:]))
		size += len(row.Text())
		rows.Rows = append(rows.Rows, row)
		return nil
	})
	var long *pgproto3.ExceededMaxBodyLenErr
	isLong := errors.As(err, &long)
	switch {
	case isLong && len(rows.Rows) > 0: // the page ends before the long row, and the next page fails
		rows.End, err = false, nil
	case isLong:
		err = fmt.Errorf("%s, %s: %w: it has %d bytes", rowsOf(q), r.unread(q), postgres.ErrRow, long.ActualBodyLen)
	case err == nil && by.StartedAt == "":
		err = fmt.Errorf("%w: without a snapshot", postgres.ErrProtocol)
	}
	rows.End = rows.End && len(rows.Rows) < r.rows
	return rows, by, err
}

// misfold compares the folds of a row with those of the database, if the statement returned them.
func misfold(l *list.List, row *list.Row, folds [][]byte) *page.Misfold {
	if len(folds) == 0 {
		return nil
	}
	own, known := list.Folds(l, row)
	if !known || own == string(folds[0]) {
		return nil
	}
	return &page.Misfold{Row: *row, Node: own, Database: string(folds[0])}
}

// rowError says what an error of a row means for the page, and which row it is: one that
// cannot be shown, or of a server that does not speak as Postgres does.
func rowError(q *page.Query, row [][]byte, err error) error {
	kind := postgres.ErrProtocol
	if errors.Is(err, list.ErrBounds) {
		kind = postgres.ErrRow
	}
	return fmt.Errorf("%s, key %.300s: %w: %w", rowsOf(q), row[q.List.Key], kind, err)
}

// rowsOf names the rows of a query for an error.
func rowsOf(q *page.Query) string {
	if q.List.Tenant < 0 {
		return q.List.Table.String()
	}
	return fmt.Sprintf("%s of tenant %s", q.List.Table, q.Tenant)
}

// statement returns the statement of a shape, which is made once.
func (o *Origin) statement(s interface{ statement() *postgres.Statement }) *postgres.Statement {
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
