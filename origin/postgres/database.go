package postgres

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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
		pool, err := openPool(ctx, url, target, connections, idle, settings)
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
	db.Pages = primary(o.Connections, 1, reading)
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

// openPool makes a pool of at most connections, of which it keeps idle open. It does not wait
// for one, so an unreachable server is no error here.
func openPool(ctx context.Context, url string, target pgconn.ValidateConnectFunc, connections, idle int, settings Settings) (*pgxpool.Pool, error) {
	config, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	config.MinIdleConns = int32(idle)
	config.PingTimeout = PingTimeout
	config.ConnConfig.MaxProtocolMessageBodyLen = maxMessage
	prepareConfig(config.ConnConfig, target, settings)
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
