package load

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// What the package promises about a database, on one server, each promise in a
// database of its own.
func TestPostgres(t *testing.T) {
	server := sandboxtest.Postgres(t)
	must(postgrestest.Make(t.Context(), server, postgrestest.Template, admin.MigrateUp))
	for _, promise := range []struct {
		name string
		test func(*testing.T, database)
	}{
		{"import: every field arrives as it is in the file", importKeepsEveryField},
		{"import: absent columns are the defaults at first and untouched later", absentColumnsStay},
		{"import: what is the same already is not written", sameRowsAreNotWritten},
		{"import: a change of scale is a change", scaleIsAChange},
		{"import: bad files are refused with line and column, and change nothing", badFilesChangeNothing},
		{"import: the first twenty bad rows are named", firstTwentyAreNamed},
		{"import: a bad row at the very end of a large file leaves nothing", lateErrorLeavesNothing},
		{"import: a cancelled context leaves nothing", cancelLeavesNothing},
		{"import: a silent pipe is given up", silentPipeIsGivenUp},
		{"import: what the database refuses is one clear line", databaseRefuses},
		{"import: only into a workspace that exists", workspaceMustExist},
		{"import: other workspaces stay", otherWorkspacesStay},
		{"import: from standard input", importStandardInput},
		{"import and seed: each has its row in the audit log, if it changed something", actsAreInTheAuditLog},
		{"import and seed: without a schema, they say what to do", schemaIsMissing},
		{"values: what is accepted is accepted by Postgres", postgresAccepts},
		{"seed: equal specs are equal data", seedIsDeterministic},
		{"seed: a second run is refused", seedTwiceIsRefused},
		{"seed: the data is what samples should be", seedIsVaried},
		{"seed: a cancelled context leaves whole workspaces only", seedCancelled},
	} {
		t.Run(promise.name, func(t *testing.T) { promise.test(t, newDatabase(t, server)) })
	}
}

// database is a migrated one with one workspace.
type database struct {
	URL       string
	Workspace uuid.UUID
	server    *sandbox.Postgres
}

func newDatabase(t *testing.T, server *sandbox.Postgres) database {
	t.Helper()
	db := database{URL: server.URL(postgrestest.Copy(t, server, postgrestest.Template)), Workspace: uuid.New(), server: server}
	execute(t, db.URL, "INSERT INTO workspaces (id, name) VALUES ($1, 'test')", db.Workspace)
	return db
}

var open, execute = postgrestest.Connect, postgrestest.Exec

// query returns the rows as text, null as "<null>".
func query(t *testing.T, url, sql string, args ...any) (all [][]string) {
	t.Helper()
	conn := open(t, url)
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		t.Fatal(sql, err)
	}
	for rows.Next() {
		var texts []string
		for _, v := range rows.RawValues() {
			if v == nil {
				v = []byte("<null>")
			}
			texts = append(texts, string(v))
		}
		all = append(all, texts)
	}
	if rows.Err() != nil {
		t.Fatal(sql, rows.Err())
	}
	return all
}

// table returns all rows of a collection in the form files have, by id.
func table(t *testing.T, db database, c lists.Collection) [][]string {
	t.Helper()
	var list []string
	for _, column := range c.Columns() {
		expression := column.Name + "::text"
		switch column.Kind {
		case lists.Bool:
			expression = "left(" + expression + ", 1)"
		case lists.Instant:
			expression = `to_char(` + column.Name + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
		}
		list = append(list, expression)
	}
	return query(t, db.URL, fmt.Sprintf("SELECT %s FROM %s WHERE workspace_id = $1 ORDER BY id", strings.Join(list, ", "), c), db.Workspace)
}

func mustImport(t *testing.T, db database, c lists.Collection, file string, rows int64) {
	t.Helper()
	if got, err := Import(t.Context(), db.URL, c, db.Workspace, file, io.Discard); got != rows || err != nil {
		t.Fatalf("%s: %d rows, %v; want %d", file, got, err, rows)
	}
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must(os.WriteFile(file, []byte(content), 0o600))
	return file
}

func importKeepsEveryField(t *testing.T, db database) {
	for _, c := range lists.All {
		file := filepath.Join("testdata", c.String()+".csv")
		want := standardCSV(t, file)
		mustImport(t, db, c, file, int64(len(want)))
		got := table(t, db, c)
		if len(got) != len(want) || len(want) < 25 {
			t.Fatalf("%s: %d rows, want %d", file, len(got), len(want))
		}
		for i := range want {
			for j, column := range c.Columns() {
				if got[i][j] != want[i][j] {
					t.Errorf("%s: %s of %s: %q, want %q", file, column.Field, want[i][0], got[i][j], want[i][j])
				}
			}
		}
	}
}

