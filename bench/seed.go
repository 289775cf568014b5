package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox"
)

// sized is a workspace and how many items it has.
type sized struct {
	items     int
	workspace uuid.UUID
}

// smallItems are in the workspace that larger ones are compared with.
const smallItems = 1000

// seed makes workspaces of 1,000 items and ten times as many each, up to the
// large one. Rows are loaded without the lists' indexes, which are built
// afterwards: the index of grams takes much longer row by row.
func (s *subject) seed(ctx context.Context, items int) error {
	rows, err := s.db.Query(ctx, `SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('items', 'contacts') AND indexname !~ 'pkey$'`)
	if err != nil {
		return err
	}
	type index struct{ Name, Definition string }
	indexes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[index])
	if err != nil {
		return err
	}
	for _, i := range indexes {
		if _, err := s.db.Exec(ctx, "DROP INDEX "+i.Name); err != nil {
			return err
		}
	}
	for n := smallItems; n < items; n *= 10 {
		if err := s.seedOne(ctx, n, 0); err != nil {
			return err
		}
	}
	if err := s.seedOne(ctx, items, 1000); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "bench: indexes")
	var statements []string
	for _, i := range indexes {
		statements = append(statements, i.Definition)
	}
	statements = append(statements, "VACUUM ANALYZE items, contacts") // now, and not while something is measured
	for _, statement := range statements {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%.40s: %w", strings.TrimSpace(statement), err)
		}
	}
	return s.dropSlot(ctx) // nodes need not read that all of this changed
}

func (s *subject) seedOne(ctx context.Context, items, contacts int) error {
	n := len(s.sizes) + 1
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(ctx, sandbox.Sample(n, items, contacts)).ReadAll(); err != nil {
		return fmt.Errorf("sample data: %w", err)
	}
	made := sized{items: items}
	err = conn.QueryRow(ctx, "SELECT id FROM workspaces ORDER BY created_at DESC LIMIT 1").Scan(&made.workspace)
	s.sizes = append(s.sizes, made)
	return err
}

// large is the workspace with the most items.
func (s *subject) large() sized { return s.sizes[len(s.sizes)-1] }
