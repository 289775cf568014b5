package origin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// identitySQL tells databases apart, whatever leads to them, for as long as
// their files live. A server in recovery does not know its timeline.
const identitySQL = `
SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END, oid, datname::text
FROM pg_control_system(), pg_database WHERE datname = current_database()`

// Identity names the database that pages are read from.
type Identity struct {
	System   string // the system identifier of the server
	Timeline uint32 // of the server; 0 = it is in recovery
	Database uint32 // oid
	Name     string // of the database
}

// Identity asks for it, whatever server answers. Errors: those of Fetch; of a
// server that refuses, neither ErrUnavailable nor ErrTimeout.
func (db *Database) Identity(ctx context.Context) (i Identity, err error) {
	if err = db.keys.QueryRow(ctx, identitySQL, pgx.QueryExecModeExec).Scan(&i.System, &i.Timeline, &i.Database, &i.Name); err != nil {
		return Identity{}, fmt.Errorf("identify the database: %w", classify(err))
	}
	return i, nil
}
