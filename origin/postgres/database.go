package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sony/gobreaker/v2"

	"listedge/internal/fleet"
)

// Options say how a node uses Postgres.
type Options struct {
	URL            string
	ReplicationURL string          // of the same database, without a pooler, by which changes are followed; empty = URL
	Replicas       []string        // URLs of hot standbys, which pages are read from where they are fresh enough
	Connections    int             // for pages, to each server; keys and usage have connections of their own
	QueryTimeout   time.Duration   // statement_timeout of a page
	Followed       *fleet.Followed // judges which server has answered; nil = nothing is known of it
	// Proven returns when the followed primary was started; empty = there is no proof of its state
	// at the moment. nil = there never is.
	Proven func() string
	Dial   pgconn.DialFunc // opens connections; nil = by TCP
}

// Keys have connections of their own, so that many misses at once do not delay the look-up
// of a key.
const (
	KeyConnections = 2
	KeyTimeout     = 800 * time.Millisecond // statement_timeout of a key's look-up
)

// What a node writes, the usage of keys, has a connection of its own, so that no page and
// no key waits for it.
const (
	UsageConnections = 1
	UsageTimeout     = 2 * time.Second // statement_timeout of a write
)

// Database holds a node's connections. All but that of Usage are read-only.
type Database struct {
	Pages, Keys, Usage *Primary
	Standbys           []*pgxpool.Pool // to Options.Replicas
	Options            Options

	pools   []*pgxpool.Pool         // those of Pages, Keys, Usage and Standbys
	refusal atomic.Pointer[refusal] // the last one of the primary's address, until noteAnswer forgets it; nil = none
}

// Open makes the pools. A malformed URL is an error, an unreachable server is not.
func Open(ctx context.Context, o Options) (*Database, error) {
	if o.Followed == nil {
		o.Followed = &fleet.Followed{}
	}
	if o.Proven == nil {
		o.Proven = func() string { return "" }
	}
	db := &Database{Options: o}
	var failed error
	open := func(url string, target pgconn.ValidateConnectFunc, connections, idle int, settings Settings) *pgxpool.Pool {
		pool, err := openPool(ctx, url, target, connections, idle, settings, o.Dial)
		if err != nil {
			failed = cmp.Or(failed, err)
		} else {
			db.pools = append(db.pools, pool)
		}
		return pool
	}
	primary := func(connections, idle int, settings Settings) *Primary {
		return &Primary{Pool: open(o.URL, db.toFollowed, connections, idle, settings), db: db}
	}
	reading, writing := SessionSettings(o.QueryTimeout), SessionSettings(UsageTimeout)
	writing["default_transaction_read_only"] = "off"
	db.Pages = primary(o.Connections, 0, reading)
	db.Keys = primary(KeyConnections, 1, SessionSettings(KeyTimeout))
	db.Usage = primary(UsageConnections, 0, writing)
	for _, url := range o.Replicas {
		db.Standbys = append(db.Standbys, open(url, toStandby, o.Connections, 1, reading))
	}
	if failed != nil {
		_ = db.Close(ctx)
		return nil, failed
	}
	return db, nil
}

// maxIdle is how long a connection that is not used stays open.
const maxIdle = time.Minute

