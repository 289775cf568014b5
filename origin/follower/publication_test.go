package follower_test

import (
	"strings"
	"testing"

	"listedge/origin/admin"
	"listedge/origin/follower"
)

func (w *world) migrate() {
	w.Helper()
	must2(admin.MigrateUp(w.ctx(), w.url))
}

// Lists of columns lack what rows show, until `migrate up` publishes whole rows.
func TestListsOfColumnsAreMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER PUBLICATION listedge SET TABLE items (workspace_id, id), contacts (workspace_id, id), api_keys (id, workspace_id), workspaces (id)")
	f := w.follow()
	w.incapable(f, "lacks contacts, items, or some")
	writer := w.begin(rowsSQL("INSERT INTO items (workspace_id, id, name) VALUES ($2, #2, 'b')"))
	w.migrate() // does not wait for writers
	must2(writer.Exec(w.ctx(), "COMMIT"))
	w.awaitFollowing(f)
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z')"))
	w.named("after", "items:1[1 goods @0s]")
	if is := w.text("SELECT count(prattrs)::text FROM pg_publication_rel"); is != "0" {
		t.Errorf("%s tables have a list of columns", is)
	}
	epoch := w.epoch
	w.migrate() // has nothing to do
	w.exec(rowsSQL("UPDATE items SET track_stock = true WHERE id = #1"))
	w.named("and again", "items:1[1 tracked goods @0s]")
	if w.epoch != epoch {
		t.Error("a new epoch")
	}
}

// Postgres refuses no update or delete of a table whose replica identity is the whole row:
// keys can be revoked.
func TestReplicaIdentityFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER TABLE items REPLICA IDENTITY FULL; ALTER TABLE workspaces REPLICA IDENTITY FULL; ALTER TABLE api_keys REPLICA IDENTITY FULL")
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO workspaces (id, name) VALUES ($1, 'a')"))
	w.exec(rowsSQL("INSERT INTO api_keys (workspace_id, id, key_hash, key_prefix, scopes) VALUES ($1, $2, sha256('a'), '', '{}')"))
	f := w.follow()
	w.awaitFollowing(f)
	for _, c := range []struct{ sql, want string }{
		{"UPDATE workspaces SET name = 'b'", "keys:1[any]"},
		{"UPDATE api_keys SET revoked_at = now()", "keys:2[any]"},
		{"DELETE FROM api_keys", "keys:2[any]"},
		{"UPDATE items SET track_stock = true", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET unit = 'kg'", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET workspace_id = $2, active = false", "items:1[1 gone] items:2[1 gone]"},
		{"UPDATE items SET workspace_id = $1, active = true", "items:1[1 tracked goods @0s] items:2[1 gone]"},
		{"UPDATE items SET id = #2", "items:1[1 gone, 2 tracked goods @0s]"},
		{"DELETE FROM items", "items:1[2 gone]"},
		{"ALTER TABLE contacts REPLICA IDENTITY FULL", all},
		{"INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #3, 'c', '2020-01-01Z')", "contacts:1[3 @0s]"},
		{"UPDATE contacts SET is_customer = true", "contacts:1[3 customer @0s]"},
	} {
		w.exec(rowsSQL(c.sql))
		w.named(c.sql, c.want)
	}
}

// Rows are named only where the workspace and the id name one.
func TestRowsThatTheirIDDoesNotName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, unnamed string }{
		"a key that has more columns": {"ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id, name)", "items"},
		"no key":                      {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"a key of some rows": {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; " +
			"CREATE UNIQUE INDEX ON contacts (workspace_id, id) WHERE active; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"a key that waits for the commit": {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; " +
			"ALTER TABLE contacts ADD UNIQUE (workspace_id, id) DEFERRABLE; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"an identity without the id": {"CREATE UNIQUE INDEX one ON items (workspace_id, name); ALTER TABLE items REPLICA IDENTITY USING INDEX one", "items"},
		"partitions of any time": {`ALTER TABLE items RENAME TO items_old;
			CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id, created_at)) PARTITION BY RANGE (created_at);
			CREATE TABLE items_0 PARTITION OF items DEFAULT; ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`, "items"},
		"a key of the id alone, beside the primary key": {"CREATE UNIQUE INDEX one ON items (id)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.exec(c.sql)
			p := must2(follower.ReadPublication(w.ctx(), w.db))
			if defect, _ := p.Defect(); defect != "" {
				t.Fatal(defect)
			}
			is, _ := p.RowsUnnamed()
			if c.unnamed == "" && is != "" || c.unnamed != "" && !strings.Contains(is, "which row of "+c.unnamed+" was") {
				t.Errorf("%q, want %q", is, c.unnamed)
			}
			w.awaitFollowing(w.follow())
			items, contacts := "1 goods @0s", "2 @0s"
			switch c.unnamed {
			case "items":
				items = "any"
			case "contacts":
				contacts = "any"
			}
			w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #2, 'c', '2020-01-01Z')"))
			w.named("insert", "contacts:1["+contacts+"] items:1["+items+"]")
		})
	}
}

