package admin

import (
	"context"
	_ "embed"
	"fmt"

	"listedge/origin/postgres"
)

// RemovalSQL removes what the program has made in a database. One transaction runs it.
//
//go:embed remove.sql
var RemovalSQL string

// Remove runs RemovalSQL.
func Remove(ctx context.Context, url string) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.conn.PgConn().Exec(ctx, "BEGIN;"+RemovalSQL+"COMMIT").ReadAll()
	if postgres.Code(err) == "55006" { // object_in_use
		return fmt.Errorf("stop all nodes first: %w", err)
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}
