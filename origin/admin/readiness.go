package admin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/remedy"
	"listedge/origin/apikey"
	"listedge/origin/follower"
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
	lists        *list.Set
	readers      []Reader
	sameDatabase atomic.Bool // the replication URL leads to the same database; once true, it stays so
}

// NewReadiness returns the Readiness of a node that reads keys from db, and the lists with pages.
func NewReadiness(db *postgres.Database, lists *list.Set, pages Reader) *Readiness {
	return &Readiness{db: db, lists: lists, readers: []Reader{pages, apikey.NewStore(db, lists)}}
}

// Ready returns nil if the server answers the node's queries and the schema has
// all migrations that this program needs.
func (r *Readiness) Ready(ctx context.Context) error {
	err := r.db.Keys.Use(ctx, func(conn *pgx.Conn) error { return checkVersion(ctx, conn) })
	if err != nil {
		return postgres.Classify(err)
	}
	if err := r.checkReplicationURL(ctx); err != nil { // because of which readers may be refused
		return err
	}
	return r.checkReaders(ctx)
}

// checkVersion returns an error if the schema lacks a migration. What goose keeps is not asked for if
// the user lacks the right to read it, which a node does not need.
func checkVersion(ctx context.Context, conn *pgx.Conn) error {
	var have int64
	err := conn.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM public.listedge_schema_version WHERE is_applied`, pgx.QueryExecModeExec).Scan(&have)
	switch code := postgres.Code(err); {
	case code == "42501": // insufficient_privilege
		return nil
	case err != nil && code != "42P01": // undefined_table: never migrated
		return fmt.Errorf("read the schema's version: %w", postgres.Classify(err))
	}
	want := wantedVersion()
	if have >= want {
		return nil
	}
	if err := checkServer(ctx, conn); err != nil { // a migration would not help
		return err
	}
	return remedy.Add(fmt.Errorf("schema is at version %d, this program needs %d", have, want), migrateUp)
}

// migrateUp is what to do about a schema that is missing or old.
const migrateUp = "run `listedge migrate up`"

// querier is a connection, a transaction or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

//go:embed missing_rights.sql
var missingRightsSQL string

// missingRights returns the commands that give this user what it lacks of the rights on the tables;
// empty = nothing.
func missingRights(ctx context.Context, db querier, rights string, tables []list.Name) (commands string, err error) {
	schemas, names := namesOf(tables)
	rows, _ := db.Query(ctx, missingRightsSQL, pgx.QueryExecModeExec, schemas, names, rights)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(all, "; "), postgres.Classify(err)
}

// CheckUsage returns an error if this user may not write the usage of keys.
func CheckUsage(ctx context.Context, db querier) error {
	var tables []list.Name
	for _, name := range []string{"listedge_key_usage", "listedge_key_last_used", "listedge_usage_writers"} {
		tables = append(tables, list.Name{Schema: postgres.Schema, Table: name})
	}
	do, err := missingRights(ctx, db, "SELECT, INSERT, UPDATE, DELETE", tables)
	if do != "" {
		err = remedy.Add(errors.New("this user may not write it"), do)
	}
	return err
}

// whenBusy is what to do about page.ErrTimeout.
const whenBusy = "look for locks, and for what keeps the server busy"

// checkReaders returns the error of a reader that fails: if several do, one that is no timeout.
func (r *Readiness) checkReaders(ctx context.Context) (failed error) {
	for _, reader := range r.readers {
		if err := reader.Check(ctx); err != nil && (failed == nil || errors.Is(failed, postgres.ErrTimeout)) {
			failed = err
		}
	}
	switch code := postgres.Code(failed); {
	case errors.Is(failed, postgres.ErrTimeout):
		return remedy.Add(failed, whenBusy)
	case errors.Is(failed, postgres.ErrWrongServer):
		return remedy.Add(failed, "name the primary in --database-url, and standbys in --replica-url")
	case code == "42501": // insufficient_privilege
		if do, _ := missingRights(ctx, r.db.Keys.Pool, "SELECT", append(nodeTables(r.lists), apikey.FormsTable)); do != "" {
			return remedy.Add(failed, do)
		}
	case code == "42P01": // undefined table
		return remedy.Add(failed, remake(r.lists))
	case code == "42703", code == "42883", code == "42704", code == "42804", // undefined column, function, object; another type
		errors.Is(failed, postgres.ErrSchema): // and no migration is pending
		return remedy.Add(failed, restore(ctx, r.db.Keys.Pool, r.lists))
	}
	return failed
}

// checkReplicationURL returns an error if the replication URL leads to another database
// than pages are read from: a node would follow the wrong changes, and never invalidate a
// page. After its first success it does not check again.
func (r *Readiness) checkReplicationURL(ctx context.Context) error {
	o := r.db.Options
	if o.ReplicationURL == "" || o.ReplicationURL == o.URL || r.sameDatabase.Load() {
		return nil
	}
	changes, err := postgres.IdentifyAt(ctx, o.ReplicationURL)
	if err != nil {
		return fmt.Errorf("--replication-url: %w", err)
	}
	pages, err := r.db.Keys.Identify(ctx)
	if err == nil && pages != changes {
		err = remedy.Add(errors.New("--replication-url leads to another server or database than --database-url"),
			"name the server and the database that --database-url leads to")
	}
	r.sameDatabase.Store(err == nil)
	return err
}

//go:embed restore.sql
var restoreSQL string

// restored returns the arguments of restoreSQL: what MigrateUp makes for the lists of the tables that other
// systems change, too. They are read from the text of the migrations, which has a column a line.
func restored(lists *list.Set) (arguments [7][]string) {
	files, _ := migrationFiles.ReadDir("migrations")
	texts := []string{}
	for _, f := range files {
		text, _ := migrationFiles.ReadFile("migrations/" + f.Name())
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		texts = append(texts, up)
	}
	if lists.BuiltIn {
		texts = append(texts, contractSQL)
		for _, l := range lists.Lists {
			for _, index := range l.Indexes() {
				arguments[4] = append(arguments[4], index.Name)
				arguments[5] = append(arguments[5], strings.TrimSuffix(createIndex(index), "; "))
			}
		}
	}
	for _, up := range texts {
		up = comment.ReplaceAllLiteralString(up, "")
		for _, table := range tableOf.FindAllStringSubmatch(up, -1) {
			for _, c := range columnOf.FindAllStringSubmatch(table[2], -1) {
				definition := strings.TrimSuffix(strings.Join(strings.Fields(c[0]), " "), ",")
				for i, argument := range []string{table[1], c[1], c[2], definition} {
					arguments[i] = append(arguments[i], argument)
				}
			}
		}
		for _, function := range functionOf.FindAllStringSubmatch(up, -1) {
			arguments[6] = append(arguments[6], function[1])
		}
		for _, index := range indexOf.FindAllStringSubmatch(up, -1) {
			arguments[4] = append(arguments[4], index[1])
			arguments[5] = append(arguments[5], strings.TrimSuffix(strings.Join(strings.Fields(index[0]), " "), ";"))
		}
	}
	return arguments
}

var (
	comment    = regexp.MustCompile(`(?m)--[^+].*$`)
	tableOf    = regexp.MustCompile(`(?ms)^CREATE TABLE IF NOT EXISTS (?:public\.)?(\w+) \(\n(.*?)^\);`)
	columnOf   = regexp.MustCompile(`(?m)^    ([a-z_0-9]+) +([a-z0-9]+(?:\(\d+\)|\[\])?).*(?:\n     +.*)*`)
	functionOf = regexp.MustCompile(`(?m)^CREATE FUNCTION (\w+)`)
	indexOf    = regexp.MustCompile(`(?ms)^CREATE (?:UNIQUE )?INDEX (\w+) ON (?:workspaces|api_keys) .*?;$`)
)

// restore returns what to do about tables that are not those of the schema, although all migrations
// are applied: the commands that bring back a column, its name, its type or an index, and what only a
// backup has.
func restore(ctx context.Context, db querier, lists *list.Set) string {
	arguments := []any{pgx.QueryExecModeExec}
	for _, argument := range restored(lists) {
		arguments = append(arguments, argument)
	}
	rows, _ := db.Query(ctx, restoreSQL, arguments...)
	if commands, err := pgx.CollectRows(rows, pgx.RowTo[string]); err == nil && len(commands) > 0 {
		return strings.Join(commands, "; ")
	}
	return remake(lists)
}

// remake is what to do about a table, or about what no command brings back.
func remake(lists *list.Set) string {
	if !lists.BuiltIn {
		return "make the tables and --lists fit (`listedge lists plan` compares them), run `listedge migrate up`, " +
			"and restart the nodes, which know the tables as they were"
	}
	return migrateUp + "; what it has made before and was dropped since, restore from a backup" + orName
}

// orName is what to do about missing tables of the built-in lists if --lists was forgotten.
const orName = "; if your lists are of your own tables, name their description with --lists FILE"

//go:embed doctor.sql
var doctorSQL string

// Risk is what a node does not notice in Postgres before it harms.
type Risk struct {
	Subject string
	Effect  int    // of a check of edge/admin: 0 = the doctor warns, 1 = it fails
	Fine    string // how it is while there is no risk
	Why     string // empty = there is none
	Remedy  string
}

// Risks returns those of a fleet of so many nodes that serve the lists, with the slot of its region and so
// many connections for each.
func Risks(ctx context.Context, db querier, lists *list.Set, region string, connections, nodes int) ([]Risk, error) {
	schemas, names := namesOf(nodeTables(lists))
	rows, _ := db.Query(ctx, doctorSQL, pgx.QueryExecModeExec, follower.SlotPrefix, follower.SlotSuffix(region), schemas, names, connections, nodes)
	risks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Risk])
	if err != nil {
		err = fmt.Errorf("read the system catalogs: %w", postgres.Classify(err))
		if errors.Is(err, postgres.ErrTimeout) {
			err = remedy.Add(err, whenBusy)
		}
		return nil, err
	}
	steps, err := MissingOfLists(ctx, db, lists)
	if err != nil {
		return risks, nil // a table or a function is missing: Ready says so
	}
	lacking := Risk{Subject: "lists", Fine: "the database has the indexes and all else that they need"}
	if len(steps) > 0 {
		lacking.Why, lacking.Remedy = fmt.Sprintf("the database lacks %s (%d in all)", steps[0].SQL, len(steps)), "`listedge lists plan --apply`"
	}
	return append(risks, lacking), nil
}
