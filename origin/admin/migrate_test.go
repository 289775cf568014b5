package admin

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/postgres"
)

// emptyDatabase has nothing in it.
func emptyDatabase(t testing.TB) string {
	t.Helper()
	return copyDatabase(t, "template0")
}

func schemaOf(t testing.TB, url string) string {
	t.Helper()
	rows, err := connect(t, url).Query(context.Background(), `
		SELECT format('%s.%s %s %s %s', table_name, column_name, data_type, is_nullable, column_default) FROM information_schema.columns WHERE table_schema = 'public'
		UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
		UNION ALL SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1`)
	must(err)
	lines := must1(pgx.CollectRows(rows, pgx.RowTo[string]))
	return strings.Join(lines, "\n")
}

func versions(migrations []Migration) (list []int64) {
	for _, m := range migrations {
		list = append(list, m.Version)
	}
	return list
}

// newestMigration is the number of the newest migration.
func newestMigration() int64 {
	all := allVersions()
	return all[len(all)-1]
}

// allVersions are the numbers of the migrations, in their order.
func allVersions() (list []int64) {
	files, err := os.ReadDir("migrations")
	must(err)
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		must(err)
		list = append(list, version)
	}
	return list
}

func TestMigratingUpFromNothing(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	db := openDatabase(t, postgres.Options{URL: url})
	if err := readiness(db).Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "listedge migrate up") {
		t.Errorf("ready before there is a schema: %v", err)
	}
	before, err := MigrateStatus(t.Context(), url)
	if err != nil || !slices.Equal(versions(before), allVersions()) {
		t.Fatalf("%+v, %v", before, err)
	}
	for _, m := range before {
		if !m.AppliedAt.IsZero() || !strings.HasPrefix(m.Name, fmt.Sprintf("%05d_", m.Version)) {
			t.Errorf("%+v", m)
		}
	}
	applied, err := MigrateUp(t.Context(), url)
	if err != nil || !slices.Equal(versions(applied), allVersions()) {
		t.Fatalf("%+v, %v", applied, err)
	}
	after, err := MigrateStatus(t.Context(), url)
	if err != nil || !slices.Equal(versions(after), allVersions()) {
		t.Fatalf("%+v, %v", after, err)
	}
	for i, m := range after {
		if m.AppliedAt.IsZero() || m.Name != applied[i].Name {
			t.Errorf("%+v, but %+v was applied", m, applied[i])
		}
	}
	if err := readiness(db).Ready(t.Context()); err != nil {
		t.Error(err)
	}
	conn := connect(t, url)
	exec(t, conn, "UPDATE goose_db_version SET is_applied = false WHERE version_id = $1", newestMigration())
	if err := readiness(db).Ready(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("needs %d", newestMigration())) {
		t.Errorf("ready with an older schema: %v", err)
	}
	exec(t, conn, "UPDATE goose_db_version SET is_applied = true")
	schema := schemaOf(t, url)
	if again, err := MigrateUp(t.Context(), url); err != nil || len(again) != 0 || schemaOf(t, url) != schema {
		t.Errorf("twice: %+v, %v", again, err)
	}
	if schema != schemaOf(t, postgresServer().URL(postgrestest.Template)) && !t.Failed() {
		t.Error("two databases migrated alike differ")
	}
}

func TestTenNodesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		done []int64
	)
	for range 10 {
		all.Go(func() {
			applied, err := MigrateUp(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			done = append(done, versions(applied)...)
		})
	}
	all.Wait()
	if slices.Sort(done); !slices.Equal(done, allVersions()) {
		t.Errorf("applied %v", done)
	}
	db := openDatabase(t, postgres.Options{URL: url})
	if err := readiness(db).Ready(t.Context()); err != nil {
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
	for statement, code := range refused {
		if _, err := conn.Exec(t.Context(), statement); postgres.Code(err) != code {
			t.Errorf("%s: %v, want SQLSTATE %s", statement, err, code)
		}
	}
	for _, fine := range []string{
		"UPDATE items SET usage_30 = 9007199254740991",
		"UPDATE items SET name = ' ', created_at = '9999-12-31 23:59:59.999Z', usage_30 = 0.5, reorder_point = NULL, cost_price = -1",
		"UPDATE contacts SET name = E'\\x01', created_at = '0001-01-01Z'", "UPDATE workspaces SET rate_per_second = 0, burst = 1",
	} {
		exec(t, conn, fine)
	}
}

// Writers pay for indexes and nothing else.
func TestNothingStandsInTheWritersPath(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	var triggers, rules, foreign int
	if err := conn.QueryRow(t.Context(), `SELECT
		(SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('items'::regclass, 'contacts'::regclass)),
		(SELECT count(*) FROM pg_rewrite WHERE ev_class IN ('items'::regclass, 'contacts'::regclass)),
		(SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid IN ('items'::regclass, 'contacts'::regclass))`).Scan(&triggers, &rules, &foreign); err != nil {
		t.Fatal(err)
	}
	if triggers+rules+foreign != 0 {
		t.Errorf("%d triggers, %d rules, %d foreign keys", triggers, rules, foreign)
	}
}
