package admin

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"listedge/internal/lists"
	"listedge/internal/remedy"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one numbered change of the schema.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"appliedAt,omitzero"` // zero = pending
}

// MigrateUp applies pending migrations, and makes the publication if the user has the
// right to. It returns what it did, or could not do, in lines for people. Several nodes may
// call it at once: an advisory lock admits one at a time, and the others then find nothing
// pending. Migrations are added to the audit log in a transaction of its own.
// goose_db_version has them in any case.
func MigrateUp(ctx context.Context, url string) (done []string, err error) {
	var names []string
	err = withGoose(ctx, url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
			results = partial.Applied
		}
		for _, r := range results {
			names = append(names, path.Base(r.Source.Path))
			done = append(done, "applied "+path.Base(r.Source.Path))
		}
		return err
	})
	if len(names) > 0 {
		c, failed := Open(ctx, url)
		if failed == nil {
			defer c.Close()
			_, failed = act(ctx, c, func(pgx.Tx) (done struct{}, a audit.Act, err error) {
				return done, audit.Act{Action: "migrate.up", Details: map[string]any{"applied": names}}, nil
			})
		}
		err = errors.Join(err, failed)
	}
	if err == nil {
		published, failed := makePublication(ctx, url)
		if published != "" {
			done = append(done, published)
		}
		err = failed
	}
	if err != nil {
		err = fmt.Errorf("migrate up: %w", err)
	}
	return done, err
}

// MigrateStatus lists all migrations, applied or pending.
func MigrateStatus(ctx context.Context, url string) (all []Migration, err error) {
	err = withGoose(ctx, url, func(p *goose.Provider) error {
		statuses, err := p.Status(ctx)
		for _, s := range statuses {
			all = append(all, Migration{Version: s.Source.Version, Name: path.Base(s.Source.Path), AppliedAt: s.AppliedAt})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	return all, nil
}

func withGoose(ctx context.Context, url string, use func(*goose.Provider) error) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	err = checkServer(ctx, c.conn)
	c.Close()
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*c.conn.Config())
	defer db.Close()
	files, _ := fs.Sub(migrationFiles, "migrations")
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // a try every second, for five minutes
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return use(provider)
}

// wantedVersion is the newest embedded migration.
func wantedVersion() int64 {
	files, _ := fs.ReadDir(migrationFiles, "migrations") // in their order
	newest, err := goose.NumericComponent(files[len(files)-1].Name())
	if err != nil {
		panic("BUG: a migration has no number: " + err.Error())
	}
	return newest
}

// publicationSQL makes the publication of the whole TABLES, or adds what it lacks, and
// leaves in listedge.did what it did. Its lock is for programs that migrate at once: only the
// first of them finds the publication missing.
//
//go:embed publication.sql
var publicationSQL string

// errPublished: the publication is as it should be.
var errPublished = errors.New("nothing to change")

// makePublication makes or mends the publication that nodes follow changes by. It
// returns what it did, or why this user cannot do it; empty = nothing was to be done.
func makePublication(ctx context.Context, url string) (done string, err error) {
	c, err := Open(ctx, url)
	if err != nil {
		return "", err
	}
	defer c.Close()
	done, err = act(ctx, c, func(tx pgx.Tx) (did string, a audit.Act, err error) {
		_, err = tx.Exec(ctx, strings.ReplaceAll(publicationSQL, "TABLES", lists.TablesSQL))
		if err == nil {
			err = tx.QueryRow(ctx, `SELECT current_setting('listedge.did')`).Scan(&did)
		}
		if err == nil && did == "" {
			err = errPublished
		}
		return did, audit.Act{Action: "migrate.publication", Details: map[string]any{"did": did}}, err
	})
	var server *pgconn.PgError
	switch {
	case errors.As(err, &server) && !strings.HasPrefix(server.Code, "57") && !strings.HasPrefix(server.Code, "08"):
		done = "not made: the publication: " + server.Message
		if server.Code == "42501" { // insufficient_privilege
			done += ": needs the owner of the tables, with CREATE on the database"
		}
	case errors.Is(err, errPublished):
	case err != nil:
		return "", fmt.Errorf("make the publication: %w", err)
	}
	return done, nil
}

// grantsText gives the role %[1]s the rights of a node. %[2]s is its name as a
// literal, %[3]s the tables.
const grantsText = `-- What the role of the nodes needs. Run this in their database, after the migrations, as the owner of the database
-- and its tables. The role has to be there: CREATE ROLE %[1]s LOGIN PASSWORD '…';
DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %%I TO %%I', current_database(), %[2]s); END $$;
GRANT USAGE ON SCHEMA public TO %[1]s;
GRANT SELECT ON public.%[3]s TO %[1]s;
GRANT EXECUTE ON FUNCTION public.fold(text), public.fold_letters(text), public.name_key(text), public.search_text(text, text, text, text),
	public.search_grams(uuid, text) TO %[1]s;
-- The tables to which nodes write the usage of keys. Nodes write no others.
GRANT SELECT, INSERT, UPDATE, DELETE ON public.key_usage, public.key_last_used, public.usage_writers TO %[1]s;

-- To follow changes. It takes a superuser, or, since Postgres 16, a role that has CREATEROLE, REPLICATION and ADMIN
-- of this one. A managed Postgres may have a way of its own, such as GRANT rds_replication TO %[1]s;
ALTER ROLE %[1]s REPLICATION;

-- Only where nodes read from standbys (--replica-url). It takes a superuser, or, since Postgres 16, ADMIN of pg_read_all_stats.
-- GRANT pg_read_all_stats TO %[1]s;

-- Only where row level security is on for the tables and the role does not own them. It takes a superuser.
-- ALTER ROLE %[1]s BYPASSRLS;
`

// Grants is SQL that gives the role the rights of a node.
func Grants(role string) (string, error) {
	switch {
	case role == "", len(role) > 63, strings.ContainsAny(role, "\x00\n\r$"):
		return "", errors.New("a role's name has 1 to 63 bytes, all in one line, and here no $")
	case role == "public", role == "none":
		return "", fmt.Errorf("%s is no role's name, quoted or not", role)
	}
	return fmt.Sprintf(grantsText, pgx.Identifier{role}.Sanitize(), "'"+strings.ReplaceAll(role, "'", "''")+"'",
		strings.Join(lists.Tables(), ", public.")), nil
}

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

const serverSQL = `SELECT current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1),
	pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()`

// checkServer returns why the database cannot have the schema; nil if it can.
func checkServer(ctx context.Context, db querier) error {
	var number int
	var version, encoding string
	if err := db.QueryRow(ctx, serverSQL, pgx.QueryExecModeExec).Scan(&number, &version, &encoding); err != nil {
		return fmt.Errorf("read the server's version: %w", postgres.Classify(err))
	}
	return judgeServer(number, version, encoding)
}

// judgeServer judges server_version_num, server_version and the database's encoding. The
// client's encoding does not help: the database cannot store a character that its own
// encoding lacks.
func judgeServer(number int, version, encoding string) error {
	switch {
	case number < 150_000:
		return remedy.Add(errors.New("Postgres "+version+" is too old"), "use Postgres 15 or later")
	case encoding != "UTF8":
		return remedy.Add(errors.New("the database's encoding is "+encoding+", which cannot hold every name"), "make a database with ENCODING 'UTF8'")
	}
	return nil
}
