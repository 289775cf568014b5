package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// Reader reads pages or keys for a node. Check tests it with the node's own statements
// and connections, and reads rows that do not exist.
type Reader interface {
	Check(ctx context.Context) error
}

// Readiness says whether a node can work with its database.
type Readiness struct {
	db           *postgres.Database
	readers      []Reader
	sameDatabase atomic.Bool // the replication URL leads to the same database; once true, it stays so
}

// NewReadiness returns the Readiness of a node that reads keys from db, and items and
// contacts with pages.
func NewReadiness(db *postgres.Database, pages Reader) *Readiness {
	return &Readiness{db: db, readers: []Reader{pages, apikey.NewStore(db)}}
}

// Ready returns nil if the server answers the node's queries and the schema has
// all migrations that this program needs.
func (r *Readiness) Ready(ctx context.Context) error {
	have, known, err := schemaVersion(ctx, r.db.Keys.Pool)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", postgres.Classify(err))
	}
	if want := wantedVersion(); known && have < want {
		var s server
		if err := r.db.Keys.Pool.QueryRow(ctx, serverSQL, pgx.QueryExecModeExec).Scan(&s.version, &s.encoding, &s.standby); err != nil {
			return fmt.Errorf("read the server's version: %w", postgres.Classify(err))
		}
		if err := s.check(); err != nil { // a migration would not help
			return err
		}
		return fmt.Errorf("schema is at version %d, this program needs %d: run `listedge migrate up`", have, want)
	}
	if remedy, err := r.checkReaders(ctx); err != nil {
		if remedy != "" {
			err = fmt.Errorf("%w: %s", err, remedy)
		}
		return err
	}
	return r.checkReplicationURL(ctx)
}

// querier is a connection, a transaction or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion reads the version that goose keeps; 0 = never migrated. known is false
// if the user lacks the right to read it, which a node does not need.
func schemaVersion(ctx context.Context, db querier) (version int64, known bool, err error) {
	err = db.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM public.goose_db_version WHERE is_applied`, pgx.QueryExecModeExec).Scan(&version)
	switch postgres.Code(err) {
	case "42501": // insufficient_privilege
		return 0, false, nil
	case "42P01": // undefined_table
		return 0, true, nil
	}
	return version, true, err
}

// checkReaders checks all readers. It returns the error of one that failed, and what to do
// about it, if known. If several failed, it prefers an error that is not a timeout.
func (r *Readiness) checkReaders(ctx context.Context) (remedy string, failed error) {
	for _, reader := range r.readers {
		if err := reader.Check(ctx); err != nil && (failed == nil || errors.Is(failed, postgres.ErrTimeout)) {
			failed = err
		}
	}
	switch code := postgres.Code(failed); {
	case code == "42501": // insufficient_privilege
		return r.missingRights(ctx), failed
	case code == "42P01", code == "42703", code == "42883", code == "42704", // undefined table, column, function, object
		errors.Is(failed, postgres.ErrSchema):
		return "run `listedge migrate up`", failed
	}
	return "", failed
}

// missingRightsSQL returns a command for each right that this user lacks to read
// what nodes read, and for each table whose row level security may hide rows.
var missingRightsSQL = `
SELECT format('GRANT USAGE ON SCHEMA public TO %I', current_user) WHERE NOT has_schema_privilege('public', 'USAGE')
UNION ALL
SELECT format('GRANT SELECT ON public.%I TO %I', relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY (` + lists.TablesSQL + `) AND NOT has_table_privilege(oid, 'SELECT')
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('fold', 'fold_letters', 'name_key', 'search_text', 'search_grams')
	AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY (` + lists.TablesSQL + `) AND row_security_active(oid)`

// missingRights returns the commands that grant the rights that this role lacks. It is
// empty if none are missing or they cannot be read.
func (r *Readiness) missingRights(ctx context.Context) string {
	rows, _ := r.db.Keys.Pool.Query(ctx, missingRightsSQL, pgx.QueryExecModeExec)
	commands, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(commands, "; ")
}

// errOtherDatabase: a node that follows the changes of another database would never
// invalidate a page.
var errOtherDatabase = errors.New("--replication-url leads to another server or database than --database-url")

// databaseIdentitySQL returns a text that identifies the database and the server. It also
// differs between an old primary that still runs and the new one.
const databaseIdentitySQL = `
SELECT system_identifier || '/' || oid || '/' || extract(epoch FROM pg_postmaster_start_time()) || '/' || pg_is_in_recovery()
FROM pg_control_system(), pg_database WHERE datname = current_database()`

// checkReplicationURL returns an error if the replication URL leads to another database
// than pages are read from. After its first success it does not check again.
func (r *Readiness) checkReplicationURL(ctx context.Context) error {
	o := r.db.Options
	if o.ReplicationURL == "" || o.ReplicationURL == o.URL || r.sameDatabase.Load() {
		return nil
	}
	conn, err := postgres.Connect(ctx, o.ReplicationURL)
	if err != nil {
		return fmt.Errorf("--replication-url: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var pages, changes string
	if err = conn.QueryRow(ctx, databaseIdentitySQL).Scan(&changes); err == nil {
		err = r.db.Keys.Pool.QueryRow(ctx, databaseIdentitySQL, pgx.QueryExecModeExec).Scan(&pages)
	}
	switch {
	case err != nil:
		return fmt.Errorf("--replication-url: %w", err)
	case postgres.Pooled(conn.PgConn()):
		return nil // the follower refuses it
	case pages != changes:
		return errOtherDatabase
	}
	r.sameDatabase.Store(true)
	return nil
}
