package admin

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/origin/apikey"
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
		all := must1(MigrateStatus(t.Context(), openAdmin(t, url)))
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
	if done := must1(MigrateUp(t.Context(), url, list.BuiltIn())); len(done) < 2 || done[len(done)-1] != "made the publication" {
		t.Error(done)
	}
	status(true)
	ready("")
	conn := connect(t, url)
	exec(t, conn, "UPDATE listedge_schema_version SET is_applied = false WHERE version_id = $1", wantedVersion())
	ready(needs)
	exec(t, conn, "UPDATE listedge_schema_version SET is_applied = true")
	if again := must1(MigrateUp(t.Context(), url, list.BuiltIn())); len(again) != 0 {
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
			applied, err := MigrateUp(t.Context(), url, list.BuiltIn())
			if err != nil {
				t.Error(err)
			}
			done.Add(int64(len(applied)))
		})
	}
	all.Wait()
	if want := len(must1(MigrateStatus(t.Context(), openAdmin(t, url)))) + 2; done.Load() != int64(want) { // and the lists and the publication
		t.Errorf("%d acts, want %d", done.Load(), want)
	}
	if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// foreign is a list of a table that no migration makes.
func foreign(schema, table string) *list.Set {
	return &list.Set{Lists: []*list.List{{Name: "products", Table: list.Name{Schema: schema, Table: table}, Tenant: -1}}}
}

// relations are those of a kind in the schema public but for the version's, and published those of the publication.
func relations(t testing.TB, url, kind string) (names string) {
	t.Helper()
	must(connect(t, url).QueryRow(t.Context(), `SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind::text = $1 AND relname !~ '^listedge_schema'`, kind).Scan(&names))
	return names
}

func published(t testing.TB, url string) (names string) {
	t.Helper()
	must(connect(t, url).QueryRow(t.Context(), `SELECT string_agg(name, ' ' ORDER BY name)
		FROM pg_publication_rel CROSS JOIN LATERAL (SELECT prrelid::regclass::text) r (name)`).Scan(&names))
	return names
}

// Where the lists are described, their tables are there already: migrations make none, and touch none.
func TestMigratingForADescription(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	execOn(t, url, `CREATE SCHEMA "My shop"; CREATE TABLE "My shop"."Pro""ducts" (id int PRIMARY KEY)`)
	lists := foreign("My shop", `Pro"ducts`)
	must1(MigrateUp(t.Context(), url, lists))
	const own = "api_keys listedge_audit_log listedge_key_forms listedge_key_last_used listedge_key_usage listedge_usage_writers workspaces"
	t.Run("makes no tables", func(t *testing.T) {
		if tables := relations(t, url, "r"); tables != own {
			t.Error(tables)
		}
		if tables := published(t, url); tables != "api_keys workspaces" {
			t.Error(tables)
		}
		if again := must1(MigrateUp(t.Context(), url, lists)); len(again) != 0 {
			t.Errorf("twice: %q", again)
		}
	})
	t.Run("leaves its tables in the publication", func(t *testing.T) {
		execOn(t, url, `ALTER PUBLICATION listedge ADD TABLE "My shop"."Pro""ducts"`)
		must1(MigrateUp(t.Context(), url, lists))
		if tables := published(t, url); tables != `"My shop"."Pro""ducts" api_keys workspaces` {
			t.Error(tables)
		}
	})
	t.Run("and later for the contract", func(t *testing.T) {
		err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context())
		if err == nil || !strings.Contains(err.Error(), "public.items") || !strings.Contains(err.Error(), migrateUp+"; what it has made before") {
			t.Errorf("before: %v", err)
		}
		done := must1(MigrateUp(t.Context(), url, list.BuiltIn()))
		if len(done) != 2 || !strings.HasPrefix(done[0], "made items, contacts, items_by_created_at") || done[1] != "mended the publication" {
			t.Errorf("%q", done)
		}
		if tables := relations(t, url, "r"); tables != strings.Replace(own, "api_keys ", "api_keys contacts items ", 1) {
			t.Error(tables)
		}
	})
	t.Run("one index is missing", func(t *testing.T) {
		before := relations(t, url, "i")
		index := indexNamed(t, "contacts_by_grams")
		execOn(t, url, "DROP INDEX "+index)
		if done := must1(MigrateUp(t.Context(), url, list.BuiltIn())); len(done) != 1 || done[0] != "made "+index {
			t.Errorf("%q", done)
		}
		if after := relations(t, url, "i"); after != before {
			t.Errorf("%s, before %s", after, before)
		}
	})
	t.Run("and back", func(t *testing.T) {
		execOn(t, url, `CREATE INDEX products ON "My shop"."Pro""ducts" (public.listedge_name_key(id::text))`)
		if err := Remove(t.Context(), url, list.BuiltIn()); err == nil || !strings.Contains(err.Error(), "--lists FILE") {
			t.Errorf("without its description: %v", err)
		}
		execOn(t, url, `DROP INDEX "My shop".products`) // as the description would have it
		must(Remove(t.Context(), url, lists))
		if tables, indexes := relations(t, url, "r"), relations(t, url, "i"); tables != "api_keys contacts items workspaces" || strings.Contains(indexes, "_by_") {
			t.Errorf("%s; %s", tables, indexes)
		}
	})
}