// The rows of a foreign partition are in no WAL of this server, whatever its replica identity.
func TestAForeignPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`ALTER TABLE items RENAME TO items_old; CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS) PARTITION BY HASH (workspace_id);
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
		CREATE FOREIGN TABLE far PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0) SERVER s;
		ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`)
	p := must2(follower.ReadPublication(w.ctx(), w.db))
	if defect, remedy := p.Defect(); !strings.Contains(defect, "lacks the rows of far, which") || remedy != "ALTER TABLE items DETACH PARTITION far" {
		t.Errorf("%s: %s", defect, remedy)
	}
}

func TestRowsOfPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(partitioned)
	w.awaitFollowing(w.follow())
	for n := 1; ; n++ { // two workspaces of two partitions
		w.exec("BEGIN; " + rowsSQL(item) + "('" + number(1).String() + "', gen_random_uuid(), 'a', now()), ('" + number(n).String() +
			"', gen_random_uuid(), 'a', now())")
		apart := w.text("SELECT count(DISTINCT tableoid)::text FROM items") == "2"
		w.exec("ROLLBACK")
		if apart {
			break
		}
		if n == 5 {
			t.Fatal("all workspaces are in one partition")
		}
	}
	for _, c := range []struct{ sql, want string }{
		{item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"UPDATE items SET workspace_id = $2", "items:1[1 gone] items:2[1 goods @0s]"},
		{"UPDATE items SET workspace_id = $3", "items:2[1 gone] items:3[1 goods @0s]"},
		{"UPDATE items SET workspace_id = $4", "items:3[1 gone] items:4[1 goods @0s]"},
		{"UPDATE items SET workspace_id = $5", "items:4[1 gone] items:5[1 goods @0s]"},
		{"UPDATE items SET unit = 'kg'", "items:5[1 goods @0s]"},
		{"DELETE FROM items", "items:5[1 gone]"},
	} {
		w.exec(rowsSQL(c.sql))
		w.named(c.sql, c.want)
	}
}

// Postgres stores large values apart. An update that does not change one does not send it.
func TestRowsWithLargeValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER TABLE items ALTER name SET STORAGE EXTERNAL, ALTER description SET STORAGE EXTERNAL, ALTER image_path SET STORAGE EXTERNAL")
	w.awaitFollowing(w.follow())
	for _, c := range []struct{ name, sql, want string }{
		{"insert", item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"too large a value", "UPDATE items SET image_path = repeat('x', 8192)", "items:1[1 goods @0s text unknown]"},
		{"stock, and the value is not sent", "UPDATE items SET stock_on_hand = 1", "items:1[1 goods @0s partial]"},
		{"a large value", "UPDATE items SET image_path = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"stock, and this value is not sent", "UPDATE items SET stock_on_hand = 2", "items:1[1 goods @0s partial]"},
		{"another one, and then stock", "BEGIN; UPDATE items SET image_path = repeat('y', 5000); UPDATE items SET stock_on_hand = 3; COMMIT",
			"items:1[1 goods @0s]"},
		{"a small one", "UPDATE items SET image_path = 'x'", "items:1[1 goods @0s]"},
		{"stock", "UPDATE items SET stock_on_hand = 4", "items:1[1 goods @0s]"},
		{"a large name", "UPDATE items SET name = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"stock, and the name is not sent", "UPDATE items SET stock_on_hand = 5", "items:1[1 unnamed goods @0s partial]"},
		{"twice, and the name is not sent", "BEGIN; UPDATE items SET stock_on_hand = 6; UPDATE items SET stock_on_hand = 7; COMMIT", "items:1[1 unnamed goods @0s partial]"},
		{"another name, and then stock", "BEGIN; UPDATE items SET name = repeat('y', 5000); UPDATE items SET stock_on_hand = 8; COMMIT", "items:1[1 goods @0s]"},
		{"too large a name, and then stock", "BEGIN; UPDATE items SET name = repeat('z', 9000); UPDATE items SET stock_on_hand = 9; COMMIT",
			"items:1[1 goods @0s text unknown]"},
		{"another name while it is inactive", "BEGIN; UPDATE items SET name = repeat('y', 5000), active = false; UPDATE items SET active = true; COMMIT",
			"items:1[1 unnamed goods @0s text unknown]"},
		{"to another workspace", "UPDATE items SET workspace_id = $2", "items:1[1 gone] items:2[1 unnamed goods @0s text unknown]"},
		{"there and back", "BEGIN; UPDATE items SET workspace_id = $1; UPDATE items SET workspace_id = $2; COMMIT",
			"items:1[1 gone] items:2[1 unnamed goods @0s text unknown]"},
	} {
		w.exec(rowsSQL(c.sql))
		w.named(c.name, c.want)
	}
	w.exec("ALTER TABLE items ALTER stock_on_hand SET STORAGE EXTERNAL")
	w.named("a change of the schema", all)
	huge := "9" + strings.Repeat("1234567890", 800)
	w.exec("ALTER TABLE items DROP CONSTRAINT items_stock_on_hand_size")
	w.named("a change of the schema", all)
	w.exec("UPDATE items SET name = 'a', track_stock = true, reorder_point = 5, stock_on_hand = " + huge)
	w.named("a large number", "items:2[1 tracked goods @0s text unknown]")
	w.exec("UPDATE items SET reorder_point = 6")
	w.named("the number is not sent", "items:2[any]")
}
