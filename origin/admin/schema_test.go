package admin

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"listedge/origin/postgres"
)

// emptyDatabase has nothing in it.
func emptyDatabase(t testing.TB) string {
	t.Helper()
	return copyDatabase(t, "template0")
}

func TestMigratingUpFromNothing(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	db := openDatabase(t, postgres.Options{URL: url})
	ready := func(lacks string) {
		t.Helper()
		err := readiness(db).Ready(t.Context())
		if lacks == "" && err != nil || lacks != "" && (err == nil || !strings.HasSuffix(err.Error(), lacks+": run `listedge migrate up`")) {
			t.Errorf("%v, want %q", err, lacks)
		}
	}
	status := func(applied bool) {
		t.Helper()
		all := must1(MigrateStatus(t.Context(), url))
		for _, m := range all {
			if m.AppliedAt.IsZero() == applied || !strings.HasPrefix(m.Name, fmt.Sprintf("%05d_", m.Version)) {
				t.Errorf("%+v, applied: %v", m, applied)
			}
		}
		if len(all) == 0 || all[len(all)-1].Version != wantedVersion() {
			t.Errorf("%+v", all)
		}
	}
	needs := fmt.Sprintf("this program needs %d", wantedVersion())
	ready("schema is at version 0, " + needs)
	status(false)
	if done := must1(MigrateUp(t.Context(), url)); len(done) < 2 || done[len(done)-1] != "made the publication" {
		t.Error(done)
	}
	status(true)
	ready("")
	conn := connect(t, url)
	exec(t, conn, "UPDATE goose_db_version SET is_applied = false WHERE version_id = $1", wantedVersion())
	ready(needs)
	exec(t, conn, "UPDATE goose_db_version SET is_applied = true")
	if again := must1(MigrateUp(t.Context(), url)); len(again) != 0 {
		t.Errorf("twice: %+v", again)
	}
}

func TestTenNodesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	var all sync.WaitGroup
	var done atomic.Int64
	for range 10 {
		all.Go(func() {
			applied, err := MigrateUp(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			done.Add(int64(len(applied)))
		})
	}
	all.Wait()
	if want := len(must1(MigrateStatus(t.Context(), url))) + 1; done.Load() != int64(want) { // and the publication
		t.Errorf("%d acts, want %d", done.Load(), want)
	}
	if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// The database refuses values that the API could not show, whichever program writes them.
func TestConstraintsRefuseWhatTheAPICannotShow(t *testing.T) {
	t.Parallel()
	conn, ourWorkspace := connect(t, newDatabase(t)), uuid.New()
	exec(t, conn, "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", ourWorkspace)
	exec(t, conn, "INSERT INTO items (workspace_id, name) VALUES ($1, 'fine')", ourWorkspace)
	exec(t, conn, "INSERT INTO contacts (workspace_id, name) VALUES ($1, 'fine')", ourWorkspace)
	key := `INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) VALUES ('` + ourWorkspace.String() + `', %s, 'lk_', %s)`
	hash := "sha256(random()::text::bytea)"
	refused := map[string]string{ // what, and the SQLSTATE it is refused with
		"INSERT INTO items (workspace_id, id, name) SELECT workspace_id, id, name FROM items":       "23505",
		"INSERT INTO items (workspace_id) VALUES (gen_random_uuid())":                               "23502",
		"INSERT INTO items (name) VALUES ('x')":                                                     "23502",
		"INSERT INTO contacts (workspace_id) VALUES (gen_random_uuid())":                            "23502",
		"UPDATE items SET type = 'goods'":                                                           "23514",
		"UPDATE items SET type = ''":                                                                "23514",
		"UPDATE items SET usage_30 = -0.1":                                                          "23514",
		"UPDATE items SET usage_30 = 1e400":                                                         "23514",
		"UPDATE items SET usage_30 = 9007199254740991.1":                                            "23514",
		"UPDATE workspaces SET name = ''":                                                           "23514",
		"UPDATE workspaces SET burst = 0":                                                           "23514",
		fmt.Sprintf(key, "''", "'{}'"):                                                              "23514",
		fmt.Sprintf(key, "'\\x00'", "'{}'"):                                                         "23514",
		fmt.Sprintf(key, hash+" || '\\x00'", "'{}'"):                                                "23514",
		fmt.Sprintf(key, hash, "'{items:write}'"):                                                   "23514",
		fmt.Sprintf(key, hash, "'{items:read,NULL}'"):                                               "23514",
		fmt.Sprintf(key, hash, "NULL"):                                                              "23502",
		strings.Replace(fmt.Sprintf(key, hash, "'{}'"), ourWorkspace.String(), uuid.NewString(), 1): "23503",
	}
	for _, table := range []string{"items", "contacts"} {
		refused["UPDATE "+table+" SET name = ''"] = "23514"
		refused["UPDATE "+table+" SET name = NULL"] = "23502"
		refused["UPDATE "+table+" SET active = NULL"] = "23502"
		refused["UPDATE "+table+" SET workspace_id = NULL"] = "23502"
		refused["UPDATE "+table+" SET created_at = NULL"] = "23502"
		for _, at := range []string{"infinity", "-infinity", "10000-01-01Z", "9999-12-31 23:59:59.9995Z", "0001-12-31 23:59:59.999Z BC", "4000-01-01Z BC"} {
			refused["UPDATE "+table+" SET created_at = "+"'"+at+"'"] = "23514"
		}
	}
	for _, column := range []string{"cost_price", "avg_cost", "selling_price", "stock_on_hand", "reorder_point", "usage_30"} {
		for _, value := range []string{"NaN", "Infinity", "-Infinity"} {
			refused["UPDATE items SET "+column+" = "+"'"+value+"'"] = "23514"
		}
		if column != "reorder_point" {
			refused["UPDATE items SET "+column+" = NULL"] = "23502"
		}
	}
	for _, table := range []string{"workspaces", "api_keys"} {
		exec(t, conn, "INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) VALUES ($1, "+hash+", '', '{}')", ourWorkspace)
		for _, value := range []string{"-1", "'NaN'", "'Infinity'"} {
			refused["UPDATE "+table+" SET rate_per_second = "+value] = "23514"
		}
	}
	for _, quota := range []string{"(5, NULL)", "(NULL, 'day')", "(0, 'day')", "(-1, 'month')", "(4000000001, 'month')", "(5, 'week')", "(5, 'Day')", "(5, '')"} {
		refused["UPDATE workspaces SET (quota, quota_period) = "+quota] = "23514"
	}
	for statement, code := range refused {
		if _, err := conn.Exec(t.Context(), statement); postgres.Code(err) != code {
			t.Errorf("%s: %v, want SQLSTATE %s", statement, err, code)
		}
	}
	for _, fine := range []string{
		"UPDATE items SET usage_30 = 9007199254740991",
		"UPDATE items SET name = ' ', created_at = '9999-12-31 23:59:59.999Z', usage_30 = 0.5, reorder_point = NULL, cost_price = -1",
		"UPDATE contacts SET name = E'\\x01', created_at = '0001-01-01Z'", "UPDATE workspaces SET rate_per_second = 0, burst = 1",
		"UPDATE workspaces SET quota = 4000000000, quota_period = 'month'", "UPDATE workspaces SET quota = NULL, quota_period = NULL",
	} {
		exec(t, conn, fine)
	}
}

// Writers pay for indexes and nothing else.
func TestNothingStandsInTheWritersPath(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	var triggers, rules, foreign int
	must(conn.QueryRow(t.Context(), `SELECT
		(SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('items'::regclass, 'contacts'::regclass)),
		(SELECT count(*) FROM pg_rewrite WHERE ev_class IN ('items'::regclass, 'contacts'::regclass)),
		(SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid IN ('items'::regclass, 'contacts'::regclass))`).Scan(
		&triggers, &rules, &foreign))
	if triggers+rules+foreign != 0 {
		t.Errorf("%d triggers, %d rules, %d foreign keys", triggers, rules, foreign)
	}
}

// docs/OPERATIONS.md lists the columns that other systems write.
func TestTheDocsListTheColumns(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	docs := string(must1(os.ReadFile("../../docs/OPERATIONS.md")))
	for _, table := range []string{"items", "contacts"} {
		var columns string
		must(conn.QueryRow(t.Context(), `SELECT string_agg(format(E'| `+"`%s`"+` | %s | %s |\n', attname, format_type(atttypid, atttypmod),
				coalesce('`+"`' || regexp_replace(pg_get_expr(adbin, adrelid), '::text$', '') || '`"+`', CASE WHEN attnotnull THEN 'required' ELSE 'null' END)), '' ORDER BY attnum)
			FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped`, table).Scan(&columns))
		want := "\n\n| `" + table + "` | type | if absent |\n|---|---|---|\n" + columns + "\n"
		if !strings.Contains(docs, want) {
			t.Errorf("docs/OPERATIONS.md should have%s", want)
		}
	}
}

func TestServersThatCannotHaveTheSchema(t *testing.T) {
	for _, c := range []struct {
		number            int
		version, encoding string
		want              string
	}{
		{150000, "15.0", "UTF8", ""}, {150014, "15.14", "UTF8", ""}, {180001, "18.1", "UTF8", ""},
		{140023, "14.23", "LATIN1", "Postgres 14.23 is too old: use Postgres 15 or later"},
		{150014, "15.14", "LATIN1", "the database's encoding is LATIN1, which cannot hold every name: make a database with ENCODING 'UTF8'"},
		{150014, "15.14", "SQL_ASCII", "the database's encoding is SQL_ASCII, which cannot hold every name: make a database with ENCODING 'UTF8'"},
	} {
		got := ""
		if err := judgeServer(c.number, c.version, c.encoding); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.version, c.encoding, got, c.want)
		}
	}
}

// A database of another encoding is refused before anything is done, and
// migrate and a node say the same of it.
func TestADatabaseOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			name := "other_" + strings.ToLower(encoding)
			execOn(t, postgresServer().URL("postgres"), fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", name, encoding))
			t.Cleanup(func() { execOn(t, postgresServer().URL("postgres"), "DROP DATABASE "+name+" WITH (FORCE)") })
			url := postgresServer().URL(name)
			want := "the database's encoding is " + encoding + ", which cannot hold every name: make a database with ENCODING 'UTF8'"
			if applied, err := MigrateUp(t.Context(), url); err == nil || !strings.HasSuffix(err.Error(), want) || len(applied) != 0 {
				t.Errorf("migrate up: %v, applied %v", err, applied)
			}
			if _, err := MigrateStatus(t.Context(), url); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("migrate status: %v", err)
			}
			var tables int
			const sql = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
			if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&tables); err != nil || tables != 0 {
				t.Errorf("%d tables, %v", tables, err)
			}
			if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("ready: %v", err)
			}
		})
	}
}