// What has a name that migrations need is named, all at once and before anything is changed; and it stays.
func TestNamesThatTheDatabaseHasAlready(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	described := foreign("public", "products")
	execOn(t, url, `CREATE TABLE products (id int PRIMARY KEY); CREATE TABLE goose_db_version (version_id int, is_applied bool);
		INSERT INTO goose_db_version VALUES (9, true);
		CREATE TABLE audit_log (id int); CREATE TABLE items (id int, name varchar(9)); CREATE FUNCTION fold(text) RETURNS text LANGUAGE sql RETURN $1;
		CREATE FUNCTION name_key(text) RETURNS text LANGUAGE sql RETURN $1`)
	t.Run("general names are the user's", func(t *testing.T) {
		must1(MigrateUp(t.Context(), url, described))
		if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "public.items") {
			t.Error(err)
		}
	})
	before := relations(t, url, "r")
	t.Run("a table of the contract with other columns, later", func(t *testing.T) {
		_, err := MigrateUp(t.Context(), url, list.BuiltIn())
		if err == nil || !strings.Contains(err.Error(), "something else: the table items, which lacks workspace_id uuid, id uuid, type text, ") || relations(t,
			url, "r") != before {
			t.Error(err)
		}
	})
	t.Run("removal", func(t *testing.T) {
		must(Remove(t.Context(), url, described))
		if tables := relations(t, url, "r"); tables != "api_keys audit_log goose_db_version items products workspaces" {
			t.Error(tables)
		}
		must1(MigrateUp(t.Context(), url, described)) // with the tables that it has left
		must(Remove(t.Context(), url, described))
	})
	t.Run("all at once", func(t *testing.T) {
		execOn(t, url, `ALTER TABLE workspaces DROP COLUMN quota, DROP COLUMN burst, ADD COLUMN burst text;
			CREATE TYPE listedge_key_usage AS ENUM ('a'); CREATE VIEW listedge_audit_log AS SELECT 1;
			CREATE TABLE listedge_schema_version (v int); CREATE INDEX listedge_api_keys_by_workspace ON products (id);
			CREATE FUNCTION listedge_fold(int) RETURNS int LANGUAGE sql RETURN 1`)
		const want = "migrate up: nothing was changed: names that listedge needs in the schema public belong to something else: " +
			"the table workspaces, which lacks burst int, quota bigint; %sthe relation listedge_api_keys_by_workspace; the relation listedge_audit_log; " +
			"the relation listedge_schema_version; the function listedge_fold(integer); the type listedge_key_usage: rename it, or move it to another schema"
		before := relations(t, url, "r")
		for lists, items := range map[*list.Set]string{described: "", list.BuiltIn(): "the table items, which lacks "} {
			done, err := MigrateUp(t.Context(), url, lists)
			is := fmt.Sprint(err)
			if at := strings.Index(is, "the table items"); at >= 0 {
				end := strings.Index(is[at:], "; ") + len("; ")
				is = is[:at+len("the table items, which lacks ")] + is[at+end:]
			}
			if is != fmt.Sprintf(want, items) || done != nil || relations(t, url, "r") != before {
				t.Errorf("%q: %v", done, err)
			}
		}
	})
}

