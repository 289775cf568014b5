// Package load fills the tables: from CSV files (Import) and with sample data of any size (Seed).
//
//	file ──► encoding/csv ──► check ──► COPY ──► temporary table ──► INSERT … SELECT
//	words.json, sample.sql ──► INSERT … SELECT
//
// An import is one transaction. Every value is checked while the file is read, so that an error
// names line and column. Rows are streamed: only their ids are kept in memory, to find an id
// that occurs twice.
package load

import (
	"cmp"
	"context"
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

// Import reads a CSV file (a path, or "-" for standard input) into the collection of the
// workspace, and returns the number of rows in the file. Rows are matched by id: new rows are
// inserted, others are updated. A column that the header lacks keeps its value; in a new row it
// gets the table's default. An empty cell, quoted or not, is null. Line breaks in cells become \n.
// Rows that already have the values of the file are not written. After an error the tables are
// unchanged. *BadFile says what is wrong with the file. The progress is written to out.
func Import(ctx context.Context, databaseURL string, c lists.Collection, workspace uuid.UUID, file string, out io.Writer) (rows int64, err error) {
	ctx, cancel := context.WithCancel(ctx) // closes the file
	defer cancel()
	r, err := openRows(ctx, file, c, out)
	if err != nil {
		return 0, err
	}
	var changed int64
	defer func() { endProgress(out, r.bar, rows, fmt.Sprintf("; %d new or changed", changed)) }()
	if r.failed == nil {
		changed, err = merge(ctx, databaseURL, c, workspace, r)
	}
	if err = cmp.Or(ctx.Err(), r.failed, err); err != nil { // of the first two the server knows only that the copy ended
		return 0, fmt.Errorf("import %s: %w", r.name, err)
	}
	return int64(len(r.ids)), nil
}

// merge copies the rows and merges them into the table. It returns how many rows it changed.
func merge(ctx context.Context, databaseURL string, c lists.Collection, workspace uuid.UUID, r *rows) (changed int64, err error) {
	conn, err := postgres.ConnectPrimary(ctx, databaseURL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pgx.BeginTxFunc(ctx, conn, long, func(tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)`, workspace).Scan(&there); err != nil {
			return postgres.WithSchemaHint(err)
		} else if !there {
			return fmt.Errorf("workspace %s: not found", workspace)
		}
		if _, err := tx.Exec(ctx, "CREATE TEMPORARY TABLE listedge_import ("+each(r.columns, "$ text")+") ON COMMIT DROP"); err != nil {
			return err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", "listedge_import"}, strings.Split(each(r.columns, "$"), ", "), pgx.CopyFromFunc(r.next)); err != nil {
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
		return audit.Write(ctx, tx, audit.Act{Action: "import", Workspace: &workspace, Details: map[string]any{ // mutation: an import without a row
			"collection": c.String(), "file": filepath.Base(r.name), "rows": len(r.ids), "changed": changed}})
	})
	return changed, err
}

// mergeSQL writes the rows of the temporary table whose values the table does not have yet. $1
// is the workspace. Names in it come from the collection's columns, never from the file.
//
// Rows that are the same are left out before the upsert: a condition of its UPDATE would lock,
// and thereby write, each of them. 12.5 equals 12.50 but is shown differently, so numbers are
// compared as text, and the others with them.
func mergeSQL(c lists.Collection, columns []lists.Column) string {
	return fmt.Sprintf(`INSERT INTO %[1]s (workspace_id, %[2]s)
SELECT $1::uuid, n.* FROM (SELECT %[3]s FROM pg_temp.listedge_import) n LEFT JOIN %[1]s t ON t.workspace_id = $1::uuid AND t.id = n.id
WHERE t.id IS NULL OR ROW(%[4]s)::text <> ROW(%[5]s)::text
ON CONFLICT (workspace_id, id) DO UPDATE SET %[6]s`, c, each(columns, "$"), each(columns, "$::# AS $"),
		each(columns, "t.$"), each(columns, "n.$"), each(columns, "$ = excluded.$"))
}

// each lists the columns, in a form with $ for the name and # for the type.
func each(columns []lists.Column, form string) string {
	var list []string
	for _, c := range columns {
		list = append(list, strings.NewReplacer("$", c.Name, "#", c.Kind.String()).Replace(form))
	}
	return strings.Join(list, ", ")
}

// long are the options of a transaction whose statements may take long.
var long = pgx.TxOptions{BeginQuery: "BEGIN; SET LOCAL statement_timeout = 0"}

// startProgress shows a bar on a terminal, of so many rows or bytes; -1 = not known.
func startProgress(out io.Writer, what string, total int64, bytes bool) *progressbar.ProgressBar {
	file, ok := out.(*os.File)
	bar := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))),
		progressbar.OptionSetDescription(what), progressbar.OptionShowBytes(bytes), progressbar.OptionShowCount(), progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(true))
	bar.StartWithoutRender() // an invisible one would not measure its time
	return bar
}

// endProgress replaces the bar by a line with the rate; without rows, by nothing.
func endProgress(out io.Writer, bar *progressbar.ProgressBar, rows int64, note string) {
	_, _ = bar.Exit(), bar.Clear()
	if s := bar.State(); rows > 0 {
		fmt.Fprintf(out, "%s: %d rows in %.1f s, %.0f rows/s%s\n", s.Description, rows, s.SecondsSince, float64(rows)/max(s.SecondsSince, 0.001), note)
	}
}
