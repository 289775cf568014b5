package admin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// shaped returns a database that has the functions of the program and the shapes' tables, and the shapes' lists in it.
func shaped(t *testing.T, shapes ...listtest.Shape) (url string, lists *list.Set) {
	t.Helper()
	url = newDatabase(t)
	for _, s := range shapes {
		execOn(t, url, s.SQL)
		execOn(t, url, s.Rows(1, 200))
	}
	return url, resolved(t, url, listtest.Description(shapes...))
}

func resolved(t *testing.T, url string, d *list.Description) *list.Set {
	t.Helper()
	return must1(ResolveLists(t.Context(), url, d))
}

// planned returns the SQL of what a database lacks.
func planned(t *testing.T, url string, lists *list.Set) (statements []string) {
	t.Helper()
	steps, err := PlanLists(t.Context(), url, lists)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.Why == "" || s.Locks == "" || strings.Contains(s.SQL, "\n") {
			t.Errorf("%+v", s)
		}
		statements = append(statements, s.SQL)
	}
	return statements
}

// apply makes what a database lacks, and returns the SQL.
func apply(ctx context.Context, url string, lists *list.Set) (statements []string, err error) {
	err = ApplyLists(ctx, url, lists, func(s Step) { statements = append(statements, s.SQL) })
	return statements, err
}

func TestTheDatabaseHasTheBuiltInLists(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	lists, err := list.BuiltInDescription().Resolve(must1(readCatalogue(t.Context(), connect(t, url), list.BuiltIn().Tables())))
	if err != nil || !reflect.DeepEqual(lists, list.BuiltIn()) {
		t.Errorf("%v: %+v", err, lists)
	}
	if plan := planned(t, url, list.BuiltIn()); len(plan) > 0 {
		t.Errorf("%q", plan)
	}
}

