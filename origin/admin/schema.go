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

	"listedge/internal/list"
	"listedge/internal/remedy"
	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/follower"
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

// MigrateUp applies pending migrations, makes the tables and indexes of the contract if the lists
// are those, and makes the publication if the user has the right to. It touches no table of another
// description: `listedge lists plan` says what those lack. It returns what it did, or could not do, in
// lines for people. Several nodes may call it at once: an advisory lock admits one at a time, and the
// others then find nothing pending. Migrations are added to the audit log in a transaction of
// its own. listedge_schema_version has them in any case.
func MigrateUp(ctx context.Context, url string, lists *list.Set) (done []string, err error) {
	c, err := Open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("migrate up: %w", err)
	}
	defer c.Close()
	err = taken(ctx, c.conn, lists, false)
	if err != nil {
		return nil, fmt.Errorf("migrate up: %w", err)
	}
	applied, err := applyMigrations(ctx, c)
	for _, name := range applied {
		done = append(done, "applied "+name)
	}
	if len(applied) > 0 {
		_, failed := act(ctx, c, func(pgx.Tx) (done struct{}, a audit.Act, err error) {
			return done, audit.Act{Action: "migrate.up", Details: map[string]any{"applied": applied}}, nil
		})
		err = errors.Join(err, failed)
	}
	for _, step := range []func(context.Context, *Conn, *list.Set) (string, error){makeContract, makePublication} {
		did := ""
		if err == nil {
			did, err = step(ctx, c, lists)
		}
		if did != "" {
			done = append(done, did)
		}
	}
	if err != nil {
		err = fmt.Errorf("migrate up: %w", err)
	}
	return done, err
}

// collisionsSQL selects what has the names of what migrations make, and is not theirs.
//
//go:embed collisions.sql
var collisionsSQL string

// taken returns an error that names all collisions of a database that was never migrated; migrated = also those of the tables of lists
// if migrations were applied.
func taken(ctx context.Context, db querier, lists *list.Set, migrated bool) error {
	made := restored(lists)
	rows, _ := db.Query(ctx, collisionsSQL, pgx.QueryExecModeExec, made[0], made[1], made[2], made[4], made[6], migrated)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read which names are free: %w", postgres.Classify(err))
	}
	if len(all) > 0 {
		return remedy.Add(errors.New("nothing was changed: names that listedge needs in the schema public belong to something else: "+strings.Join(all, "; ")),
			"rename it, or move it to another schema")
	}
	return nil
}

// applyMigrations returns the names of those that it applied, also with an error.
func applyMigrations(ctx context.Context, c *Conn) (applied []string, err error) {
	err = withGoose(ctx, c, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, path.Base(r.Source.Path))
		}
		return err
	})
	return applied, err
}

