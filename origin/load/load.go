// Package load fills the tables: from CSV files (Import) and with sample data of any size (Seed).
//
//	file ──► source ──► encoding/csv ──► check ──► COPY ──► temporary table ──► INSERT … SELECT
//	words.json, sample.sql ──► INSERT … SELECT
//
// An import is one transaction. Every value is checked while the file is read, so that an error
// names line and column. Rows are streamed: only their ids are kept in memory, to find an id
// that occurs twice.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"listedge/internal/lists"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// ErrNotFound: there is no such workspace.
var ErrNotFound = errors.New("not found")

// Import reads a CSV file (a path, or "-" for standard input) into the collection of the
// workspace, and returns the number of rows in the file. Rows are matched by id: new rows are
// inserted, others are updated. A column that the header lacks keeps its value; in a new row it
// gets the table's default. An empty cell, quoted or not, is null. Line breaks in cells become \n. Rows that already have the
// values of the file are not written. After an error the tables are unchanged. *BadFile says what
// is wrong with the file, and ErrNotFound that there is no such workspace. The progress is
// written to out.
func Import(ctx context.Context, databaseURL string, c lists.Collection, workspace uuid.UUID, file string, out io.Writer) (rows int64, err error) {
	in, err := openSource(ctx, file)
	if err != nil {
		return 0, err
	}
	defer in.close()
	conn, err := postgres.ConnectPrimary(ctx, databaseURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)`, workspace).Scan(&there); err != nil {
		return 0, fmt.Errorf("look for the workspace: %w", postgres.WithSchemaHint(err))
	} else if !there {
		return 0, fmt.Errorf("workspace %s: %w", workspace, ErrNotFound)
	}
	r, err := newRows(in, c)
	if err != nil {
		return 0, err
	}
	r.progress = startProgress(out, c.String(), in.size, true)
	defer r.progress.clear()
	changed, err := merge(ctx, conn, c, workspace, r)
	switch {
	case err == nil:
		r.progress.end(r.count, fmt.Sprintf("; %d new or changed", changed))
		return r.count, nil
	case ctx.Err() != nil: // which the server only knows as a request to cancel
		err = ctx.Err()
	case r.bad.Rows > 0:
		return 0, &r.bad
	case r.failed != nil:
		err = r.failed // the server's error says only that the copy ended
	}
	return 0, fmt.Errorf("import %s: %w", in.name, err)
}

// merge copies the rows and merges them into the table. It returns how many rows it changed.
func merge(ctx context.Context, conn *pgx.Conn, c lists.Collection, workspace uuid.UUID, r *rows) (changed int64, err error) {
	err = transact(ctx, conn, func(tx pgx.Tx) error {
		names := names(r.columns)
		if _, err := tx.Exec(ctx, "CREATE TEMPORARY TABLE listedge_import ("+strings.Join(names, " text, ")+" text) ON COMMIT DROP"); err != nil {
			return err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", "listedge_import"}, names, r); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ANALYZE pg_temp.listedge_import`); err != nil { // so that the planner knows how many rows there are
			return err
		}
		tag, err := tx.Exec(ctx, mergeSQL(c, r.columns), workspace)
		if err != nil {
			return err
		}
		changed = tag.RowsAffected()
		return audit.Write(ctx, tx, audit.Act{Action: "import", Workspace: &workspace, Details: map[string]any{
			"collection": c.String(), "file": filepath.Base(r.in.name), "rows": r.count, "changed": changed}})
	})
	return changed, err
}

// mergeSQL writes the rows of the temporary table whose values the table does not have yet. $1
// is the workspace. Names in it come from the collection's columns, never from the file.
//
// Rows that are the same are left out before the upsert: a condition of its UPDATE would lock,
// and thereby write, each of them. 12.5 equals 12.50 but is shown differently, so numbers are
// compared as text.
func mergeSQL(c lists.Collection, columns []lists.Column) string {
	var cast, set, old, updated []string
	for _, column := range columns {
		name, text := column.Name, ""
		cast = append(cast, name+"::"+column.Kind.String()+" AS "+name)
		if column.Kind == lists.Decimal || column.Kind == lists.Number {
			text = "::text"
		}
		if name != "id" {
			set = append(set, name+" = excluded."+name)
			old, updated = append(old, "t."+name+text), append(updated, "n."+name+text)
		}
	}
	return fmt.Sprintf(`INSERT INTO %[1]s (workspace_id, %[2]s)
SELECT $1::uuid, n.* FROM (SELECT %[3]s FROM pg_temp.listedge_import) n LEFT JOIN %[1]s t ON t.workspace_id = $1::uuid AND t.id = n.id
WHERE t.id IS NULL OR ROW(%[4]s) IS DISTINCT FROM ROW(%[5]s)
ON CONFLICT (workspace_id, id) DO UPDATE SET %[6]s`, c, strings.Join(names(columns), ", "), strings.Join(cast, ", "),
		strings.Join(old, ", "), strings.Join(updated, ", "), strings.Join(set, ", "))
}

func names(columns []lists.Column) (list []string) {
	for _, c := range columns {
		list = append(list, c.Name)
	}
	return list
}

// transact runs do in a transaction whose statements may take long.
func transact(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		return do(tx)
	})
}

// progress shows how far a load is: a bar on a terminal, and at the end a line with the rate.
type progress struct {
	out   io.Writer
	what  string
	start time.Time
	bar   *progressbar.ProgressBar
}

// startProgress begins a load of so many rows or bytes; -1 = not known.
func startProgress(out io.Writer, what string, total int64, bytes bool) *progress {
	file, ok := out.(*os.File)
	return &progress{out: out, what: what, start: time.Now(), bar: progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))),
		progressbar.OptionSetDescription(what), progressbar.OptionShowBytes(bytes), progressbar.OptionShowCount(), progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(true))}
}

// clear removes the bar.
func (p *progress) clear() { _, _ = p.bar.Exit(), p.bar.Clear() }

// end replaces the bar by the last line.
func (p *progress) end(rows int64, note string) {
	p.clear()
	took := time.Since(p.start)
	fmt.Fprintf(p.out, "%s: %d rows in %.1f s, %.0f rows/s%s\n", p.what, rows, took.Seconds(), float64(rows)/max(took.Seconds(), 0.001), note)
}
