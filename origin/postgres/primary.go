package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/fleet"
)

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
		if by, err = read(); err == nil {
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
