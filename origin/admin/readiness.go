package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// Reader is what a node reads pages, or keys, by. Check reads nothing that exists,
// by the node's own statements and connections.
type Reader interface {
	Check(ctx context.Context) error
}

// Readiness says whether a node can work with its database.
type Readiness struct {
	db           *postgres.Database
	readers      []Reader
	sameDatabase atomic.Bool // the replication URL leads to it; that does not change
}

// NewReadiness is for a node that reads keys and, by pages, items and contacts.
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
			return fmt.Errorf("ask for the server's version: %w", postgres.Classify(err))
		}
		if err := s.check(); err != nil { // migrating would not help
			return err
		}
		return fmt.Errorf("schema is at version %d, this program needs %d: run `listedge migrate up`", have, want)
	}
	if do, err := r.read(ctx); err != nil {
		if do != "" {
			err = fmt.Errorf("%w: %s", err, do)
		}
		return err
	}
	return r.checkReplicationURL(ctx)
}

// querier is a connection or a pool.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion reads the version that goose keeps; 0 = never migrated. A node
// needs no right to read it: then it is not known.
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

// read tries all readers. It returns why one failed, and what to do about that if
// it is known. An error that is no timeout wins.
func (r *Readiness) read(ctx context.Context) (do string, failed error) {
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
const missingRightsSQL = `
SELECT format('GRANT USAGE ON SCHEMA public TO %I', current_user) WHERE NOT has_schema_privilege('public', 'USAGE')
UNION ALL
SELECT format('GRANT SELECT ON public.%I TO %I', relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('items', 'contacts', 'api_keys', 'workspaces') AND NOT has_table_privilege(oid, 'SELECT')
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('name_key', 'search_fold', 'search_text', 'search_grams') AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('items', 'contacts', 'api_keys', 'workspaces') AND row_security_active(oid)`

// missingRights are the commands that give this role what it lacks; empty = it
// lacks nothing, or the server does not say.
func (r *Readiness) missingRights(ctx context.Context) string {
	rows, err := r.db.Keys.Pool.Query(ctx, missingRightsSQL, pgx.QueryExecModeExec)
	if err != nil {
		return ""
	}
	commands, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(commands, "; ")
}

// errOtherDatabase: nodes that follow another database's changes would never drop a page.
var errOtherDatabase = errors.New("--replication-url leads to another server or database than --database-url")

// databaseIdentitySQL differs between databases and servers, also between an old
// primary that still runs and the new one.
const databaseIdentitySQL = `
SELECT system_identifier || '/' || oid || '/' || extract(epoch FROM pg_postmaster_start_time()) || '/' || pg_is_in_recovery() FROM pg_control_system(), pg_database WHERE datname = current_database()`

// checkReplicationURL looks whether changes are followed in the database that
// pages are read from, until that has been seen once.
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
