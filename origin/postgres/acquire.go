package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
)

// ErrNoneLeft: the server gives this node no further connection, and those that it has are in use.
// It says nothing bad of the server, which answers on them.
var ErrNoneLeft = fmt.Errorf("%w: the server gives no more connections", ErrOverloaded)

// Acquire takes a connection. Errors: ErrNoneLeft, if another one will be free soon.
func Acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := pool.Acquire(ctx)
	if isRefusedAsTooMany(err) && pool.Stat().TotalConns() > 0 {
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
	for {
		conn, err := Acquire(ctx, pool)
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

// Use runs a function with a connection of the pool, which it waits for.
func (p *Primary) Use(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := AcquireWaiting(ctx, p.Pool)
	if err != nil {
		return Classify(err)
	}
	defer conn.Release()
	return use(conn.Conn())
}

// Ping pings the server that a connection leads to.
func (p *Primary) Ping(ctx context.Context) error {
	return p.Use(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// Identify asks which server a connection leads to.
func (p *Primary) Identify(ctx context.Context) (s changefeed.Server, err error) {
	err = p.Use(ctx, func(conn *pgx.Conn) error { s, err = Identify(ctx, conn); return err })
	return s, err
}
