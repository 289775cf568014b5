package origin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// identitySQL tells databases apart, whatever leads to them, for as long as
// their files live.
const identitySQL = `SELECT system_identifier::text, oid, datname::text FROM pg_control_system(), pg_database WHERE datname = current_database()`

// Identity is what pages are read from: the system identifier of the server,
// and the oid and the name of the database.
func (db *Database) Identity(ctx context.Context) (system string, oid uint32, name string, err error) {
	if err = db.keys.QueryRow(ctx, identitySQL, pgx.QueryExecModeExec).Scan(&system, &oid, &name); err != nil {
		return "", 0, "", fmt.Errorf("identify the database: %w", err)
	}
	return system, oid, name, nil
}
