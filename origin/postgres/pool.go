package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/rawconn"
)

const (
	// ConnectTimeout is for a new connection, PingTimeout for a ping.
	ConnectTimeout = 2 * time.Second
	PingTimeout    = time.Second
	// pingAfter is how long a connection is idle before it is pinged.
	pingAfter = time.Second
)

// Which of several servers that a URL names a pool connects to. Without the
// choice a pool would keep connections to a standby that it once took for the
// primary, and its pages would be judged by a snapshot, which says nothing there.
var (
	toPrimary pgconn.ValidateConnectFunc = pgconn.ValidateConnectTargetSessionAttrsPrimary
	toStandby pgconn.ValidateConnectFunc = pgconn.ValidateConnectTargetSessionAttrsStandby
)

// CheckURL returns why a node could not use the URL of a database; nil if it
// could. It does not connect.
func CheckURL(url string) error {
	_, err := parsePool(url)
	return err
}

func parsePool(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	return config, checkURL(url, err)
}

// openPool makes a pool. Connections are made when they are first needed, so an
// unreachable server is no error here.
func openPool(ctx context.Context, url string, target pgconn.ValidateConnectFunc, connections int, settings Settings) (*pgxpool.Pool, error) {
	config, err := parsePool(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = int32(connections)
	config.MinIdleConns = 1
	config.PingTimeout = PingTimeout
	config.ShouldPing = shouldPing
	config.ConnConfig.DialFunc = rawconn.Dialing(config.ConnConfig.DialFunc)
	prepareConfig(config.ConnConfig, target, settings)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return pool, nil
}

// shouldPing says whether a connection is pinged before it is used; if the ping
// fails, the pool takes or makes another. It is pinged if unread bytes have come,
// mostly because the server closed it, and after some idle time, because the
// network may have lost it silently.
func shouldPing(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > pingAfter || rawconn.Unread(p.Conn.PgConn().Conn())
}

// PoolStats are a pool's connections.
type PoolStats struct {
	Total, Idle, Max int
	Acquired         uint64
	Waited           time.Duration // in sum, for a connection
}

// StatsOf returns the present state of the pool.
func StatsOf(p *pgxpool.Pool) PoolStats {
	s := p.Stat()
	return PoolStats{
		Total: int(s.TotalConns()), Idle: int(s.IdleConns()), Max: int(s.MaxConns()),
		Acquired: uint64(s.AcquireCount()), Waited: s.AcquireDuration(),
	}
}
