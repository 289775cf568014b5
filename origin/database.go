package origin

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/rawconn"
	"listedge/origin/postgres"
)

// DatabaseOptions say how a node uses Postgres.
type DatabaseOptions struct {
	URL          string
	Primary      string        // URL of the same database that no pooler answers, by which changes are followed; empty = URL
	Replicas     []string      // URLs of hot standbys, which pages are read from where they are fresh enough
	Connections  int           // for pages, to each server; keys have KeyConnections of their own
	QueryTimeout time.Duration // statement_timeout of a page
	// TimelineKnown is closed when answers can be judged: no page and no key is read
	// before. nil = at once.
	TimelineKnown <-chan struct{}
}

// KeyConnections are apart from those of pages, so that a storm of misses
// never keeps a key from being looked up.
const KeyConnections = 2

const (
	connectTimeout = 2 * time.Second
	pingTimeout    = time.Second
	pingAfter      = time.Second            // without a question
	keyTimeout     = 800 * time.Millisecond // statement_timeout of a key's look-up
)

// Database holds a node's connections. All of them are read-only.
type Database struct {
	pages, keys  *pgxpool.Pool
	replicas     []*pgxpool.Pool
	queryTimeout time.Duration // statement_timeout of pages
	options      DatabaseOptions
	sameDatabase atomic.Bool // as options.Primary
	refusals     refusals
	follows      atomic.Pointer[func() Followed]
}

// Follows has answers judged by what is followed.
func (db *Database) Follows(which func() Followed) { db.follows.Store(&which) }

func (db *Database) followed() Followed {
	if which := db.follows.Load(); which != nil {
		return (*which)()
	}
	return Followed{}
}

// Open prepares the pools; connections are made when first needed, so an
// unreachable server is no error here, only a malformed URL is.
func Open(ctx context.Context, o DatabaseOptions) (*Database, error) {
	ofPages := sessionSettings(o.QueryTimeout)
	pages, err := openPool(ctx, o.URL, pgconn.ValidateConnectTargetSessionAttrsPrimary, o.Connections, ofPages)
	if err != nil {
		return nil, err
	}
	keys, err := openPool(ctx, o.URL, pgconn.ValidateConnectTargetSessionAttrsPrimary, KeyConnections, sessionSettings(keyTimeout))
	if err != nil {
		pages.Close()
		return nil, err
	}
	db := &Database{pages: pages, keys: keys, queryTimeout: o.QueryTimeout, options: o}
	for _, url := range o.Replicas {
		pool, err := openPool(ctx, url, pgconn.ValidateConnectTargetSessionAttrsStandby, o.Connections, ofPages)
		if err != nil {
			for _, pool := range db.pools() {
				pool.Close()
			}
			return nil, fmt.Errorf("replica: %w", err)
		}
		db.replicas = append(db.replicas, pool)
	}
	return db, nil
}

func (db *Database) pools() []*pgxpool.Pool {
	return append([]*pgxpool.Pool{db.pages, db.keys}, db.replicas...)
}

// Close ends all connections. It waits for queries under way, but not longer
// than ctx allows: a hung server keeps its connections for long.
func (db *Database) Close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() { // ends with the last connection, at the latest when the system gives it up
		defer close(closed)
		var pools sync.WaitGroup
		for _, pool := range db.pools() {
			pools.Go(pool.Close)
		}
		pools.Wait()
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the database's connections: %w", ctx.Err())
	}
}

// CheckURL returns why a node could not use the URL of a database; nil if it
// could. It does not connect.
func CheckURL(url string) error {
	_, err := parsePool(url)
	return err
}

func parsePool(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	return config, postgres.Check(url, err)
}

// sessionSettings are those that every statement of a node depends on.
func sessionSettings(timeout time.Duration) postgres.Settings {
	return postgres.Settings{
		"search_path":                   postgres.Schema,
		"row_security":                  "off", // an error, where rows would be left out in silence
		"default_transaction_read_only": "on",
		"default_transaction_isolation": "read committed", // behind the rewrite of a table others find no rows
		"statement_timeout":             strconv.FormatInt(timeout.Milliseconds(), 10),
		// Pages must cost the same on the day before and the day after an
		// ANALYZE: plan once, for no parameter in particular, by index.
		"plan_cache_mode":                 "force_generic_plan",
		"enable_seqscan":                  "off",
		"enable_sort":                     "off",
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	}
}

// openPool prepares a pool; which says which of several servers that the URL
// names is meant. Else a standby that stood in for the primary once would be
// taken for it as long as the connection lasts, and its pages be judged by a
// snapshot, which tells nothing there.
func openPool(ctx context.Context, url string, which pgconn.ValidateConnectFunc, connections int, settings postgres.Settings) (*pgxpool.Pool, error) {
	config, err := parsePool(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = int32(connections)
	config.MinIdleConns = 1
	config.PingTimeout = pingTimeout
	config.ShouldPing = doubtful
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DialFunc = rawconn.Dialing(config.ConnConfig.DialFunc)
	config.ConnConfig.RuntimeParams["application_name"] = "listedge"
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	settings.Hold(&config.ConnConfig.Config)
	postgres.Choose(config.ConnConfig, which)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return pool, nil
}

// doubtful says whether a connection out of the pool is pinged before anything is
// asked on it; where that fails, the pool takes or makes another. It is where
// something has come that was not asked for: mostly the server's last words, or
// the end without any, and nobody's question is lost on them. A notice is read
// by the ping. Where nothing has come, the network may still have lost the
// connection without a word: after a while that is worth a ping, too.
func doubtful(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > pingAfter || rawconn.Unread(p.Conn.PgConn().Conn())
}

// PoolStats are a pool's connections.
type PoolStats struct {
	Total, Idle, Max int
	Acquired         uint64
	Waited           time.Duration // in sum, for a connection
}

func poolStats(p *pgxpool.Pool) PoolStats {
	s := p.Stat()
	return PoolStats{
		Total: int(s.TotalConns()), Idle: int(s.IdleConns()), Max: int(s.MaxConns()),
		Acquired: uint64(s.AcquireCount()), Waited: s.AcquireDuration(),
	}
}

// connectPrimary is connectAdmin for commands that write, or that show what is
// to be written.
func connectPrimary(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := connectAdmin(ctx, url)
	if err == nil {
		if err = postgres.CheckPrimary(ctx, conn); err != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// connectAdmin opens one ordinary, writing connection, to whatever server it is.
func connectAdmin(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := postgres.Primary(url)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = "listedge"
	config.RuntimeParams["timezone"] = "UTC"
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may forget what is prepared
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}