// standardCSV reads a file with encoding/csv alone, sorted by id.
func standardCSV(t *testing.T, file string) [][]string {
	t.Helper()
	content := must1(os.ReadFile(file))
	rows := must1(csv.NewReader(strings.NewReader(strings.TrimPrefix(string(content), "\ufeff"))).ReadAll())
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = "<null>"
			}
			if row[i] == "-0.00" { // numeric has no negative zero
				row[i] = "0.00"
			}
		}
	}
	rows = rows[1:]
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows
}

const (
	id1 = "00000000-0000-4000-8000-000000000001"
	id2 = "00000000-0000-4000-8000-000000000002"
)

const oneItem = "SELECT name, type, sku, cost_price, taxable, track_stock, usage_30, active, created_at > now() - interval '1 hour' FROM items ORDER BY id"

func absentColumnsStay(t *testing.T, db database) {
	mustImport(t, db, lists.Items, write(t, "a.csv", "name,id\nChai,"+id1+"\n"), 1)
	want := [][]string{{"Chai", "GOODS", "<null>", "0", "t", "f", "0", "t", "t"}}
	if got := query(t, db.URL, oneItem); !reflect.DeepEqual(got, want) {
		t.Errorf("inserted %q, want %q", got, want)
	}
	mustImport(t, db, lists.Items, write(t, "b.csv", "id,name,sku,costPrice,active\n"+id1+",Chai,S-1,2.50,f\n"), 1)
	mustImport(t, db, lists.Items, write(t, "c.csv", "id,name,type\n"+id1+",Tea,SERVICE\n"), 1)
	want = [][]string{{"Tea", "SERVICE", "S-1", "2.50", "t", "f", "0", "f", "t"}}
	if got := query(t, db.URL, oneItem); !reflect.DeepEqual(got, want) {
		t.Errorf("updated %q, want %q", got, want)
	}
	mustImport(t, db, lists.Items, write(t, "d.csv", "id,name,sku\n"+id1+",Tea,\n"), 1)
	if got := query(t, db.URL, "SELECT sku FROM items"); got[0][0] != "<null>" {
		t.Errorf("an empty cell left %q", got)
	}
}

func sameRowsAreNotWritten(t *testing.T, db database) {
	const versions = "SELECT id, xmin, xmax, ctid FROM items ORDER BY id"
	rows := int64(len(standardCSV(t, "testdata/items.csv")))
	mustImport(t, db, lists.Items, "testdata/items.csv", rows)
	before := query(t, db.URL, versions)
	var said strings.Builder
	must1(Import(t.Context(), db.URL, lists.Items, db.Workspace, "testdata/items.csv", &said))
	if after := query(t, db.URL, versions); !reflect.DeepEqual(before, after) {
		t.Error("wrote rows that were the same")
	}
	if !strings.HasPrefix(said.String(), "items: ") || !strings.HasSuffix(said.String(), " rows/s; 0 new or changed\n") {
		t.Errorf("said %q", said.String())
	}
	mustImport(t, db, lists.Items, write(t, "one.csv", "id,name\n"+before[0][0]+",changed\n"+before[1][0]+",changed\n"), 2)
	after := query(t, db.URL, versions)
	if before[0][1] == after[0][1] || before[1][1] == after[1][1] || !reflect.DeepEqual(before[2:], after[2:]) {
		t.Error("an import of two rows did not write exactly those")
	}
}

func scaleIsAChange(t *testing.T, db database) {
	for _, price := range []string{"12.5", "12.50", "12.5"} {
		mustImport(t, db, lists.Items, write(t, "a.csv", "id,name,costPrice\n"+id1+",Chai,"+price+"\n"), 1)
		if got := query(t, db.URL, "SELECT cost_price FROM items"); got[0][0] != price {
			t.Errorf("%s, want %s", got[0][0], price)
		}
	}
}

func workspaceMustExist(t *testing.T, db database) {
	file := write(t, "a.csv", "id,name\n"+id1+",Chai\n")
	if _, err := Import(t.Context(), db.URL, lists.Items, uuid.New(), file, io.Discard); err == nil || !strings.HasSuffix(err.Error(), ": not found") {
		t.Error(err)
	}
}

func otherWorkspacesStay(t *testing.T, db database) {
	file := write(t, "a.csv", "id,name\n"+id1+",Chai\n")
	mustImport(t, db, lists.Items, file, 1)
	other := db
	other.Workspace = uuid.New()
	execute(t, db.URL, "INSERT INTO workspaces (id, name) VALUES ($1, 'other')", other.Workspace)
	mustImport(t, other, lists.Items, write(t, "b.csv", "id,name\n"+id1+",Tea\n"), 1)
	if a, b := table(t, db, lists.Items), table(t, other, lists.Items); len(a) != 1 || len(b) != 1 || a[0][1] != "Chai" || b[0][1] != "Tea" {
		t.Error(a, b)
	}
}