// openPool makes a pool of at most connections, of which it keeps idle open. It does not wait
// for one, so an unreachable server is no error here.
func openPool(ctx context.Context, url string, target pgconn.ValidateConnectFunc, connections, idle int, settings Settings,
	dial pgconn.DialFunc) (*pgxpool.Pool, error) {
	config, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	config.MinIdleConns = int32(idle)
	config.MaxConnIdleTime = maxIdle
	config.PingTimeout = PingTimeout
	config.ConnConfig.MaxProtocolMessageBodyLen = maxMessage
	prepareConfig(config.ConnConfig, target, settings)
	if dial != nil {
		config.ConnConfig.DialFunc = dial
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// Close ends all connections. It waits for running queries until ctx ends: a server that
// hangs would keep it waiting.
func (db *Database) Close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() { // ends with the last connection, at the latest when TCP times out
		defer close(closed)
		var closing sync.WaitGroup
		for _, pool := range db.pools {
			closing.Go(pool.Close)
		}
		closing.Wait()
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the database's connections: %w", ctx.Err())
	}
}

// toFollowed is toPrimary, which of several servers prefers one that is not refused: an old primary
// may run, too. If there is no other, it is used, and Read says why its answers are refused.
func (db *Database) toFollowed(ctx context.Context, conn *pgconn.PgConn) error {
	if err := toPrimary(ctx, conn); err != nil {
		return err
	}
	results, err := conn.Exec(ctx, "SELECT "+ServerSQL).ReadAll()
	if err == nil && db.Options.Followed.Refuse(ParseServer(string(results[0].Rows[0][0]), conn), "") != nil {
		err = pgconn.ValidateConnectTargetSessionAttrsPreferStandby(ctx, conn) // which it is not
	}
	return err
}

// refusal is why an answer of the primary's address was refused, and when.
type refusal struct {
	why error
	at  time.Time
}

// refusedFor is how long WrongServer remembers a refusal, whatever is answered meanwhile: one
// address may lead to several servers in turn.
const refusedFor = time.Second

// WrongServer is why the answers of the primary's address are refused: another
// server gives them. nil = they are not.
func (db *Database) WrongServer() error {
	if last := db.refusal.Load(); last != nil {
		return last.why
	}
	return nil
}

// noteAnswer keeps for WrongServer what Primary.Read returned.
func (db *Database) noteAnswer(err error) {
	if errors.Is(err, ErrWrongServer) {
		db.refusal.Store(&refusal{err, time.Now()})
	} else if last := db.refusal.Load(); err == nil && last != nil && time.Since(last.at) > refusedFor {
		db.refusal.CompareAndSwap(last, nil)
	}
}

// Primary reads through a pool of connections whose address should lead to the primary.
// It checks that it does.
type Primary struct {
	Pool *pgxpool.Pool

	db    *Database
	reset atomic.Int64 // when resetPool last closed all connections, in nanoseconds since 1970
}

// Read reads from the primary. The function read uses connections of the pool and
// returns which server answered. startedAt is what Options.Proven returned when the
// page or the key was requested.
//
// After a failover, connections may still lead to the old primary, which may not know
// that it was replaced. If an answer is refused, Read reads once more on new
// connections. It reads again, too, if the connection has ended.
func (p *Primary) Read(ctx context.Context, startedAt string, read func() (fleet.Server, error)) error {
	if !p.db.Options.Followed.AwaitTimeline(ctx) {
		return fmt.Errorf("%w: it is not known yet which timeline the fleet follows", ErrUnavailable)
	}
	by, err := read()
	for n := int32(0); hasEnded(ctx, err) && n < p.Pool.Stat().MaxConns(); n++ { // all may have ended
		by, err = read()
	}
	if err == nil && p.db.Options.Followed.Refuse(by, startedAt) != nil {
		p.resetPool()
		by, err = read()
		if err == nil {
			if why := p.db.Options.Followed.Refuse(by, startedAt); why != nil {
				err = fmt.Errorf("%w: %w", ErrWrongServer, why)
			}
		}
	}
	p.db.noteAnswer(err)
	return err
}

// hasEnded says whether a query failed because its connection has ended, as all do when a server
// is restarted. A server that cannot be connected to is another matter, and so is an answer that
// cannot be read.
func hasEnded(ctx context.Context, err error) bool {
	var connecting *pgconn.ConnectError
	var known kind
	code := Code(err)
	return err != nil && ctx.Err() == nil && !errors.As(err, &known) && !errors.As(err, &connecting) &&
		(code == "" || strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "08")) // 08P01: PgBouncer has ended it
}

