package follower_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list/listtest"
	"listedge/origin/admin"
	"listedge/origin/follower"
)

// rowsSQL replaces $1, $2, … by workspaces, and #1, #2, … by ids of rows.
func rowsSQL(sql string) string {
	sql = ids(sql)
	for n := 99; n > 0; n-- {
		sql = strings.ReplaceAll(sql, fmt.Sprintf("#%d", n), "'"+listtest.ID(n)+"'")
	}
	return sql
}

// named awaits as many changes as are wanted, and compares their rows.
func (w *world) named(sql, want string) {
	w.Helper()
	for want := range strings.SplitSeq(want, "; ") {
		c := w.newChange()
		text := named(c)
		if text != want {
			w.Errorf("%.200s:\n is %.300s\nnot %s", sql, text, want)
		}
	}
}

const item = "INSERT INTO items (workspace_id, id, name, created_at) VALUES "

func TestWhatRowsAChangeNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER DATABASE " + w.name + " SET datestyle = 'SQL, DMY'; ALTER DATABASE " + w.name + " SET timezone = 'Asia/Kolkata'; " +
		"ALTER DATABASE " + w.name + " SET client_encoding = 'LATIN1'")
	w.awaitFollowing(w.follow())
	long := strings.Repeat("9", 999)
	for _, c := range []struct{ name, sql, want string }{
		{"insert", item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"a service", "INSERT INTO items (workspace_id, id, name, type, created_at) VALUES ($1, #2, 'b', 'SERVICE', '2020-01-01 00:00:01.5Z')",
			"items:1[2 services @1.5s]"},
		{"a contact", "INSERT INTO contacts (workspace_id, id, name, created_at, is_customer) VALUES ($1, #3, 'c', '2020-01-01Z', true)",
			"contacts:1[3 customer @0s]"},
		{"a contact, both", "UPDATE contacts SET is_supplier = true", "contacts:1[3 customer supplier @0s]"},
		{"inserted inactive", "INSERT INTO items (workspace_id, id, name, active) VALUES ($1, #4, 'x', false)", "items:1[4 gone]"},
		{"activated", "UPDATE items SET active = true, created_at = '2020-01-02Z' WHERE id = #4", "items:1[4 goods @24h0m0s]"},
		{"deactivated", "UPDATE items SET active = false WHERE id = #4", "items:1[4 gone]"},
		{"delete", "DELETE FROM items WHERE id = #4", "items:1[4 gone]"},
		{"tracked, without a reorder point", "UPDATE items SET track_stock = true WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"as low as can be", "UPDATE items SET reorder_point = 0 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"just above", "UPDATE items SET stock_on_hand = 0." + strings.Repeat("0", 999) + "1 WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"equal, with more zeros", "UPDATE items SET stock_on_hand = 5.50, reorder_point = 5.5000 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"of many digits", "UPDATE items SET stock_on_hand = " + long + ".1, reorder_point = " + long + ".2 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"of many digits, and above", "UPDATE items SET reorder_point = " + long + " WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"below zero", "UPDATE items SET stock_on_hand = -10, reorder_point = -9.99 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"not tracked", "UPDATE items SET track_stock = false WHERE id = #1", "items:1[1 goods @0s]"},
		{"a move to another workspace", "UPDATE items SET workspace_id = $2 WHERE id = #1", "items:1[1 gone] items:2[1 goods @0s]"},
		{"another id", "UPDATE items SET id = #5 WHERE id = #1", "items:2[1 gone, 5 goods @0s]"},
		{"a move of an inactive row", "UPDATE items SET active = false, workspace_id = $1 WHERE id = #5", "items:1[5 gone] items:2[5 gone]"},
		{"the last version", "BEGIN; UPDATE items SET active = true WHERE id = #5; UPDATE items SET created_at = '2020-01-01 00:00:02Z' WHERE id = #5; " +
			"UPDATE items SET created_at = '2020-01-01 00:00:03Z' WHERE id = #5; COMMIT", "items:1[5 goods @3s]"},
		{"deleted and inserted again", "BEGIN; DELETE FROM items WHERE id = #5; " + item + "($1, #5, 'a', '2020-01-01 00:00:04Z'); COMMIT", "items:1[5 goods @4s]"},
		{"inserted and deleted", "BEGIN; " + item + "($1, #6, 'a', '2020-01-01Z'); DELETE FROM items WHERE id = #6; COMMIT", "items:1[6 gone]"},
		{"away and back", "BEGIN; UPDATE items SET workspace_id = $2 WHERE id = #5; UPDATE items SET workspace_id = $1 WHERE id = #5; COMMIT",
			"items:1[5 goods @4s] items:2[5 gone]"},
		{"a savepoint that is rolled back", "BEGIN; UPDATE items SET track_stock = true WHERE id = #5; SAVEPOINT s; DELETE FROM items WHERE id = #5; " +
			"UPDATE items SET type = 'GOODS' WHERE id = #2; ROLLBACK TO s; COMMIT", "items:1[5 tracked goods @4s]"},
		{"two collections", "BEGIN; DELETE FROM contacts; UPDATE items SET track_stock = false WHERE id = #5; COMMIT", "contacts:1[3 gone] items:1[5 goods @4s]"},
		{"prepared", "BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #5; PREPARE TRANSACTION '" + w.name + "'", ""},
		{"and committed", "COMMIT PREPARED '" + w.name + "'", "items:1[5 services @4s]"},
		{"upsert", item + "($1, #5, 'z', now()) ON CONFLICT (workspace_id, id) DO UPDATE SET type = 'GOODS'", "items:1[5 goods @4s]"},
		{"the same row number in two workspaces", item + "($3, #5, 'z', '2020-01-01Z')", "items:3[5 goods @0s]"},
		{"any time", "ALTER TABLE items DROP CONSTRAINT items_created_at_check", all},
		{"the least time that is read", item + "($4, #1, 'a', '0001-01-01Z')", "items:4[1 goods @-2562047h47m16.854775808s]"},
		{"before Christ", item + "($4, #2, 'a', '0001-12-31Z BC')", "items:4[2 goods @0001-12-31 00:00:00.000000+00 BC text unknown]"},
		{"year 9999", item + "($4, #3, 'a', '9999-12-31 23:59:59.999Z')", "items:4[3 goods @2562047h47m16.854775807s]"},
		{"year 10000", item + "($4, #4, 'a', '10000-01-01Z')", "items:4[4 goods @10000-01-01 00:00:00.000000+00 text unknown]"},
		{"infinity", item + "($4, #5, 'a', 'infinity')", "items:4[5 goods @infinity text unknown]"},
		{"-infinity", item + "($4, #6, 'a', '-infinity')", "items:4[6 goods @-infinity text unknown]"},
		{"inactive since ever", "UPDATE items SET active = false WHERE id = #6", "items:4[6 gone]"},
		{"1000 rows", "INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000)", "1000 rows"},
		{"1001 rows", "INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1001)", "items:5[any]"},
		{"many bytes", "INSERT INTO items (workspace_id, name, sku) SELECT $5, 'x', repeat('x', 7000) FROM generate_series(1, 80)", "items:5[any]"},
		{"few rows of one list, and many of another",
			"BEGIN; " + item + "($6, #1, 'x', '2020-01-01Z'); INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000); COMMIT",
			"items:5[any] items:6[1 goods @0s]"},
		{"one row 1001 times", "DO $$ BEGIN FOR n IN 1..1001 LOOP UPDATE items SET stock_on_hand = n, sku = repeat('x', 1000) " +
			"WHERE id = #1 AND workspace_id = $6; END LOOP; END $$", "items:6[1 goods @0s]"},
		{"a purge", "SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6 || ' ' || $6)", "contacts:6[any] items:6[any] keys:6[any]"},
		{"a purge of a list with a row", "BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6; " +
			"SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6 || ' ' || $6); UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6; COMMIT",
			"contacts:6[any] items:6[any] keys:6[any]"},
		{"a key", "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", "keys:1[any]"},
		{"a new column", "ALTER TABLE items ADD extra int DEFAULT random()", all},
		{"after it", "UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6", "items:6[1 services @0s]"},
		{"of another type", "ALTER TABLE items ALTER sku TYPE char(9) USING left(sku, 9)", all},
		{"a row of another type", "UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[any]"},
		{"a contact beside it", "INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #3, 'c', '2020-01-01Z')", "contacts:1[3 @0s]"},
		{"of its type again", "ALTER TABLE items ALTER sku TYPE text", all},
		{"a row of its type", "UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[1 goods @0s]"},
		{"truncate", "TRUNCATE contacts", "whole:contacts; " + all},
	} {
		w.exec(rowsSQL(c.sql))
		if c.want == "" {
			w.quiet()
			continue
		}
		for want := range strings.SplitSeq(c.want, "; ") {
			got := w.newChange()
			switch is := named(got); {
			case want == "*" || want == "1000 rows" && len(got.Touched) == 1 && len(got.Touched[0].Rows) == 1000:
			case is != want:
				t.Errorf("%s:\n is %.300s\nnot %s", c.name, is, want)
			}
		}
	}
	if _, err := w.db.CopyFrom(w.ctx(), pgx.Identifier{"items"}, []string{"workspace_id", "id", "name", "created_at"},
		pgx.CopyFromRows([][]any{{listtest.ID(1), listtest.ID(1), "x", since}, {listtest.ID(2), listtest.ID(2), "y", since}})); err != nil {
		t.Fatal(err)
	}
	w.named("COPY", "items:1[1 goods @0s] items:2[2 goods @0s]")
}

