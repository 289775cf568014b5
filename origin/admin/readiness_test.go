package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/remedy"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin"
	"listedge/origin/postgres"
)

// risks are what is said of each, as the doctor prints it.
func risks(t *testing.T, url string, nodes int) map[string]string {
	t.Helper()
	conn := must1(postgres.Connect(within(t, patience), url, patience))
	defer conn.Close(t.Context())
	said := map[string]string{}
	for _, r := range must1(Risks(t.Context(), conn, list.BuiltIn(), "", 21, nodes)) {
		if said[r.Subject] = r.Fine; r.Why != "" {
			said[r.Subject] = r.Why + ": " + r.Remedy
		}
	}
	return said
}

// A slot that is followed, or retains much, is in the end-to-end tests.
func TestFindingsOnTheSlot(t *testing.T) {
	t.Parallel()
	url := sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": "1MB"}).URL("postgres")
	for _, c := range []struct {
		name, sql, text string
	}{
		{"none", "SELECT", "there is none: start a node"},
		{"nobody follows", "SELECT pg_create_logical_replication_slot('listedge_' || oid, 'pgoutput') FROM pg_database WHERE datname = current_database()",
			"no node follows it, and it retains [^,]+, of 1024 kB that max_slot_wal_keep_size allows: " +
				"start a node, or see why none follows; `listedge migrate drop-slot`"},
		{"lost", "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal(); CHECKPOINT",
			"so Postgres invalidated it: nothing: the next follower makes a new one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, url, c.sql)
			if said := risks(t, url, 0)["slot"]; !regexp.MustCompile(c.text).MatchString(said) {
				t.Error(said)
			}
		})
	}
}

// Without a bound of what slots keep, a temporary slot is a warning, because of its price, and a persistent one fails.
func TestFindingsOnTheBoundOfSlots(t *testing.T) {
	t.Parallel()
	url := sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": ""}).URL("postgres")
	conn := must1(postgres.Connect(within(t, patience), url, patience))
	defer conn.Close(t.Context())
	const make = "SELECT pg_create_logical_replication_slot('listedge_' || oid || '%s', 'pgoutput', %t) FROM pg_database WHERE datname = current_database()"
	for _, c := range []struct {
		sql, bound, slot string
		effect           int
	}{
		{"SELECT", "all nodes read their pages and keys again: set max_slot_wal_keep_size", "there is none: start a node that may make it", 0},
		{fmt.Sprintf(make, "_new", true), "all nodes read", "a node makes it, and waits .* pg_stat_activity", 0},
		{fmt.Sprintf(make, "", true), "all nodes read", "^temporary, followed, retains", 0},
		{"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots; " + fmt.Sprintf(make, "", false),
			"may fill the primary's disk: set", "no node follows it", 1},
	} {
		must1(conn.Exec(t.Context(), c.sql))
		said := map[string]string{}
		for _, r := range must1(Risks(t.Context(), conn, list.BuiltIn(), "", 21, 0)) {
			said[r.Subject] = cmp.Or(r.Why, r.Fine) + ": " + r.Remedy
			if r.Subject == "max_slot_wal_keep_size" && r.Effect != c.effect {
				t.Errorf("%s: effect %d", c.sql, r.Effect)
			}
		}
		for subject, text := range map[string]string{"max_slot_wal_keep_size": c.bound, "slot": c.slot} {
			if !regexp.MustCompile(text).MatchString(said[subject]) {
				t.Errorf("%s: %s", c.sql, said[subject])
			}
		}
	}
}