// Use runs a function with a connection of the pool, which it waits for.
func (p *Primary) Use(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := AcquireWaiting(ctx, p.Pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	return use(conn.Conn())
}

// Ping pings the server that a connection leads to.
func (p *Primary) Ping(ctx context.Context) error {
	return p.Use(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// Identify asks which server a connection leads to.
func (p *Primary) Identify(ctx context.Context) (s fleet.Server, err error) {
	err = p.Use(ctx, func(conn *pgx.Conn) error { s, err = Identify(ctx, conn); return err })
	return s, err
}

// Write writes in one transaction, whatever settings the role or a pooler has. Whether the server
// is the followed primary is asked first, because a write cannot be refused afterwards.
func (p *Primary) Write(ctx context.Context, write func(pgx.Tx) error) error {
	err := p.Read(ctx, p.db.Options.Proven(), func() (by fleet.Server, err error) {
		err = p.Use(ctx, func(conn *pgx.Conn) error {
			var text string
			err := conn.QueryRow(ctx, `SELECT `+ServerSQL, pgx.QueryExecModeExec).Scan(&text)
			by = ParseServer(text, conn.PgConn())
			return err
		})
		return by, err
	})
	if err == nil {
		err = pgx.BeginTxFunc(ctx, p.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			if settings := localSettings(tx.Conn().PgConn()); settings != "" {
				if _, err := tx.Exec(ctx, settings, pgx.QueryExecModeExec); err != nil {
					return err
				}
			}
			return write(tx)
		})
	}
	return Classify(err)
}

// resetPool closes all connections, at most once in a cooldown. While the address leads
// to the wrong server, new connections would lead there, too.
func (p *Primary) resetPool() {
	now, last := time.Now().UnixNano(), p.reset.Load()
	if now-last > int64(PrimaryCooldown) && p.reset.CompareAndSwap(last, now) {
		p.Pool.Reset()
	}
}

// ErrNoneLeft: the server gives this node no further connection, and those that it has are in use,
// or many ask at once. It says nothing bad of the server.
var ErrNoneLeft = fmt.Errorf("%w: the server gives no more connections", ErrOverloaded)

// crowdedTries is how often a node that has no connection asks a full server for one before that is
// an outage: when many connect at once, those that it refuses count until they have gone.
const crowdedTries = 10

// Acquire takes a connection for one that was refused it so often. Errors: ErrNoneLeft, if one may
// be free soon.
func Acquire(ctx context.Context, pool *pgxpool.Pool, refused int) (*pgxpool.Conn, error) {
	conn, err := pool.Acquire(ctx)
	if isRefusedAsTooMany(err) && (pool.Stat().TotalConns() > 0 || refused+1 < crowdedTries) {
		err = fmt.Errorf("%w: %w", ErrNoneLeft, err)
	}
	return conn, err
}

// isRefusedAsTooMany says whether the server, or the limit of the role or of the database, or
// PgBouncer has refused a connection because there are too many.
func isRefusedAsTooMany(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "53300" || // too_many_connections
		// PgBouncer: max_client_conn, max_db_client_connections, max_user_client_connections
		server.Code == "08P01" && strings.Contains(server.Message, "_client_conn"))
}

// RetryPause is how long to wait before a connection is asked for again, if what uses the
// others is not known.
const RetryPause = 10 * time.Millisecond

// AcquireWaiting takes a connection, and waits for one that the pool has while the server gives no
// further one. It asks again and again, because a pool does not say when one becomes free; so
// few at a time may use it. Queries of pages wait in their queue.
func AcquireWaiting(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for refused := 0; ; refused++ {
		conn, err := Acquire(ctx, pool, refused)
		if !errors.Is(err, ErrNoneLeft) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(RetryPause):
		}
	}
}

// startedSQL is when the server was started, timelineSQL its timeline; 0 = it is in recovery and
// does not know it. The control file would name a new timeline too late.
const (
	startedSQL  = `extract(epoch FROM pg_postmaster_start_time())::text`
	timelineSQL = `CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END`
)

// ServerSQL is an expression that identifies the answering server and its database:
// <startedAt>@<timeline>@<database>. ParseServer reads it.
const ServerSQL = startedSQL + ` || '@' || ` + timelineSQL + ` || '@' || current_database()`

// ParseServer reads what ServerSQL rendered on the connection. It knows the name of the
// database, and not the rest of the identity.
func ParseServer(text string, conn *pgconn.PgConn) (s fleet.Server) {
	var timeline string
	s.StartedAt, text, _ = strings.Cut(text, "@")
	timeline, s.Name, _ = strings.Cut(text, "@")
	number, _ := strconv.ParseUint(timeline, 10, 32) // 0 if it is none
	s.Timeline, s.Address = uint32(number), conn.Conn().RemoteAddr()
	return s
}