func (w *world) migrate() {
	w.Helper()
	must2(admin.MigrateUp(w.ctx(), w.url, w.lists))
}

// Lists of columns lack what rows show, until `migrate up` publishes whole rows.
func TestListsOfColumnsAreMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER PUBLICATION listedge SET TABLE items (workspace_id, id), contacts (workspace_id, id), api_keys (id, workspace_id), workspaces (id)")
	f := w.follow()
	w.incapable(f, "lacks public.contacts, public.items, or some")
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
			p := must2(follower.ReadPublication(w.ctx(), w.db, w.lists))
			if defect, _ := p.Defect(); defect != "" {
				t.Fatal(defect)
			}
			is, _ := p.RowsUnnamed()
			if c.unnamed == "" && is != "" || c.unnamed != "" && !strings.Contains(is, "which row of public."+c.unnamed+" was") {
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
	p := must2(follower.ReadPublication(w.ctx(), w.db, w.lists))
	defect, remedy := p.Defect()
	if !strings.Contains(defect, "lacks the rows of public.far, which") || remedy != "ALTER TABLE public.items DETACH PARTITION public.far" {
		t.Errorf("%s: %s", defect, remedy)
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
		{"stock, and the name is not sent", "UPDATE items SET stock_on_hand = 5", "items:1[1 unplaced goods @0s partial]"},
		{"twice, and the name is not sent", "BEGIN; UPDATE items SET stock_on_hand = 6; UPDATE items SET stock_on_hand = 7; COMMIT",
			"items:1[1 unplaced goods @0s partial]"},
		{"another name, and then stock", "BEGIN; UPDATE items SET name = repeat('y', 5000); UPDATE items SET stock_on_hand = 8; COMMIT", "items:1[1 goods @0s]"},
		{"too large a name, and then stock", "BEGIN; UPDATE items SET name = repeat('z', 9000); UPDATE items SET stock_on_hand = 9; COMMIT",
			"items:1[1 goods @0s text unknown]"},
		{"another name while it is inactive", "BEGIN; UPDATE items SET name = repeat('y', 5000), active = false; UPDATE items SET active = true; COMMIT",
			"items:1[1 unplaced goods @0s text unknown]"},
		{"to another workspace", "UPDATE items SET workspace_id = $2", "items:1[1 gone] items:2[1 unplaced goods @0s text unknown]"},
		{"there and back", "BEGIN; UPDATE items SET workspace_id = $1; UPDATE items SET workspace_id = $2; COMMIT",
			"items:1[1 gone] items:2[1 unplaced goods @0s text unknown]"},
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
