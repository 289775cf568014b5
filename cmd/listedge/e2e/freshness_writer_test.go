package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// history has what a workspace's writer wrote.
type history struct {
	workspace, parking uuid.UUID
	key                string
	queries            []query    // that all ask for
	fillers            int        // rows between the two, which nobody writes
	mu                 sync.Mutex // guards all below
	began              []time.Time
	committed          []time.Time // zero while not known to be
}

func (h *history) isCommitted(v int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return v < len(h.committed) && !h.committed[v].IsZero()
}

func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.committed) - 1
}

// write counts up until ctx ends, at random pauses up to the longest, in two rows of
// one transaction, in all the ways there are to write.
func (h *history) write(ctx context.Context, url string, longest time.Duration, forms []form) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		select { // the pace of the writer
		case <-ctx.Done():
			return
		case <-time.After(longest/10 + rand.N(longest)):
		}
		if conn == nil || conn.IsClosed() {
			calling, cancel := context.WithTimeout(ctx, time.Second)
			conn, _ = pgx.Connect(calling, url)
			cancel()
			if conn == nil {
				continue
			}
		}
		h.step(conn, url, forms[rand.IntN(len(forms))])
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// step runs one transaction. If its commit fails, it may have happened all the same: writing
// the same value again is harmless.
func (h *history) step(conn *pgx.Conn, url string, write form) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	next := h.last() + 1
	h.mu.Lock()
	h.began, h.committed = append(h.began, time.Now()), append(h.committed, time.Time{})
	h.mu.Unlock()
	err := write(ctx, conn, h, next)
	for err != nil && ctx.Err() == nil {
		pause(readPause)
		if again, connectErr := pgx.Connect(ctx, url); connectErr == nil {
			*conn = *again
			if err = h.abandon(ctx, conn); err == nil {
				err = inPlace(ctx, conn, h, next)
			}
		}
	}
	if err != nil {
		return // at the end nobody shows it
	}
	h.mu.Lock()
	h.committed[next] = time.Now()
	h.mu.Unlock()
}

// form is a way to write: it leaves the workspace with two rows that show v, of
// which one is its first by name and one its last.
type form func(ctx context.Context, conn *pgx.Conn, h *history, v int) error

// usualForms are those that a transaction may have. The page oracle writes rows in more ways.
var usualForms = []form{inPlace, inPlace, inPlace, deleteAndInsert, prepared, withRollbacks}

func each(ctx context.Context, tx pgx.Tx, statements ...statement) error {
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
			return err
		}
	}
	return nil
}

type statement struct {
	sql  string
	args []any
}

func sql(text string, args ...any) statement { return statement{text, args} }

const (
	twoRows = "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', $2), ($1, 'z', $2)"
	theTwo  = "workspace_id = $1 AND name IN ('a', 'z')"
)

func inPlace(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	_, err := conn.Exec(ctx, "UPDATE items SET stock_on_hand = $2 WHERE "+theTwo, h.workspace, strconv.Itoa(v))
	return err
}

func deleteAndInsert(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return each(ctx, tx, sql("DELETE FROM items WHERE "+theTwo, h.workspace), sql(twoRows, h.workspace, strconv.Itoa(v)))
	})
}

func (h *history) gid() string { return "writer of " + h.workspace.String() }

// prepared commits in two phases, with time in between.
func prepared(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	for _, text := range []string{"BEGIN", fmt.Sprintf("UPDATE items SET stock_on_hand = %d WHERE workspace_id = '%s' AND name IN ('a', 'z')", v, h.workspace),
		"PREPARE TRANSACTION '" + h.gid() + "'"} {
		if _, err := conn.Exec(ctx, text); err != nil {
			_ = conn.Close(ctx)
			return err
		}
	}
	pause(100 * time.Millisecond)
	_, err := conn.Exec(ctx, "COMMIT PREPARED '"+h.gid()+"'")
	return err
}

// abandon rolls back what a writer that was interrupted may have left prepared.
func (h *history) abandon(ctx context.Context, conn *pgx.Conn) error {
	var left bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)", h.gid()).Scan(&left); err != nil || !left {
		return err
	}
	_, err := conn.Exec(ctx, "ROLLBACK PREPARED '"+h.gid()+"'")
	return err
}

// withRollbacks also writes rows and rolls them back, as a whole and in part.
func withRollbacks(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	wrong := sql("UPDATE items SET stock_on_hand = -1 WHERE "+theTwo, h.workspace)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := each(ctx, tx, wrong); err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	if err := tx.Rollback(ctx); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return each(ctx, tx, sql("SAVEPOINT s"), wrong, sql("ROLLBACK TO s"),
			sql("UPDATE items SET stock_on_hand = $2 WHERE "+theTwo, h.workspace, strconv.Itoa(v)))
	})
}

// truncated empties the table, or the partition, that the rows are in, and puts
// all others back.
func truncated(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := each(ctx, tx, sql("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")); err != nil {
			return err
		}
		var table string
		if err := tx.QueryRow(ctx, "SELECT tableoid::regclass::text FROM items WHERE "+theTwo+" LIMIT 1", h.workspace).Scan(&table); err != nil {
			return err
		}
		two := strings.ReplaceAll(theTwo, "$1", "'"+h.workspace.String()+"'")
		return each(ctx, tx, sql("CREATE TEMP TABLE others ON COMMIT DROP AS SELECT * FROM "+table+" WHERE NOT ("+two+")"),
			sql("TRUNCATE "+table), sql("INSERT INTO items SELECT * FROM others"), sql(twoRows, h.workspace, strconv.Itoa(v)))
	})
}

// withManyRows writes so many rows of another workspace in the same transaction,
// in place of those of the time before. One writer does at a time, and the others
// write as usual.
func withManyRows(n int) form {
	var one sync.Mutex
	return func(ctx context.Context, conn *pgx.Conn, h *history, v int) error {
		if !one.TryLock() {
			return inPlace(ctx, conn, h, v)
		}
		defer one.Unlock()
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return each(ctx, tx, sql("DELETE FROM items WHERE workspace_id = $1", h.parking),
				sql("INSERT INTO items (workspace_id, name) SELECT $1, 'many' FROM generate_series(1, $2)", h.parking, n),
				sql("UPDATE items SET stock_on_hand = $2 WHERE "+theTwo, h.workspace, strconv.Itoa(v)))
		})
	}
}