// Each bound of connections is compared with what the nodes may use.
func TestFindingsOnConnections(t *testing.T) {
	t.Parallel()
	server := sandboxtest.PostgresWith(t, map[string]string{"max_connections": "60", "superuser_reserved_connections": "3"})
	execOn(t, server.URL("postgres"), "CREATE ROLE node LOGIN PASSWORD 'secret'; GRANT pg_read_all_stats TO node")
	address, err := url.Parse(server.URL("postgres"))
	must(err)
	address.User = url.UserPassword("node", "secret")
	for _, c := range []struct {
		name, sql string
		nodes     int
		want      map[string]string // by subject, what it says; others are fine
	}{
		{"enough for two", "SELECT", 0, map[string]string{"max_connections": "57 connections, 1 used, 0 not by nodes: enough for 2 nodes"}},
		{"three nodes", "SELECT", 3, map[string]string{
			"max_connections": "57 connections, 1 used, 0 not by nodes; " +
				"3 nodes use up to 63: set max_connections = 63 and restart Postgres, or lower --database-connections"}},
		{"a role's limit", "ALTER ROLE node CONNECTION LIMIT 8", 1, map[string]string{
			"role's limit": "8 connections, 1 used, 0 not by nodes; 2 nodes use up to 42: ALTER ROLE node CONNECTION LIMIT 42, or lower --database-connections"}},
		{"a database's limit", "ALTER ROLE node CONNECTION LIMIT -1; ALTER DATABASE postgres CONNECTION LIMIT 50", 0, map[string]string{
			"database's limit": "50 connections, 1 used, 0 not by nodes: enough for 2 nodes"}},
		{"a database's limit that is low", "ALTER DATABASE postgres CONNECTION LIMIT 20", 0, map[string]string{
			"database's limit": "ALTER DATABASE postgres CONNECTION LIMIT 42, or lower"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, server.URL("postgres"), c.sql)
			seen := risks(t, address.String(), c.nodes)
			for _, subject := range []string{"max_connections", "role's limit", "database's limit"} {
				want := c.want[subject]
				if text, found := seen[subject]; !found || !strings.Contains(text, want) || want == "" && strings.Contains(text, "use up to") {
					t.Errorf("%s: %q, want %q", subject, text, want)
				}
			}
		})
	}
}

// What the lists need and a node can do without, such as an index, is a warning.
func TestFindingsOnLists(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	finding := func(t *testing.T, want string) {
		t.Helper()
		if said := risks(t, url, 0)["lists"]; !strings.HasPrefix(said, want) {
			t.Errorf("%q, want %q", said, want)
		}
	}
	finding(t, "the database has the indexes")
	index := indexNamed(t, "items_by_name")
	execOn(t, url, "DROP INDEX "+index)
	finding(t, `the database lacks CREATE INDEX CONCURRENTLY "`+index+`" ON`)
	must(ApplyLists(t.Context(), url, list.BuiltIn(), func(Step) {}))
	finding(t, "the database has the indexes")
	execOn(t, url, "DROP TABLE contacts")
	finding(t, "") // the check of what a node reads says so
}

// Whoever follows the remedy for a changed table has the table of the schema again.
func TestTheRemedyForAChangedTableMendsIt(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]string{
		"a number":   `ALTER TABLE items ALTER usage_30 TYPE bigint`,
		"a float":    `ALTER TABLE items DROP CONSTRAINT items_usage_30_size; ALTER TABLE items ALTER usage_30 TYPE float8`,
		"characters": `ALTER TABLE items ALTER sku TYPE char(20)`,
		"an enum": `ALTER TABLE contacts DROP CONSTRAINT contacts_phone_size; DROP INDEX ` + indexNamed(t, "contacts_by_grams") +
			`; CREATE TYPE kind AS ENUM ('x'); ALTER TABLE contacts ALTER phone TYPE kind USING NULL`,
		"no zone":     `ALTER TABLE contacts ALTER created_at TYPE timestamp`,
		"several":     `ALTER TABLE items ALTER cost_price TYPE int, ALTER reorder_point TYPE int`,
		"of a key":    `ALTER TABLE api_keys ALTER revoked_at TYPE text`,
		"a workspace": `ALTER TABLE workspaces ALTER suspended_at TYPE text`,
		"dropped":     `ALTER TABLE items DROP COLUMN description`,
		"an instant":  `ALTER TABLE contacts DROP COLUMN created_at`,
		"a flag":      `ALTER TABLE items DROP COLUMN track_stock`,
		"of keys":     `ALTER TABLE api_keys DROP COLUMN rate_per_second`,
		"a quota":     `ALTER TABLE workspaces DROP COLUMN quota`,
		"renamed":     `ALTER TABLE items RENAME sku TO sku2`,
		"renamed two": `ALTER TABLE api_keys RENAME created_at TO "made At"; ALTER TABLE api_keys RENAME key_hash TO hash`,
		"no rows":     `ALTER TABLE contacts DROP COLUMN name`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			const indexes = `SELECT string_agg(indexdef, E'\n' ORDER BY indexname) FROM pg_indexes WHERE schemaname = 'public'`
			var before, after string
			must(connect(t, url).QueryRow(t.Context(), indexes).Scan(&before))
			for _, sql := range strings.Split(changed, "; ") {
				execOn(t, url, sql)
			}
			why, do := remedy.Explain(readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()))
			if !strings.HasPrefix(do, "ALTER TABLE public.") || strings.Contains(why, "migrate up") {
				t.Fatalf("%s: %s", why, do)
			}
			for _, sql := range strings.Split(do, "; ") {
				execOn(t, url, sql)
			}
			if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err != nil {
				t.Errorf("after %s: %v", do, err)
			}
			must(connect(t, url).QueryRow(t.Context(), indexes).Scan(&after))
			if after != before {
				t.Errorf("after %s the indexes are\n%s\ninstead of\n%s", do, after, before)
			}
		})
	}
}