func TestListsThatTheDatabaseDoesNotFit(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	execOn(t, url, `CREATE TABLE base (id int PRIMARY KEY, at timestamptz); CREATE VIEW a_view AS SELECT * FROM base;
		CREATE UNLOGGED TABLE quick (id int PRIMARY KEY);
		CREATE TABLE child (n int) INHERITS (base); CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT;
		CREATE TABLE keys (a int NOT NULL UNIQUE DEFERRABLE, b int NOT NULL, c int NOT NULL, d int UNIQUE);
		CREATE UNIQUE INDEX ON keys (b) WHERE b > 0; CREATE UNIQUE INDEX ON keys ((c + 0));`)
	for name, test := range map[string]struct{ list, want string }{
		"view":                {"{table: a_view, key: id, fields: {id: }, orders: {id: }}", "public.a_view is a view"},
		"nothing":             {"{table: none, key: id, fields: {id: }, orders: {id: }}", "there is no table public.none"},
		"unlogged":            {"{table: quick, key: id, fields: {id: }, orders: {id: }}", "public.quick is unlogged"},
		"child":               {"{table: child, key: id, fields: {id: }, orders: {id: }}", "public.child is a part of the table public.base"},
		"partition":           {"{table: part, key: id, fields: {id: }, orders: {id: }}", "public.part is a part of the table public.parts"},
		"nullable":            {"{table: base, key: id, fields: {id: }, orders: {at: }}", "the order at is by at, which may be NULL"},
		"deferrable":          {"{table: keys, key: a, fields: {a: }, orders: {a: }}", "no index of public.keys says that the key a is unique"},
		"partial":             {"{table: keys, key: b, fields: {a: }, orders: {a: }}", "no index of public.keys says that the key b is unique"},
		"an expression":       {"{table: keys, key: c, fields: {a: }, orders: {a: }}", "no index of public.keys says that the key c is unique"},
		"a nullable key":      {"{table: keys, key: d, fields: {a: }, orders: {a: }}", "the key d may be NULL"},
		"a partitioned table": {"{table: parts, key: id, fields: {id: }, orders: {id: }}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := list.Parse("lists.yaml", []byte("lists:\n  things: "+test.list+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = ResolveLists(t.Context(), url, d)
			var mistakes list.Mistakes
			if test.want == "" && err == nil {
				return
			}
			if !errors.As(err, &mistakes) || len(mistakes) != 1 || !strings.HasPrefix(mistakes[0], "lists.yaml:2: "+test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

func TestWhatTheDatabaseLacksIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, shape := range listtest.Shapes {
		t.Run(shape.Name, func(t *testing.T) {
			t.Parallel()
			url, lists := shaped(t, shape)
			plan := planned(t, url, lists)
			made, err := apply(t.Context(), url, lists)
			if err != nil || !slices.Equal(plan, made) || len(plan) < len(lists.Lists[0].Indexes())+1 {
				t.Errorf("%v: planned %q\nmade %q", err, plan, made)
			}
			again := planned(t, url, lists)
			if len(again) > 0 {
				t.Errorf("again %q", again)
			}
			state, err := follower.ReadPublication(t.Context(), connect(t, url), lists)
			must(err)
			defect, _ := state.Defect()
			if defect != "" {
				t.Error(defect)
			}
			reason, _ := state.RowsUnnamed()
			if (reason != "") != (shape.Name == "events") { // its keys are unique in a partition only
				t.Error(reason)
			}
		})
	}
}

// Each case spoils what ApplyLists has made of products. The plan mends that, and nothing else.
func TestThePlanIsWhatIsMissing(t *testing.T) {
	t.Parallel()
	url, lists := shaped(t, listtest.ShapeOf("products"), listtest.ShapeOf("events"))
	_, err := apply(t.Context(), url, lists)
	must(err)
	index := lists.ByName("products").Indexes()[0]
	parted := lists.ByName("events").Indexes()[0]
	identity := func(table string, schema string, columns ...string) string {
		return named(list.Name{Schema: schema, Table: table}, "identity", columns...)
	}("products", "shop", "account_id", "id")
	partOf := func(table string) string { return named(list.Name{Schema: "log", Table: table}, "of", parted.Name) }
	definition := strings.TrimPrefix(parted.SQL, `ON "log"."events"`)
	spoilt := "DROP INDEX log." + parted.Name + "; CREATE INDEX " + parted.Name + " ON ONLY log.events" + definition
	for _, table := range []string{"events_2026", "events_other"} {
		spoilt += fmt.Sprintf("; CREATE INDEX %s ON log.%s%s; ALTER INDEX log.%s ATTACH PARTITION log.%s", partOf(table), table, definition, parted.Name,
			partOf(table))
	}
	for _, test := range []struct {
		name, spoil string
		want        []string
	}{
		{"nothing", "SELECT", nil},
		{"an index", "DROP INDEX shop." + index.Name, []string{"CREATE INDEX CONCURRENTLY " + list.Quote(index.Name) + " " + index.SQL}},
		{"an index that was not finished", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'shop." + index.Name + "'::regclass", []string{
			`DROP INDEX CONCURRENTLY "shop"."` + index.Name + `"`, "CREATE INDEX CONCURRENTLY " + list.Quote(index.Name) + " " + index.SQL}},
		{"an index of a partition", spoilt, []string{
			`CREATE INDEX CONCURRENTLY "` + partOf("events_2025") + `" ON "log"."events_2025"` + definition,
			`ALTER INDEX "log"."` + parted.Name + `" ATTACH PARTITION "log"."` + partOf("events_2025") + `"`}},
		{"the identity", "ALTER TABLE shop.products REPLICA IDENTITY DEFAULT", []string{`ALTER TABLE "shop"."products" REPLICA IDENTITY USING INDEX "` +
			identity + `"`}},
		{"the whole row", "ALTER TABLE shop.products REPLICA IDENTITY FULL", nil},
		{"the identity's index", "DROP INDEX shop." + identity + "; ALTER TABLE shop.products REPLICA IDENTITY NOTHING", []string{
			`CREATE UNIQUE INDEX CONCURRENTLY "` + identity + `" ON "shop"."products" ("account_id", "id")`,
			`ALTER TABLE "shop"."products" REPLICA IDENTITY USING INDEX "` + identity + `"`}},
		{"the identity of a partition", "ALTER TABLE log.events_2026 REPLICA IDENTITY NOTHING", []string{`ALTER TABLE "log"."events_2026" REPLICA IDENTITY DEFAULT`}},
		{"a table of the publication", "ALTER PUBLICATION listedge DROP TABLE shop.products", []string{`ALTER PUBLICATION "listedge" ADD TABLE "shop"."products"`}},
		{"rows of the publication", "ALTER PUBLICATION listedge SET TABLE shop.products WHERE (account_id > 0), log.events, api_keys, workspaces", []string{
			`ALTER PUBLICATION "listedge" DROP TABLE "shop"."products"`, `ALTER PUBLICATION "listedge" ADD TABLE "shop"."products"`}},
		{"truncations", "ALTER PUBLICATION listedge SET (publish = 'insert, update, delete')", []string{
			`ALTER PUBLICATION "listedge" SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)`}},
		{"the publication", "DROP PUBLICATION listedge", []string{
			`CREATE PUBLICATION "listedge" FOR TABLE "log"."events", "shop"."products", "public"."api_keys", "public"."workspaces" ` +
				`WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)`}},
		{"rights of a role", `CREATE ROLE "plan Node"; GRANT INSERT ON listedge_usage_writers TO "plan Node"; GRANT SELECT ON log.events TO "plan Node";
			GRANT USAGE ON SCHEMA log TO "plan Node"`, []string{
			`GRANT USAGE ON SCHEMA "shop" TO "plan Node"`, `GRANT SELECT ON "shop"."products" TO "plan Node"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			execOn(t, url, test.spoil)
			plan := planned(t, url, lists)
			if !slices.Equal(plan, test.want) {
				t.Errorf("%s\nwant\n%s", strings.Join(plan, "\n"), strings.Join(test.want, "\n"))
			}
			made, err := apply(t.Context(), url, lists)
			if err != nil || !slices.Equal(made, test.want) {
				t.Errorf("%v: %q", err, made)
			}
			again := planned(t, url, lists)
			if len(again) > 0 {
				t.Errorf("again %q", again)
			}
		})
	}
	execOn(t, url, `DROP OWNED BY "plan Node"; DROP ROLE "plan Node"`)
	var acts int
	must(connect(t, url).QueryRow(t.Context(), "SELECT count(*) FROM listedge_audit_log WHERE action = 'lists.apply'").Scan(&acts))
	if acts != 12 {
		t.Errorf("%d acts", acts)
	}
}

func TestAStepThatFailsStopsAndTheNextCallGoesOn(t *testing.T) {
	t.Parallel()
	url, lists := shaped(t, listtest.ShapeOf("users"))
	plan := planned(t, url, lists)
	execOn(t, url, "CREATE TABLE "+lists.Lists[0].Indexes()[1].Name+" ()") // in the way of an index
	made, err := apply(t.Context(), url, lists)
	if err == nil || len(made) != 3 {
		t.Errorf("%v: %q", err, made)
	}
	execOn(t, url, "DROP TABLE "+lists.Lists[0].Indexes()[1].Name)
	more, err := apply(t.Context(), url, lists)
	if err != nil || !slices.Equal(append(made[:2], more...), plan) {
		t.Errorf("%v: %q, then %q", err, made, more)
	}
}

// An index that is being made is not valid yet. Whoever dropped it then would begin anew.
func TestAnIndexThatIsBeingMadeIsLeftAlone(t *testing.T) {
	t.Parallel()
	url, lists := shaped(t, listtest.ShapeOf("customers"))
	writer := connect(t, url)
	exec(t, writer, "BEGIN; UPDATE customer SET has_account = true")
	ended := make(chan error, 1)
	go func() {
		_, err := apply(t.Context(), url, lists)
		ended <- err
	}()
	const want = "another session is making the index"
	eventually(t, want, func() bool {
		_, err := PlanLists(t.Context(), url, lists)
		return err != nil && strings.HasPrefix(err.Error(), want)
	})
	exec(t, writer, "COMMIT")
	must(<-ended)
	plan := planned(t, url, lists)
	if len(plan) > 0 {
		t.Errorf("%q", plan)
	}
}

// Postgres takes no index as identity that is deferrable, partial or of expressions, or has columns that may be NULL.
func TestTheIdentityIsAnIndexThatPostgresTakes(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	execOn(t, url, `CREATE TABLE things (id int NOT NULL, note int, CONSTRAINT a_deferrable UNIQUE (id) DEFERRABLE,
		CONSTRAINT b_nullable UNIQUE (id, note), CONSTRAINT z_good UNIQUE (id));
		CREATE UNIQUE INDEX c_partial ON things (id) WHERE id > 0; CREATE UNIQUE INDEX d_expression ON things (id, (note + 1))`)
	d, err := list.Parse("lists.yaml", []byte("lists:\n  things: {key: id, fields: {id: }, orders: {id: }}\n"))
	must(err)
	made, err := apply(t.Context(), url, resolved(t, url, d))
	if err != nil || made[0] != `ALTER TABLE "public"."things" REPLICA IDENTITY USING INDEX "z_good"` {
		t.Errorf("%v: %q", err, made)
	}
}

func TestTwoListsOfOneTable(t *testing.T) {
	t.Parallel()
	url, _ := shaped(t, listtest.ShapeOf("products"))
	text := listtest.DescriptionText(listtest.ShapeOf("products"))
	d, err := list.Parse("lists.yaml", []byte(text+"  codes: {table: shop.products, tenant: account_id, key: id, fields: {code: }, orders: {id: }}\n"+
		"  all: {table: shop.products, key: id, fields: {id: }, orders: {id: }}\n"))
	must(err)
	lists := resolved(t, url, d)
	plan, err := apply(t.Context(), url, lists)
	must(err)
	again := planned(t, url, lists)
	if !strings.HasSuffix(plan[0], `("account_id", "id")`) || len(again) > 0 {
		t.Errorf("%q, again %q", plan, again)
	}
}

func TestWithoutMigrationsNothingIsPlanned(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	execOn(t, url, listtest.ShapeOf("people").SQL)
	_, err := PlanLists(t.Context(), url, resolved(t, url, listtest.Description(listtest.ShapeOf("people"))))
	if err == nil || !strings.HasSuffix(err.Error(), "run `listedge migrate up`") {
		t.Error(err)
	}
}

// checked returns what CheckLists says, a fault a line.
func checked(t *testing.T, url string, lists *list.Set) (all []Checked, faults []string) {
	t.Helper()
	conn := must1(Open(t.Context(), url))
	defer conn.Close()
	all, err := CheckLists(t.Context(), conn, lists, func(f Fault) { faults = append(faults, fmt.Sprintf("%s %s/%s: %s", f.List, f.Tenant, f.Key, f.Why)) })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(faults)
	return all, faults
}

func TestCheckingEveryRow(t *testing.T) {
	t.Parallel()
	shapes := []listtest.Shape{listtest.ShapeOf("products"), listtest.ShapeOf("events"), listtest.ShapeOf("lines"), listtest.ShapeOf("customers")}
	url, lists := shaped(t, shapes...)
	execOn(t, url, "INSERT INTO workspaces (name, tenant) VALUES ('W', '1'), ('V', 'a')")
	execOn(t, url, shapes[0].Rows(1000, 60_000)) // more blocks than one statement reads
	t.Run("without faults", func(t *testing.T) {
		all, faults := checked(t, url, lists)
		want := []Checked{{"products", 59_201, 54_647, 36_431, 0}, {"events", 200, 200, 0, 0}, {"lines", 200, 191, 128, 0}, {"customers", 200, 175, 0, 0}}
		if len(faults) > 0 || !slices.Equal(all, want) {
			t.Errorf("%+v, %q", all, faults)
		}
	})
	t.Run("with faults", func(t *testing.T) {
		execOn(t, url, `UPDATE shop.products SET inserted_at = 'infinity' WHERE id = 1;
			UPDATE shop.products SET inserted_at = 'infinity', deleted_at = now() WHERE id = 2;
			UPDATE shop.products SET title = repeat('x', 70000) WHERE id = 3;
			INSERT INTO log.events (id, at, topic, body) OVERRIDING SYSTEM VALUE VALUES (7, '2030-01-01Z', 'again', '{}');
			UPDATE "My Shop"."Order.Lines" SET ratio = 'NaN', stamp = 'infinity' WHERE short = 100;
			INSERT INTO customer (id) VALUES (repeat('k', 300));
			INSERT INTO customer (id, first_name, created_at, updated_at) VALUES ('wide', repeat('x', 5000000), '2026-01-01Z', '2026-01-01Z')`)
		_, faults := checked(t, url, lists)
		for i := range faults { // a key is random
			faults[i] = regexp.MustCompile(`^lines d/[0-9a-f-]+`).ReplaceAllString(faults[i], "lines d/KEY")
		}
		want := []string{
			"customers /" + strings.Repeat("k", 300) + ": a value that cannot be shown: the key: a page with it is an error",
			"customers /wide: it has 5000049 bytes: no page with it can be read",
			"customers /wide: the field firstName has 5000000 bytes: its pages take long, and end before their limit",
			"events /7: 2 rows have this key: walks may leave some out",
			"lines d/KEY: JSON cannot say a value: the field ratio, the field stamp: null is shown",
			"products 0/3: the field title has 70000 bytes: its pages take long, and end before their limit",
			"products 1/1: a value that cannot be shown: the field insertedAt: a page with it is an error",
		}
		if !slices.Equal(faults, want) {
			t.Errorf("%q", faults)
		}
	})
}

func TestAFirstDescriptionOfRealTables(t *testing.T) {
	t.Parallel()
	url, _ := shaped(t, listtest.Shapes...)
	conn := must1(Open(t.Context(), url))
	t.Cleanup(conn.Close)
	for _, shape := range listtest.Shapes {
		t.Run(shape.Name, func(t *testing.T) {
			want := resolved(t, url, listtest.Description(shape)).Lists[0]
			text, err := InitLists(t.Context(), conn, []list.Name{want.Table})
			must(err)
			d, err := list.Parse("lists.yaml", []byte(text))
			if err != nil {
				t.Fatalf("%s\n%s", err, text)
			}
			set, err := ResolveLists(t.Context(), url, d)
			if shape.Name == "lines" { // no name says which column of its index is the tenant
				if err == nil || !strings.Contains(err.Error(), "there is no column id") {
					t.Errorf("%v\n%s", err, text)
				}
				return
			}
			must(err)
			l := set.Lists[0]
			key, wantKey := l.Columns[l.Key].Name, want.Columns[want.Key].Name
			if key != wantKey && shape.Name != "users" || (l.Tenant >= 0) != (want.Tenant >= 0) || len(l.Fields) < len(want.Fields) {
				t.Errorf("key %s, want %s\n%s", key, wantKey, text)
			}
		})
	}
	t.Run("no table", func(t *testing.T) {
		_, err := InitLists(t.Context(), conn, []list.Name{{Schema: "crm", Table: "People"}})
		if err == nil || !strings.HasPrefix(err.Error(), "there is no table crm.People") {
			t.Error(err)
		}
	})
}

// Of two programs that make what is missing at once, the second waits, and finds nothing missing.
func TestTwoThatApplyAtOnce(t *testing.T) {
	t.Parallel()
	shape := listtest.ShapeOf("products")
	url, lists := shaped(t, shape)
	want := planned(t, url, lists)
	var both sync.WaitGroup
	made := make([][]string, 2)
	for i := range made {
		both.Go(func() {
			var err error
			made[i], err = apply(t.Context(), url, lists)
			if err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if all := slices.Concat(made...); !slices.Equal(all, want) {
		t.Errorf("%q, want %q", made, want)
	}
}

// Without --lists, messages about the tables of the built-in lists say that it may be missing.
func TestADescriptionThatWasForgotten(t *testing.T) {
	t.Parallel()
	shape := listtest.ShapeOf("products")
	url := emptyDatabase(t)
	execOn(t, url, shape.SQL)
	lists := resolved(t, url, listtest.Description(shape))
	must1(MigrateUp(t.Context(), url, lists))
	must1(apply(t.Context(), url, lists))
	_, planned := PlanLists(t.Context(), url, list.BuiltIn())
	_, checked := CheckLists(t.Context(), openAdmin(t, url), list.BuiltIn(), func(Fault) {})
	ready := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context())
	for _, err := range []error{planned, checked, ready} {
		if err == nil || !strings.Contains(err.Error(), orName) {
			t.Error(err)
		}
	}
	done := must1(MigrateUp(t.Context(), url, list.BuiltIn()))
	if len(done) == 0 || !strings.HasSuffix(done[0], "; the publication has shop.products, too"+orName) {
		t.Errorf("%q", done)
	}
}
