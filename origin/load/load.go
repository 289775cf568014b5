// Package load fills the tables: from files (Import) and with sample data of any
// size (Seed).
//
//	file > input > csv | jsonl > batch, value > COPY > temporary table > upsert
//	words, seed                               > COPY > items, contacts
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
	defer conn.Close(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-conn.PgConn().CleanupDone(): // lost: a read that waits for input must end
			interrupt()
		case <-ctx.Done():
		}
	}()
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
	batch := newBatch(c, in, reader, p)
	var changed int64
	err = transact(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, createImportTableSQL(c)); err != nil {
			return err
		}
		if err := copyRows(ctx, tx, importIdentifier, append([]string{"given"}, names(c.Columns())...), batch.next); err != nil {
			return err
		}
		if changed, err = writeTable(ctx, tx, c, workspace, batch, p); err != nil {
			return err
		}
		return audit.Write(ctx, tx, audit.Act{Action: "import", Workspace: &workspace, Details: map[string]any{
			"collection": c.String(), "file": filepath.Base(file), "rows": batch.count, "changed": changed}})
	})
	if caller.Err() != nil && err != nil {
		err = caller.Err() // which the server only knows as a request to cancel
	}
	if place := (*RowError)(nil); errors.As(err, &place) {
		return 0, err
	} else if err != nil {
		return 0, fmt.Errorf("import %s: %w", in.name, err)
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
		tag, err := tx.Exec(ctx, dropSameSQL(c, given), workspace, given)
		if err != nil {
			return 0, err
		}
		write -= tag.RowsAffected()
	}
	p.phase("writing", write, rowsUnit)
	for _, given := range givens {
		for page := int64(0); page < pages; page += writePages {
			tag, err := tx.Exec(ctx, upsertSQL(c, given), workspace, given, page, page+writePages)
			if err != nil {
				return 0, err
			}
			changed += tag.RowsAffected()
			p.show(changed, changed)
		}
	}
	return changed, nil
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
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// transact runs do in a transaction with the settings of a load.
func transact(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, loadSettingsSQL); err != nil {
			return err
		}
		return do(tx)
	})
}

// copyRows copies the rows that next returns until it returns io.EOF.
func copyRows(ctx context.Context, tx pgx.Tx, table pgx.Identifier, columns []string, next func() ([]any, error)) error {
	var failed error
	_, err := tx.CopyFrom(ctx, table, columns, pgx.CopyFromFunc(func() ([]any, error) {
		values, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			failed = err
			return nil, errStopped
		}
		return values, nil
	}))
	if failed != nil && !errors.Is(failed, context.Canceled) {
		return failed // the server's error says only that the copy ended
	}
	return err
}

// errStopped is the error that the driver sends to the server. The server logs it, so it
// must not contain data of the file.
var errStopped = errors.New("the rows could not be read to their end")