// All that migrations make is looked for.
func TestEveryNameOfTheMigrations(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	execOn(t, url, "DROP TABLE listedge_schema_version")
	_, err := MigrateUp(t.Context(), url, list.BuiltIn())
	rows, _ := connect(t, url).Query(t.Context(), `SELECT 'the relation ' || relname FROM pg_class WHERE relname ~ '^listedge_' AND relname !~ '_(pkey|seq)$'
		UNION ALL SELECT 'the function ' || proname FROM pg_proc WHERE proname ~ '^listedge_'`)
	names := must1(pgx.CollectRows(rows, pgx.RowTo[string]))
	for _, name := range names {
		if !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%v lacks %s", err, name)
		}
	}
	if len(names) < 14 {
		t.Error(names)
	}
}

// indexNamed is the name of the index of a built-in list whose name begins so.
func indexNamed(t testing.TB, prefix string) string {
	t.Helper()
	for _, l := range list.BuiltIn().Lists {
		for _, index := range l.Indexes() {
			if strings.HasPrefix(index.Name, prefix) {
				return index.Name
			}
		}
	}
	t.Fatalf("no index %s", prefix)
	return ""
}

// What is printed for a role is what it lacks, whatever the names of tables are.
func TestGrantsForAnyTable(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	role := `no"de_` + uuid.NewString()[:8]
	table := list.Name{Schema: "My shop", Table: `Pro"ducts`}
	execOn(t, url, `CREATE SCHEMA "My shop"; CREATE TABLE `+table.SQL()+` (id int); REVOKE EXECUTE ON FUNCTION listedge_fold FROM public;
		CREATE ROLE `+list.Quote(role)+` LOGIN PASSWORD 'p'`)
	t.Cleanup(func() { execOn(t, url, "DROP OWNED BY "+list.Quote(role)+"; DROP ROLE "+list.Quote(role)) })
	conn := connect(t, url)
	exec(t, conn, "SET ROLE "+list.Quote(role))
	tables := append([]list.Name{table, apikey.FormsTable}, list.KeyTables...)
	lacks := must1(missingRights(t.Context(), conn, "SELECT", tables))
	for _, want := range []string{`GRANT USAGE ON SCHEMA "My shop" TO "no""de_`, `GRANT SELECT ON "My shop"."Pro""ducts" TO "no""de_`,
		`GRANT SELECT ON public.api_keys TO`, `GRANT EXECUTE ON FUNCTION public.listedge_fold(`} {
		if !strings.Contains(lacks, want) {
			t.Errorf("%s lacks %s", lacks, want)
		}
	}
	execOn(t, url, must1(Grants(role, []list.Name{table})))
	if lacks := must1(missingRights(t.Context(), conn, "SELECT", tables)); lacks != "" {
		t.Error(lacks)
	}
	tables = append(tables, list.Name{Schema: "shop", Table: "gone"})
	if lacks := must1(missingRights(t.Context(), conn, "SELECT", tables)); !strings.HasSuffix(lacks, ": shop.gone") {
		t.Error(lacks)
	}
	for _, none := range []string{"", "public", "none", "a$b", "a\nb", strings.Repeat("r", 64)} {
		if sql, err := Grants(none, nil); err == nil {
			t.Errorf("%q: %s", none, sql)
		}
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
		"UPDATE workspaces SET tenant = ''":                                                         "23514",
		"UPDATE workspaces SET tenant = repeat('t', 256)":                                           "23514",
		fmt.Sprintf(key, "''", "'{}'"):                                                              "23514",
		fmt.Sprintf(key, "'\\x00'", "'{}'"):                                                         "23514",
		fmt.Sprintf(key, hash+" || '\\x00'", "'{}'"):                                                "23514",
		fmt.Sprintf(key, hash, "'{items:write}'"):                                                   "23514",
		fmt.Sprintf(key, hash, "'{:read}'"):                                                         "23514",
		fmt.Sprintf(key, hash, "'{9:read}'"):                                                        "23514",
		fmt.Sprintf(key, hash, "'{\"a:read,b:read\"}'"):                                             "23514",
		fmt.Sprintf(key, hash, "ARRAY[E'items:read\nx']"):                                           "23514",
		fmt.Sprintf(key, hash, "ARRAY['a' || repeat('b', 32) || ':read']"):                          "23514",
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
	fine := []string{
		"UPDATE items SET usage_30 = 9007199254740991",
		"UPDATE items SET name = ' ', created_at = '9999-12-31 23:59:59.999Z', usage_30 = 0.5, reorder_point = NULL, cost_price = -1",
		"UPDATE contacts SET name = E'\\x01', created_at = '0001-01-01Z'", "UPDATE workspaces SET rate_per_second = 0, burst = 1",
		"UPDATE workspaces SET tenant = repeat('t', 255)", "UPDATE workspaces SET tenant = NULL",
		"UPDATE api_keys SET scopes = ARRAY['a' || repeat('b', 31) || ':read', 'x-1:read']",
		"UPDATE workspaces SET quota = 4000000000, quota_period = 'month'", "UPDATE workspaces SET quota = NULL, quota_period = NULL",
	}
	// Texts of 64 KiB and numbers of 1,000 digits on each side of the point, and no more: a row does not make a page of any size.
	for _, l := range list.BuiltIn().Lists {
		for i, field := range l.Fields {
			set := "UPDATE " + l.Table.SQL() + " SET " + l.Columns[i].Name + " = "
			switch {
			case l.Columns[i].Name == "type":
			case l.Columns[i].Base == "text":
				fine, refused[set+"repeat('é', 32768) || 'x'"] = append(fine, set+"repeat('é', 32768)"), "23514"
			case field.Form == list.Number: // how large it may be is another bound's
				fine, refused[set+"1e-1001"] = append(fine, set+"1 - 1e-1000"), "23514"
			case field.Form == list.Decimal:
				fine, refused[set+"1e1000"], refused[set+"-1e-1001"] = append(fine, set+"1e1000 - 1e-1000", set+"1e-1000 - 1e1000"), "23514", "23514"
			}
		}
	}
	for _, set := range []string{"name = repeat('x', 65537)", "key_prefix = repeat('x', 65537)", "scopes = array_fill('items:read'::text, '{65}')"} {
		refused["UPDATE api_keys SET "+set] = "23514"
	}
	refused["UPDATE workspaces SET name = repeat('x', 65537)"] = "23514"
	for statement, code := range refused {
		if _, err := conn.Exec(t.Context(), statement); postgres.Code(err) != code {
			t.Errorf("%s: %v, want SQLSTATE %s", statement, err, code)
		}
	}
	for _, statement := range fine {
		exec(t, conn, statement)
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
				coalesce('`+"`' || regexp_replace(pg_get_expr(adbin, adrelid), '::text$', '') || '`"+`',
					CASE WHEN attnotnull THEN 'required' ELSE 'null' END)), '' ORDER BY attnum)
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
			if applied, err := MigrateUp(t.Context(), url, list.BuiltIn()); err == nil || !strings.HasSuffix(err.Error(), want) || len(applied) != 0 {
				t.Errorf("migrate up: %v, applied %v", err, applied)
			}
			if _, err := MigrateStatus(t.Context(), openAdmin(t, url)); err == nil || !strings.HasSuffix(err.Error(), want) {
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