// MigrateStatus lists all migrations, applied or pending.
func MigrateStatus(ctx context.Context, c *Conn) (all []Migration, err error) {
	err = withGoose(ctx, c, func(p *goose.Provider) error {
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

// versionTable says which migrations were applied. With another name it would be that of every program that uses goose.
const versionTable = "listedge_schema_version"

func withGoose(ctx context.Context, c *Conn, use func(*goose.Provider) error) error {
	err := checkServer(ctx, c.conn)
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
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker),
		goose.WithTableName(postgres.Schema+"."+versionTable), goose.WithDisableGlobalRegistry(true))
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

// lockMigrations admits one program at a time that makes tables or the publication: several nodes may migrate at once.
const lockMigrations = `SELECT pg_advisory_xact_lock(7235116)`

// errNothingToDo: the database has all that a step of MigrateUp makes.
var errNothingToDo = errors.New("nothing to do")

// contractSQL makes the tables of the contract.
//
//go:embed contract.sql
var contractSQL string

// makeContract makes the tables of the contract and the indexes of their lists, and returns which it made.
// It looks for an index before it makes it, because CREATE INDEX IF NOT EXISTS waits for writers.
func makeContract(ctx context.Context, c *Conn, lists *list.Set) (done string, err error) {
	if !lists.BuiltIn {
		return "", nil
	}
	done, err = act(ctx, c, func(tx pgx.Tx) (did string, a audit.Act, err error) {
		missing, none, err := missingOf(ctx, tx, lists)
		switch {
		case err != nil:
		case len(missing) == 0:
			err = errNothingToDo
		case none:
			err = taken(ctx, tx, lists, true)
		}
		if err == nil {
			_, err = tx.Exec(ctx, contractSQL)
		}
		for _, l := range lists.Lists {
			for _, index := range l.Indexes() {
				if err == nil && slices.Contains(missing, index.Name) {
					_, err = tx.Exec(ctx, createIndex(index))
				}
			}
		}
		did = "made " + strings.Join(missing, ", ")
		others := ""
		if err == nil && none {
			_, own := namesOf(lists.Tables())
			err = tx.QueryRow(ctx, othersSQL, follower.PublicationName, postgres.Schema, append(own, "workspaces", "api_keys")).Scan(&others)
		}
		if others != "" {
			did += "; the publication has " + others + ", too" + orName
		}
		return did, audit.Act{Action: "migrate.lists", Details: map[string]any{"made": missing}}, err
	})
	if errors.Is(err, errNothingToDo) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("make the tables of the lists: %w", err)
	}
	return done, nil
}

// othersSQL selects the tables of other lists that the publication $1 has: those that are not in the schema $2, or none of $3.
const othersSQL = `SELECT coalesce(string_agg(format('%s.%s', nspname, relname), ', ' ORDER BY nspname, relname), '')
	FROM pg_publication JOIN pg_publication_rel r ON prpubid = pg_publication.oid JOIN pg_class c ON c.oid = prrelid JOIN pg_namespace n ON n.oid = relnamespace
	WHERE pubname = $1 AND (nspname <> $2 OR relname <> ALL ($3))`

// createIndex is a statement that makes the index, and another where it needs one.
func createIndex(index list.Index) string {
	return "CREATE INDEX " + list.Quote(index.Name) + " " + index.SQL + "; " + index.Then
}

// missingOf returns which tables and indexes of lists, all of the schema public, the database lacks; none = it has none
// of the indexes. No other program that migrates changes that before the transaction ends.
func missingOf(ctx context.Context, tx pgx.Tx, lists *list.Set) (missing []string, none bool, err error) {
	_, wanted := namesOf(lists.Tables())
	tables := len(wanted)
	for _, l := range lists.Lists {
		for _, index := range l.Indexes() {
			wanted = append(wanted, index.Name)
		}
	}
	_, err = tx.Exec(ctx, lockMigrations)
	if err != nil {
		return nil, false, err
	}
	rows, _ := tx.Query(ctx, `SELECT name FROM unnest($1::text[]) WITH ORDINALITY wanted (name, n)
		WHERE NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = name) ORDER BY n`, wanted)
	missing, err = pgx.CollectRows(rows, pgx.RowTo[string])
	have := slices.ContainsFunc(wanted[tables:], func(index string) bool { return !slices.Contains(missing, index) })
	return missing, !have, err
}

// namesOf returns the schemas and the names of tables, for statements.
func namesOf(tables []list.Name) (schemas, names []string) {
	for _, t := range tables {
		schemas, names = append(schemas, t.Schema), append(names, t.Table)
	}
	return schemas, names
}

// makePublication makes or mends the publication that nodes follow changes by: of the keys and, if the
// lists are those of the contract, of their tables. It returns what it did, or why this user cannot
// do it; empty = nothing was to be done.
func makePublication(ctx context.Context, c *Conn, lists *list.Set) (done string, err error) {
	tables := list.KeyTables
	if lists.BuiltIn {
		tables = nodeTables(lists)
	}
	done, err = act(ctx, c, func(tx pgx.Tx) (did string, a audit.Act, err error) {
		var p planner
		_, err = tx.Exec(ctx, lockMigrations) // only the first program finds the publication missing
		if err == nil {
			p.facts, err = readListFacts(ctx, tx, tables, lists)
		}
		for _, name := range tables {
			if p.facts.table(name) == nil { // the server says that it is missing
				p.facts.Tables = append(p.facts.Tables, tableFacts{Name: name})
			}
		}
		p.publish()
		if err == nil && len(p.steps) == 0 {
			err = errNothingToDo
		}
		for _, s := range p.steps {
			if err == nil {
				_, err = tx.Exec(ctx, s.SQL)
			}
		}
		did = "mended the publication"
		if !p.facts.Publication {
			did = "made the publication"
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
	case errors.Is(err, errNothingToDo):
		done = ""
	case err != nil:
		return "", fmt.Errorf("make the publication: %w", err)
	}
	return done, nil
}

// nodeTables are the tables that nodes read and follow: those of the lists, and of keys.
func nodeTables(lists *list.Set) []list.Name { return append(lists.Tables(), list.KeyTables...) }

// grantsText gives the role %[1]s the rights of a node. %[2]s is its name as a
// literal, %[3]s the schemas, %[4]s the tables.
const grantsText = `-- What the role of the nodes needs. Run this in their database, after the migrations, as the owner of the database
-- and its tables. The role has to be there: CREATE ROLE %[1]s LOGIN PASSWORD '…';
DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %%I TO %%I', current_database(), %[2]s); END $$;
GRANT USAGE ON SCHEMA %[3]s TO %[1]s;
GRANT SELECT ON %[4]s TO %[1]s;
GRANT EXECUTE ON FUNCTION public.listedge_fold, public.listedge_fold_letters, public.listedge_name_key, public.listedge_search_grams TO %[1]s;
-- The tables to which nodes write the usage of keys. Nodes write no others.
GRANT SELECT, INSERT, UPDATE, DELETE ON public.listedge_key_usage, public.listedge_key_last_used, public.listedge_usage_writers TO %[1]s;

-- To follow changes. It takes a superuser, or, since Postgres 16, a role that has CREATEROLE, REPLICATION and ADMIN
-- of this one. A managed Postgres may have a way of its own, such as GRANT rds_replication TO %[1]s;
ALTER ROLE %[1]s REPLICATION;

-- Only where nodes read from standbys (--replica-url). It takes a superuser, or, since Postgres 16, ADMIN of pg_read_all_stats.
-- GRANT pg_read_all_stats TO %[1]s;

-- Only where row level security is on for the tables and the role does not own them. It takes a superuser.
-- ALTER ROLE %[1]s BYPASSRLS;
`

// Grants is SQL that gives the role the rights of a node whose lists have these tables.
func Grants(role string, tables []list.Name) (string, error) {
	switch {
	case role == "", len(role) > 63, strings.ContainsAny(role, "\x00\n\r$"):
		return "", errors.New("a role's name has 1 to 63 bytes, all in one line, and here no $")
	case role == "public", role == "none":
		return "", fmt.Errorf("%s is no role's name, quoted or not", role)
	}
	schemas, names := []string{list.Quote(postgres.Schema)}, []string(nil)
	for _, t := range slices.Concat(tables, list.KeyTables, []list.Name{apikey.FormsTable}) {
		if !slices.Contains(schemas, list.Quote(t.Schema)) {
			schemas = append(schemas, list.Quote(t.Schema))
		}
		names = append(names, t.SQL())
	}
	return fmt.Sprintf(grantsText, list.Quote(role), "'"+strings.ReplaceAll(role, "'", "''")+"'", strings.Join(schemas, ", "), strings.Join(names, ", ")), nil
}

//go:embed remove.sql
var removeSQL string

// RemovalSQL returns what removes all that the program has made in a database: remove.sql, the
// indexes of the lists and of those of the contract, and the migrations downwards. One transaction runs it.
func RemovalSQL(lists *list.Set) string {
	sql := removeSQL
	indexes := map[string]bool{}
	for _, l := range slices.Concat(list.BuiltIn().Lists, lists.Lists) {
		for _, index := range l.Indexes() {
			name := list.Name{Schema: l.Table.Schema, Table: index.Name}.SQL()
			if !indexes[name] {
				sql += "DROP INDEX IF EXISTS " + name + ";\n"
			}
			indexes[name] = true
		}
	}
	files, _ := fs.Glob(migrationFiles, "migrations/*.sql")
	for _, name := range slices.Backward(files) {
		migration, _ := fs.ReadFile(migrationFiles, name)
		_, down, _ := strings.Cut(string(migration), "-- +goose Down\n")
		sql += down
	}
	return sql
}

// Remove runs RemovalSQL in the database. All nodes must have stopped.
func Remove(ctx context.Context, url string, lists *list.Set) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.conn.PgConn().Exec(ctx, "BEGIN;"+RemovalSQL(lists)+"COMMIT").ReadAll()
	switch postgres.Code(err) {
	case "55006": // object_in_use
		return fmt.Errorf("stop all nodes first: %w", err)
	case "2BP01": // dependent_objects_still_exist
		err = remedy.Add(err, "name the description of the lists whose indexes use it, --lists FILE, or drop them")
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
