package admin

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"listedge/origin/postgres"
)

//go:embed remove.sql
var removeSQL string

// RemovalSQL returns what removes all that the program has made in a database: remove.sql,
// and the migrations downwards. One transaction runs it.
func RemovalSQL() string {
	sql := removeSQL
	files, _ := fs.Glob(migrationFiles, "migrations/*.sql")
	for _, name := range slices.Backward(files) {
		migration, _ := fs.ReadFile(migrationFiles, name)
		_, down, _ := strings.Cut(string(migration), "-- +goose Down\n")
		sql += down
	}
	return sql
}

// Remove runs RemovalSQL in the database. All nodes must have stopped.
func Remove(ctx context.Context, url string) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.conn.PgConn().Exec(ctx, "BEGIN;"+RemovalSQL()+"COMMIT").ReadAll()
	if postgres.Code(err) == "55006" { // object_in_use
		return fmt.Errorf("stop all nodes first: %w", err)
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}
