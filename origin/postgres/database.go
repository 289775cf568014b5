package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
)

// Options say how a node uses Postgres.
type Options struct {
	URL            string
	ReplicationURL string        // of the same database, without a pooler, by which changes are followed; empty = URL
	Replicas       []string      // URLs of hot standbys, which pages are read from where they are fresh enough
	Connections    int           // for pages, to each server; keys and usage have connections of their own
	QueryTimeout   time.Duration // statement_timeout of a page
	// TimelineKnown is closed as soon as it is known which timeline the fleet follows. No
	// page and no key is read before that. nil = it need not be known.
	TimelineKnown <-chan struct{}
	Followed      *changefeed.Followed // judges which server has answered; nil = nothing is known of it
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
	Pages, Keys *Primary
	Usage       *Primary
	Standbys    []*pgxpool.Pool // to Options.Replicas
	Options     Options

	address
	pools []*pgxpool.Pool // those of Pages, Keys, Usage and Standbys
}

// Open makes the pools. A malformed URL is an error, an unreachable server is not.
func Open(ctx context.Context, o Options) (*Database, error) {
	if o.Followed == nil {
		o.Followed = &changefeed.Followed{}
	}
	db := &Database{Options: o, address: address{timelineKnown: o.TimelineKnown, followed: o.Followed}}
	if err := db.open(ctx); err != nil {
		for _, pool := range db.pools {
			pool.Close()
		}
		return nil, err
	}
	return db, nil
}

func (db *Database) open(ctx context.Context) error {
	o := db.Options
	for _, p := range []struct {
		of                **Primary
		connections, idle int
		settings          Settings
	}{
		{&db.Pages, o.Connections, 1, SessionSettings(o.QueryTimeout)},
		{&db.Keys, KeyConnections, 1, SessionSettings(KeyTimeout)},
		{&db.Usage, UsageConnections, 0, WriteSettings(UsageTimeout)},
	} {
		pool, err := openPool(ctx, o.URL, db.toFollowed, p.connections, p.idle, p.settings)
		if err != nil {
			return err
		}
		db.pools = append(db.pools, pool)
		*p.of = &Primary{Pool: pool, address: &db.address}
	}
	for _, url := range o.Replicas {
		pool, err := openPool(ctx, url, toStandby, o.Connections, 1, SessionSettings(o.QueryTimeout))
		if err != nil {
			return fmt.Errorf("replica: %w", err)
		}
		db.pools, db.Standbys = append(db.pools, pool), append(db.Standbys, pool)
	}
	return nil
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