// Identify asks a connection, or a pool, which server answers. The identity lasts as long as
// the files of the database, whatever its host.
func Identify(ctx context.Context, of interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (s fleet.Server, err error) {
	err = of.QueryRow(ctx, `SELECT system_identifier::text, oid, datname::text, `+timelineSQL+`, `+startedSQL+`
		FROM pg_control_system(), pg_database WHERE datname = current_database()`, pgx.QueryExecModeExec).
		Scan(&s.System, &s.Database, &s.Name, &s.Timeline, &s.StartedAt)
	if err != nil {
		return s, fmt.Errorf("identify the database: %w", Classify(err))
	}
	return s, nil
}

// WALPosition is how far a standby has replayed WAL. StandbySQL reads it.
type WALPosition struct {
	fleet.Server        // Timeline is that of the WAL it receives; without Name
	LSN          uint64 // what it has replayed
}

// ScanWALPosition reads a row of StandbySQL.
func ScanWALPosition(row pgx.Row) (p WALPosition, err error) {
	err = row.Scan(&p.System, &p.Timeline, &p.LSN, &p.StartedAt)
	return p, err
}

// StandbySQL reads a standby's WALPosition: the server that it follows, and the LSN up
// to which it has replayed. It returns no row if the server is not a standby, receives
// no WAL, or does not let this user see its WAL receiver.
//
// The timeline is that of the WAL receiver. The control file names a new timeline only
// minutes later. Meanwhile, WAL of another primary that the standby has replayed would
// be taken for WAL of the old one. A standby that has replayed more of the old timeline
// than the new one contains cannot change to the new one, so its receiver never names
// it.
const StandbySQL = `
SELECT system_identifier::text, r.received_tli::int8, (pg_last_wal_replay_lsn() - '0/0')::int8, ` + startedSQL + `
FROM pg_control_system(), pg_stat_wal_receiver r
WHERE pg_is_in_recovery() AND pg_last_wal_replay_lsn() IS NOT NULL AND r.received_tli IS NOT NULL`

// Cooldowns of breakers: how long a failed server gets no queries. Then one query tries the
// primary; if that fails, it costs one caller its time limit. The cooldown of the primary is
// short, because nothing replaces the primary and a restart takes about that long. A standby is
// replaced by the primary, so its cooldown may be longer, and only Probe tries it.
const (
	PrimaryCooldown = 200 * time.Millisecond
	StandbyCooldown = time.Second
)

// Breaker opens after three failures in a row: the server gets no queries for a cooldown.
// Only ErrUnavailable counts as a failure, because the slow search of one tenant must not
// stop the queries of others. ErrWrongServer does not count, so that queries need not wait
// for a cooldown once the address leads to the right server.
type Breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
}

// NewBreaker returns a closed breaker.
func NewBreaker(cooldown time.Duration) Breaker {
	return Breaker{gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Timeout:      cooldown,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
		IsSuccessful: func(err error) bool { return !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrWrongServer) },
		IsExcluded:   func(err error) bool { return errors.Is(err, ErrCanceled) || errors.Is(err, ErrNoneLeft) },
	})}
}

// Do runs the query unless the breaker is open. It classifies the query's error.
func (b Breaker) Do(query func() error) error {
	_, err := b.circuit.Execute(func() (struct{}, error) { return struct{}{}, Classify(query()) })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) { // their texts would read as if there were too many clients
		return fmt.Errorf("%w: its last queries failed, and it is tried by one at a time", ErrUnavailable)
	}
	return err
}

// IsClosed says whether the server gets all queries.
func (b Breaker) IsClosed() bool { return b.circuit.State() == gobreaker.StateClosed }

// Probe asks the server if the cooldown is over. While all pages are served from caches,
// there is no query that would find out that the server is back.
func (b Breaker) Probe(ctx context.Context, ask func(context.Context) error) {
	if b.circuit.State() == gobreaker.StateHalfOpen {
		ctx, cancel := context.WithTimeout(ctx, PingTimeout)
		defer cancel()
		_ = b.Do(func() error { return ask(ctx) })
	}
}
