// Package load fills the tables: from files (Import) and with sample data of any
// size (Seed).
//
//	file > lines > csv | jsonl > value > COPY > temporary table > upsert
//	words, seed                        > COPY > items, contacts
//
// Each value is checked against its column while it is read, so that an error names file,
// line and column. An import is one transaction. Rows are streamed: only their ids are kept
// in memory, some twenty bytes a row, to find an id that occurs twice.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"listedge/origin"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// cancelTimeout bounds waiting for the server to confirm a cancelled statement. The load itself
// has no time limit.
const cancelTimeout = 5 * time.Second

// ErrNotFound: there is no such workspace.
var ErrNotFound = errors.New("not found")

// Import reads a file of CSV or JSON Lines (a path, or "-" for standard input) into the
// collection of the workspace, and returns the number of rows in the file. Rows are matched
// by id: new rows are inserted, others are updated. A column that the header or the object
// lacks keeps its value; in a new row it gets the table's default. An empty CSV cell, quoted
// or not, is null. Rows that already have the values of the file are not written. After an
// error the tables are unchanged. *RowError says where in the file the error is, and
// ErrNotFound that there is no such workspace. p may be nil.
func Import(ctx context.Context, databaseURL string, c origin.Collection, workspace uuid.UUID, file string, p *Progress) (rows int64, err error) {
	if p == nil {
		p = NewProgress(io.Discard)
	}
	caller := ctx
	ctx, interrupt := context.WithCancel(caller)
	defer interrupt()
	in, err := openInput(ctx, file)
	if err != nil {
		return 0, err
	}
	defer in.close()

	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return 0, err
	}
	defer disconnect(conn)
	var there bool
	if err := conn.QueryRow(ctx, workspaceExistsSQL, workspace).Scan(&there); err != nil {
		return 0, fmt.Errorf("look for the workspace: %w", postgres.WithSchemaHint(err))
	}
	if !there {
		return 0, fmt.Errorf("workspace %s: %w", workspace, ErrNotFound)
	}

	reader, err := in.rows(c)
	if err != nil {
		return 0, err
	}
	p.begin(c.String(), in.size, bytesUnit)
	defer p.abandon()
	batch := newBatch(c, in.lines, reader, func(rows int64) { p.step(rows, in.lines.read) })
	var changed int64
	err = transact(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, createImportTableSQL(c)); err != nil {
			return err
		}
		if err := copyRows(ctx, tx, copyImportSQL(c), batch.append, interrupt); err != nil {
			return err
		}
		if changed, err = writeTable(ctx, tx, c, workspace, batch, p); err != nil {
			return err
		}
		return audit.Write(ctx, tx, audit.Act{Action: "import", Workspace: &workspace, Details: map[string]any{
			"collection": c.String(), "file": filepath.Base(file), "rows": batch.count, "changed": changed}})
	})
	if err != nil {
		if caller.Err() != nil {
			err = caller.Err() // which the server only knows as a request to cancel
		}
		return 0, in.explain(err)
	}
	p.end(batch.count, fmt.Sprintf("%d new or changed", changed))
	return batch.count, nil
}

// writePages is how many pages of the temporary table one statement writes, some ten thousand
// rows. The progress is shown after each.
const writePages = 500

// writeTable merges the temporary table into the collection and returns how many
// rows it changed.
func writeTable(ctx context.Context, tx pgx.Tx, c origin.Collection, workspace uuid.UUID, b *batch, p *Progress) (changed int64, err error) {
	p.phase("comparing", 0, rowsUnit)
	if _, err := tx.Exec(ctx, analyzeImportSQL); err != nil {
		return 0, err
	}
	var pages int64
	if err := tx.QueryRow(ctx, importPagesSQL).Scan(&pages); err != nil {
		return 0, err
	}
	givens := slices.Sorted(maps.Keys(b.given)) // usually one: all rows give the same columns
	write := b.count
	for _, given := range givens {
		tag, err := tx.Exec(ctx, dropSameSQL(c, given), workspace, int32(given))
		if err != nil {
			return 0, err
		}
		write -= tag.RowsAffected()
	}
	p.phase("writing", write, rowsUnit)
	for _, given := range givens {
		for page := int64(0); page < pages; page += writePages {
			tag, err := tx.Exec(ctx, upsertSQL(c, given), workspace, int32(given), page, page+writePages)
			if err != nil {
				return 0, err
			}
			changed += tag.RowsAffected()
			p.show(changed, changed)
		}
	}
	return changed, nil
}

// explain adds the name of the file to an error that does not have it.
func (in *input) explain(err error) error {
	if row := (*RowError)(nil); errors.As(err, &row) {
		return err
	}
	return fmt.Errorf("import %s: %w", in.name, err)
}

// connect opens an ordinary, writing connection. A call that is cancelled returns only when
// the server has cancelled the statement: otherwise the statement would block the next try.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := postgres.PrimaryConfig(url)
	if err != nil {
		return nil, err
	}
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: cancelTimeout}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if err := postgres.CheckPrimary(ctx, conn); err != nil {
		disconnect(conn)
		return nil, err
	}
	return conn, nil
}

func disconnect(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// transact runs do in a transaction with the settings of a load. Unlike pgx.BeginFunc, it
// also rolls back, and waits for that, if the context has ended.
func transact(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, loadSettingsSQL); err == nil {
		err = do(tx)
	}
	if err == nil {
		return tx.Commit(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // if it fails, the connection is closed, which also rolls back
	return err
}