// Of a described table nobody but its owner knows what it should be; the tables of keys are ours.
func TestTheRemedyForADescribedTable(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	shape := listtest.ShapeOf("products")
	execOn(t, url, shape.SQL)
	lists := must1(ResolveLists(t.Context(), url, listtest.Description(shape)))
	must1(MigrateUp(t.Context(), url, lists))
	db := openDatabase(t, postgres.Options{URL: url})
	ready := NewReadiness(db, lists, origin.New(db, lists, nil))
	must(ready.Ready(t.Context()))
	for _, c := range []struct{ name, breaks, mends, want string }{
		{"a table of a list", "ALTER TABLE shop.products RENAME title TO titles", "ALTER TABLE shop.products RENAME titles TO title", "restart the nodes"},
		{"a table of keys", "ALTER TABLE workspaces DROP COLUMN suspended_at", "", "ALTER TABLE public.workspaces ADD COLUMN suspended_at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, url, c.breaks)
			_, do := remedy.Explain(ready.Ready(t.Context()))
			if !strings.Contains(do, c.want) {
				t.Errorf("%q, want %q", do, c.want)
			}
			execOn(t, url, cmp.Or(c.mends, do))
			must(ready.Ready(t.Context()))
		})
	}
}

// Some changes no command undoes: the remedy says what to restore, and commands that would fail are not in it.
func TestTheRemedyForWhatIsLostIsABackup(t *testing.T) {
	t.Parallel()
	ready := func(t *testing.T, url string) error {
		return readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context())
	}
	t.Run("a column without a default", func(t *testing.T) {
		t.Parallel()
		url := newDatabase(t)
		execOn(t, url, `INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'x')`)
		execOn(t, url, `ALTER TABLE items DROP COLUMN name CASCADE`)
		_, do := remedy.Explain(ready(t, url))
		if !strings.HasPrefix(do, "restore the column name of public.items from a backup; ") || strings.Contains(do, "ADD COLUMN") {
			t.Fatal(do)
		}
		execOn(t, url, `ALTER TABLE items ADD COLUMN name text NOT NULL DEFAULT 'x'`) // as a backup does
		for _, sql := range strings.Split(do, "; ")[1:] {
			execOn(t, url, sql)
		}
		if err := ready(t, url); err != nil {
			t.Errorf("after %s: %v", do, err)
		}
	})
	t.Run("a function", func(t *testing.T) {
		t.Parallel()
		url := newDatabase(t)
		execOn(t, url, `DROP FUNCTION listedge_fold(text) CASCADE`)
		_, do := remedy.Explain(ready(t, url))
		if !strings.HasPrefix(do, "restore from a backup the functions listedge_fold, listedge_name_key of the schema public "+
			"and the indexes that use them, or stop all nodes and run `listedge migrate remove --yes` and `listedge migrate up`") || strings.Contains(do, "CREATE") {
			t.Fatal(do)
		}
		must(Remove(t.Context(), url, list.BuiltIn()))
		must1(MigrateUp(t.Context(), url, list.BuiltIn()))
		if err := ready(t, url); err != nil {
			t.Error(err)
		}
	})
}

// The columns that are read from the migrations' text are those of a migrated database.
func TestRestoredColumnsAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	var columns int
	must(connect(t, newDatabase(t)).QueryRow(t.Context(), `SELECT count(*) FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name IN ('workspaces', 'api_keys', 'items', 'contacts')`).Scan(&columns))
	if all := restored(list.BuiltIn()); len(all[0]) != columns || len(all[4]) == 0 || len(all[6]) != 5 {
		t.Errorf("%d columns instead of %d: %q", len(all[0]), columns, all)
	}
}
