package follower_test

import (
	"fmt"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/origin/admin"
)

// shape is tables, be they somebody else's, and what happens to them.
type shape struct {
	name, tables string // made before a node follows
	lists        string // their description; empty = the two lists that are built in
	steps        []step
}

// step is a statement, and the changes that it makes: as named writes them, apart by ";".
type step struct{ sql, want string }

const (
	item      = "INSERT INTO items (workspace_id, id, name, created_at) VALUES "
	fourItems = "items:1[1 goods @0s] items:2[1 goods @0s] items:3[1 goods @0s] items:4[1 goods @0s]"

	both       = "BEGIN; " + item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #2, 'c', '2020-01-01Z'); COMMIT"
	withoutKey = "ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; ALTER TABLE contacts REPLICA IDENTITY FULL"
)

var (
	unnamedItems    = []step{{both, "contacts:1[2 @0s] items:1[any]"}, {"UPDATE items SET unit = 'kg'", "items:1[any]"}}
	unnamedContacts = []step{{both, "contacts:1[any] items:1[1 goods @0s]"}, {"UPDATE contacts SET tin = '1'", "contacts:1[any]"}}

	long = strings.Repeat("9", 999)
)

// sqlOf replaces $1, $2, … by workspaces, #1, #2, … by ids of rows, and DATABASE by the name of the database.
func (w *world) sqlOf(sql string) string {
	sql = strings.ReplaceAll(sql, "DATABASE DATABASE", "DATABASE "+w.name)
	sql = strings.ReplaceAll(sql, "'DATABASE'", "'"+w.name+"'")
	for n := 99; n > 0; n-- {
		sql = strings.NewReplacer(fmt.Sprintf("#%d", n), "'"+listtest.ID(n)+"'", fmt.Sprintf("$%d", n), "'"+listtest.ID(n)+"'").Replace(sql)
	}
	return sql
}

// steps runs the statements, and compares what changes name, and when they committed.
func (w *world) steps(steps []step) {
	w.Helper()
	clock := func() (us int64) {
		must(w.db.QueryRow(w.ctx(), "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&us))
		return us
	}
	for _, s := range steps {
		sql, before := w.sqlOf(s.sql), clock()
		w.exec(sql)
		after := clock()
		if s.want == "" {
			w.quiet()
			continue
		}
		for i, want := range strings.Split(s.want, "; ") {
			got := w.newChange()
			switch is := named(got); {
			case want == "*" || want == "1000 lists" && len(got.Touched) == 1000:
			case want == "1000 rows" && len(got.Touched) == 1 && len(got.Touched[0].Rows) == 1000:
			case is != want:
				w.Fatalf("%.200s:\n is %.300s\nnot %s", s.sql, is, want)
			}
			later := strings.Contains(want, "whole:keys") || strings.Contains(s.sql, "session_setup") // the follower's own message, or at another server
			if i == 0 && !later && (got.CommittedAt < before || got.CommittedAt > after) || got.XID == 0 {
				w.Errorf("%s: %d committed at %d, which is not between %d and %d", s.sql, got.XID, got.CommittedAt, before, after)
			}
		}
	}
}

func TestWhatChangesSay(t *testing.T) {
	t.Parallel()
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.exec(w.sqlOf(s.tables))
			if s.lists != "" {
				w.describe(s.lists)
				for _, table := range w.lists.Tables() {
					w.exec("ALTER PUBLICATION listedge ADD TABLE " + table.SQL())
				}
			}
			w.awaitFollowing(w.follow())
			w.steps(s.steps)
		})
	}
}

var shapes = []shape{
	{"tables, keys and what is none of the lists'", "CREATE TABLE elsewhere (a int)", "", []step{
		{"BEGIN; " + item + "($5, #1, 'x', now()); ROLLBACK", ""},
		{"DELETE FROM items WHERE workspace_id = $9", ""},
		{"BEGIN; SAVEPOINT s; " + item + "($6, #1, 'x', '2020-01-01Z'); RELEASE s; COMMIT", "items:6[1 goods @0s]"},
		{"DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN UPDATE items SET name = 'x' || i; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$",
			"items:6[1 goods @0s]"}, // in subtransactions
		{"INSERT INTO elsewhere VALUES (1)", ""},
		{"ALTER TABLE elsewhere ADD b int DEFAULT 1; CREATE INDEX ON elsewhere (a)", ""},
		{`CREATE TABLE dropped (a int) PARTITION BY LIST (a); CREATE TABLE dropped_1 PARTITION OF dropped DEFAULT;
			GRANT SELECT ON elsewhere TO pg_read_all_data; CREATE TABLE heir () INHERITS (elsewhere); DROP TABLE dropped, heir`, ""},
		{`CREATE FUNCTION other() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE other AS ENUM ('a'); CREATE SCHEMA other;
			CREATE TABLE other.items (LIKE items); ALTER TABLE other.items ADD a int; DROP FUNCTION other; DROP TYPE other; DROP SCHEMA other CASCADE`, ""},
		{"ANALYZE; REINDEX TABLE items; CREATE STATISTICS passing ON name, unit FROM items; DROP STATISTICS passing", ""}, // upkeep
		{"VACUUM (FREEZE, ANALYZE) items", ""},
		{"VACUUM (FREEZE) pg_class", ""},
		{"VACUUM FULL contacts", all}, // which gives the table another file
		{"CREATE TEMP TABLE passing AS SELECT * FROM items; DROP TABLE passing", ""},
		{"CREATE TEMP TABLE own () INHERITS (items)", all},                            // which makes items a table that may have children
		{"INSERT INTO own (workspace_id, name) VALUES ($1, 'a'); DROP TABLE own", ""}, // rows that no other session can read
		{"CREATE INDEX passing ON items (unit)", ""},
		{"INSERT INTO workspaces (id, name) VALUES ($1, 'w')", "keys:1[any]"},
		{"UPDATE workspaces SET suspended_at = now() WHERE id = $1", "keys:1[any]"},
		{"INSERT INTO api_keys (id, workspace_id, key_hash, key_prefix, scopes) VALUES ($5, $1, sha256($1::text::bytea), '', '{}')", "keys:5[any]"},
		{"UPDATE api_keys SET revoked_at = now()", "keys:5[any]"},
		{"BEGIN; INSERT INTO workspaces (id, name) VALUES ($2, 'w'); UPDATE api_keys SET workspace_id = $2; COMMIT", "keys:2[any] keys:5[any]"},
		{"UPDATE api_keys SET id = $4", "keys:4[any] keys:5[any]"},
		{"DELETE FROM api_keys", "keys:4[any]"},
		{"INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 1000)", "1000 lists"},
		{"BEGIN; INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #1, 'x', '2020-01-01Z'); " +
			"INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 1000); COMMIT", "contacts:1[1 @0s] whole:items"},
		{"TRUNCATE contacts, items", "whole:contacts whole:items; " + all},
		{"ALTER TABLE items ALTER unit TYPE varchar(100)", all},
		{"SET session_replication_role = replica; ALTER TABLE items ALTER unit TYPE varchar(100) USING 'x'; RESET session_replication_role", all}, // fires no trigger
		{"SET session_replication_role = replica; ALTER TABLE items DROP COLUMN unit; RESET session_replication_role; ALTER TABLE items ADD unit text", all},
		{"ALTER TABLE contacts ENABLE ROW LEVEL SECURITY", all},
		{"GRANT SELECT ON items TO pg_read_all_data", all},
		{"ALTER FUNCTION listedge_fold COST 2", all},
		{"CREATE FUNCTION listedge_name_key(name varchar) RETURNS text LANGUAGE sql IMMUTABLE RETURN name", all}, // overloads a function of lists
		{"CREATE SCHEMA passing; ALTER SCHEMA public RENAME TO away; ALTER SCHEMA away RENAME TO public", all},
		{"BEGIN; ALTER TABLE contacts RENAME TO c; ALTER TABLE c RENAME TO contacts; COMMIT", all},
		{"SELECT pg_logical_emit_message(true, 'other', 'x')", ""}, // of another program
		{"SELECT pg_replication_origin_create(current_database()); SELECT pg_replication_origin_session_setup(current_database()); " +
			item + "($6, #2, 'x', '2020-01-01Z')", "items:6[2 goods @0s]"}, // replicated from elsewhere
		{"SELECT pg_replication_origin_session_reset(); SELECT pg_replication_origin_drop(current_database()); DELETE FROM items WHERE workspace_id = $6",
			"items:6[2 gone]"},
		{"CREATE UNLOGGED TABLE unlogged (a int); INSERT INTO unlogged VALUES (1)", ""},
	}},
	{"rows", "ALTER DATABASE DATABASE SET datestyle = 'SQL, DMY'; ALTER DATABASE DATABASE SET timezone = 'Asia/Kolkata'; " +
		"ALTER DATABASE DATABASE SET client_encoding = 'LATIN1'", "", []step{
		{item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"INSERT INTO items (workspace_id, id, name, type, created_at) VALUES ($1, #2, 'b', 'SERVICE', '2020-01-01 00:00:01.5Z')",
			"items:1[2 services @1.5s]"},
		{"INSERT INTO contacts (workspace_id, id, name, created_at, is_customer) VALUES ($1, #3, 'c', '2020-01-01Z', true)",
			"contacts:1[3 customer @0s]"},
		{"UPDATE contacts SET is_supplier = true", "contacts:1[3 customer supplier @0s]"},
		{"INSERT INTO items (workspace_id, id, name, active) VALUES ($1, #4, 'x', false)", "items:1[4 gone]"},
		{"UPDATE items SET active = true, created_at = '2020-01-02Z' WHERE id = #4", "items:1[4 goods @24h0m0s]"},
		{"UPDATE items SET active = false WHERE id = #4", "items:1[4 gone]"},
		{"DELETE FROM items WHERE id = #4", "items:1[4 gone]"},
		{"UPDATE items SET track_stock = true WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET reorder_point = 0 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"UPDATE items SET stock_on_hand = 0." + strings.Repeat("0", 999) + "1 WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET stock_on_hand = 5.50, reorder_point = 5.5000 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"UPDATE items SET stock_on_hand = " + long + ".1, reorder_point = " + long + ".2 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"UPDATE items SET reorder_point = " + long + " WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET stock_on_hand = -10, reorder_point = -9.99 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"UPDATE items SET track_stock = false WHERE id = #1", "items:1[1 goods @0s]"},
		{"UPDATE items SET workspace_id = $2 WHERE id = #1", "items:1[1 gone] items:2[1 goods @0s]"},
		{"UPDATE items SET id = #5 WHERE id = #1", "items:2[1 gone, 5 goods @0s]"},
		{"UPDATE items SET active = false, workspace_id = $1 WHERE id = #5", "items:1[5 gone] items:2[5 gone]"},
		{"BEGIN; UPDATE items SET active = true WHERE id = #5; UPDATE items SET created_at = '2020-01-01 00:00:02Z' WHERE id = #5; " +
			"UPDATE items SET created_at = '2020-01-01 00:00:03Z' WHERE id = #5; COMMIT", "items:1[5 goods @3s]"},
		{"BEGIN; DELETE FROM items WHERE id = #5; " + item + "($1, #5, 'a', '2020-01-01 00:00:04Z'); COMMIT", "items:1[5 goods @4s]"},
		{"BEGIN; " + item + "($1, #6, 'a', '2020-01-01Z'); DELETE FROM items WHERE id = #6; COMMIT", "items:1[6 gone]"},
		{"BEGIN; UPDATE items SET workspace_id = $2 WHERE id = #5; UPDATE items SET workspace_id = $1 WHERE id = #5; COMMIT",
			"items:1[5 goods @4s] items:2[5 gone]"},
		{"BEGIN; UPDATE items SET track_stock = true WHERE id = #5; SAVEPOINT s; DELETE FROM items WHERE id = #5; " +
			"UPDATE items SET type = 'GOODS' WHERE id = #2; ROLLBACK TO s; COMMIT", "items:1[5 tracked goods @4s]"},
		{"BEGIN; DELETE FROM contacts; UPDATE items SET track_stock = false WHERE id = #5; COMMIT", "contacts:1[3 gone] items:1[5 goods @4s]"},
		{"BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #5; PREPARE TRANSACTION 'DATABASE'", ""},
		{"COMMIT PREPARED 'DATABASE'", "items:1[5 services @4s]"},
		{item + "($1, #5, 'z', now()) ON CONFLICT (workspace_id, id) DO UPDATE SET type = 'GOODS'", "items:1[5 goods @4s]"},
		{item + "($3, #5, 'z', '2020-01-01Z')", "items:3[5 goods @0s]"},
		{"ALTER TABLE items DROP CONSTRAINT items_created_at_check", all},
		{item + "($4, #1, 'a', '0001-01-01Z')", "items:4[1 goods @-2562047h47m16.854775808s]"},
		{item + "($4, #2, 'a', '0001-12-31Z BC')", "items:4[2 goods @0001-12-31 00:00:00.000000+00 BC text unknown]"},
		{item + "($4, #3, 'a', '9999-12-31 23:59:59.999Z')", "items:4[3 goods @2562047h47m16.854775807s]"},
		{item + "($4, #4, 'a', '10000-01-01Z')", "items:4[4 goods @10000-01-01 00:00:00.000000+00 text unknown]"},
		{item + "($4, #5, 'a', 'infinity')", "items:4[5 goods @infinity text unknown]"},
		{item + "($4, #6, 'a', '-infinity')", "items:4[6 goods @-infinity text unknown]"},
		{"UPDATE items SET active = false WHERE id = #6", "items:4[6 gone]"},
		{"INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000)", "1000 rows"},
		{"INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1001)", "items:5[any]"},
		{"INSERT INTO items (workspace_id, name, sku) SELECT $5, 'x', repeat('x', 7000) FROM generate_series(1, 80)", "items:5[any]"},
		{"BEGIN; " + item + "($6, #1, 'x', '2020-01-01Z'); INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000); COMMIT",
			"items:5[any] items:6[1 goods @0s]"},
		{"DO $$ BEGIN FOR n IN 1..1001 LOOP UPDATE items SET stock_on_hand = n, sku = repeat('x', 1000) " +
			"WHERE id = #1 AND workspace_id = $6; END LOOP; END $$", "items:6[1 goods @0s]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6 || ' ' || $6)", "contacts:6[any] items:6[any] keys:6[any]"},
		{"BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6; " +
			"SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6 || ' ' || $6); UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6; COMMIT",
			"contacts:6[any] items:6[any] keys:6[any]"},
		{"ALTER TABLE items ADD extra int DEFAULT random()", all},
		{"UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6", "items:6[1 services @0s]"},
		{"ALTER TABLE items ALTER sku TYPE char(9) USING left(sku, 9)", all},
		{"UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[any]"},
		{"INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #3, 'c', '2020-01-01Z')", "contacts:1[3 @0s]"},
		{"ALTER TABLE items ALTER sku TYPE text", all},
		{"UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[1 goods @0s]"},
		{"TRUNCATE contacts", "whole:contacts; " + all},
		// If the replica identity lacks the workspace, a move between workspaces touches all lists.
		{`BEGIN; ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; ALTER TABLE contacts ADD PRIMARY KEY (id); INSERT INTO contacts (workspace_id, name) VALUES ($1, 'a');
			UPDATE contacts SET workspace_id = $2; ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; ALTER TABLE contacts ADD PRIMARY KEY (workspace_id, id); COMMIT`,
			"whole:contacts; " + all},
	}},
	// Postgres refuses no update or delete of a table whose replica identity is the whole row: keys can be revoked.
	{"whole rows as identities", "ALTER TABLE items REPLICA IDENTITY FULL; ALTER TABLE workspaces REPLICA IDENTITY FULL; ALTER TABLE api_keys REPLICA IDENTITY FULL; " +
		item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO workspaces (id, name) VALUES ($1, 'a'); " +
		"INSERT INTO api_keys (workspace_id, id, key_hash, key_prefix, scopes) VALUES ($1, $2, sha256('a'), '', '{}')", "", []step{
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
	}},
	// Postgres stores large values apart. An update that does not change one does not send it.
	{"large values", "ALTER TABLE items ALTER name SET STORAGE EXTERNAL, ALTER description SET STORAGE EXTERNAL, ALTER image_path SET STORAGE EXTERNAL", "", []step{
		{item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"UPDATE items SET image_path = repeat('x', 8192)", "items:1[1 goods @0s text unknown]"},
		{"UPDATE items SET stock_on_hand = 1", "items:1[1 goods @0s partial]"},
		{"UPDATE items SET image_path = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"UPDATE items SET stock_on_hand = 2", "items:1[1 goods @0s partial]"},
		{"BEGIN; UPDATE items SET image_path = repeat('y', 5000); UPDATE items SET stock_on_hand = 3; COMMIT",
			"items:1[1 goods @0s]"},
		{"UPDATE items SET image_path = 'x'", "items:1[1 goods @0s]"},
		{"UPDATE items SET stock_on_hand = 4", "items:1[1 goods @0s]"},
		{"UPDATE items SET name = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"UPDATE items SET stock_on_hand = 5", "items:1[1 unplaced goods @0s partial]"},
		{"BEGIN; UPDATE items SET stock_on_hand = 6; UPDATE items SET stock_on_hand = 7; COMMIT",
			"items:1[1 unplaced goods @0s partial]"},
		{"BEGIN; UPDATE items SET name = repeat('y', 5000); UPDATE items SET stock_on_hand = 8; COMMIT", "items:1[1 goods @0s]"},
		{"BEGIN; UPDATE items SET name = repeat('z', 9000); UPDATE items SET stock_on_hand = 9; COMMIT",
			"items:1[1 goods @0s text unknown]"},
		{"BEGIN; UPDATE items SET name = repeat('y', 5000), active = false; UPDATE items SET active = true; COMMIT",
			"items:1[1 unplaced goods @0s text unknown]"},
		{"UPDATE items SET workspace_id = $2", "items:1[1 gone] items:2[1 unplaced goods @0s text unknown]"},
		{"BEGIN; UPDATE items SET workspace_id = $1; UPDATE items SET workspace_id = $2; COMMIT",
			"items:1[1 gone] items:2[1 unplaced goods @0s text unknown]"},
		{"ALTER TABLE items ALTER stock_on_hand SET STORAGE EXTERNAL", all},
		{"ALTER TABLE items DROP CONSTRAINT items_stock_on_hand_size", all},
		{"UPDATE items SET name = 'a', track_stock = true, reorder_point = 5, stock_on_hand = 9" + strings.Repeat("1234567890", 800),
			"items:2[1 tracked goods @0s text unknown]"},
		{"UPDATE items SET reorder_point = 6", "items:2[any]"},
	}},
	// Partitions are identified by oid, so their names and schemas do not matter.
	{"partitions of any name", `ALTER TABLE items RENAME TO items_old;
		CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id)) PARTITION BY HASH (workspace_id);
		CREATE SCHEMA other; CREATE TABLE other.contacts PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY HASH (workspace_id);
		CREATE TABLE other.api_keys PARTITION OF other.contacts FOR VALUES WITH (MODULUS 1, REMAINDER 0);
		CREATE TABLE "items of ""ours""" PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		CREATE TABLE other.items (LIKE contacts INCLUDING ALL);
		ALTER PUBLICATION listedge ADD TABLE items, other.items; ALTER PUBLICATION listedge DROP TABLE items_old`, "", []step{
		{item + "($1, #1, 'a', '2020-01-01Z'), ($2, #1, 'a', '2020-01-01Z'), ($3, #1, 'a', '2020-01-01Z'), ($4, #1, 'a', '2020-01-01Z')", fourItems},
		{"UPDATE items SET name = 'b'", fourItems},
		{"TRUNCATE other.contacts", "whole:items; " + all},
		{`ALTER TABLE items DETACH PARTITION "items of ""ours"""`, all},
		{`INSERT INTO "items of ""ours""" (workspace_id, name) VALUES ($1, 'a'); DROP TABLE items_old, "items of ""ours"""`, ""},
		{"INSERT INTO other.items (workspace_id, name) VALUES ($1, 'a')", ""},
		// Queries of pages do not use search_path.
		{"ALTER DATABASE DATABASE SET search_path = other; INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($2, #1, 'a', '2020-01-01Z')", "contacts:2[1 @0s]"},
	}},
	// Rows are named only where the workspace and the id name one.
	{"a key that has more columns", "ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id, name)", "", unnamedItems},
	{"an identity without the id", "CREATE UNIQUE INDEX one ON items (workspace_id, name); ALTER TABLE items REPLICA IDENTITY USING INDEX one", "", unnamedItems},
	{"partitions of any time", `ALTER TABLE items RENAME TO items_old;
		CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id, created_at)) PARTITION BY RANGE (created_at);
		CREATE TABLE items_0 PARTITION OF items DEFAULT; ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`, "", unnamedItems},
	{"an identity that lacks the id for a moment", item + "($1, #1, 'a', '2020-01-01Z')", "", []step{
		{"BEGIN; CREATE UNIQUE INDEX one ON items (workspace_id, name); ALTER TABLE items REPLICA IDENTITY USING INDEX one; UPDATE items SET id = #2; " +
			"ALTER TABLE items REPLICA IDENTITY DEFAULT; DROP INDEX one; COMMIT", "items:1[any]; " + all},
	}},
	{"no key", withoutKey, "", unnamedContacts},
	{"a key of some rows", withoutKey + "; CREATE UNIQUE INDEX ON contacts (workspace_id, id) WHERE active", "", unnamedContacts},
	{"a key that waits for the commit", withoutKey + "; ALTER TABLE contacts ADD UNIQUE (workspace_id, id) DEFERRABLE", "", unnamedContacts},
	{"a key of the id alone, beside the primary key", "CREATE UNIQUE INDEX one ON items (id)", "", []step{{both, "contacts:1[2 @0s] items:1[1 goods @0s]"}}},
	// A large value that an update leaves as it was is not in the log. Where it decides whether a list has the row, or
	// what filters keep it, or whose it is, no row is named.
	{"large values that decide", `CREATE TABLE notes (id int PRIMARY KEY, state text, kind text, owner text, n int NOT NULL DEFAULT 0);
		ALTER TABLE notes ALTER state SET STORAGE EXTERNAL, ALTER kind SET STORAGE EXTERNAL, ALTER owner SET STORAGE EXTERNAL`, `
lists:
  notes:
    key: id
    live: state <> 'gone' and n < 10
    fields: {id: }
    orders: {n: {by: n}}
    filters: {kind: {short: kind = 'short'}}
`, []step{
		{"INSERT INTO notes VALUES (1, 'new', 'short')", "notes:[1 short @0]"},
		{"UPDATE notes SET state = repeat('x', 5000)", "notes:[1 short @0]"},
		{"UPDATE notes SET n = 1", "notes:[any]"},
		{"UPDATE notes SET n = 10", "notes:[1 gone]"}, // whatever its state is
		{"UPDATE notes SET state = '', n = 2, kind = repeat('x', 5000)", "notes:[1 @2]"},
		{"UPDATE notes SET n = 3", "notes:[any]"},
		{"ALTER TABLE notes REPLICA IDENTITY FULL", "whole:keys whole:notes"},
		{"UPDATE notes SET n = 4", "notes:[1 @4]"}, // the old row has it
	}},
	// Partitions have their columns in any order, and rows of theirs are rows of the table while they are a part of it.
	{"partitions of somebody else", `CREATE TABLE orders (shop int NOT NULL, id int NOT NULL, note text, total numeric NOT NULL, PRIMARY KEY (shop, id)) PARTITION BY LIST (shop);
		CREATE TABLE orders_1 (gone int, total numeric NOT NULL, note text, passing text, id int NOT NULL, shop int NOT NULL, PRIMARY KEY (shop, id));
		ALTER TABLE orders_1 DROP gone, DROP passing, DROP note;
		ALTER TABLE orders_1 ADD note text;
		ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES IN (1);
		CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN (2) PARTITION BY RANGE (id);
		CREATE TABLE orders_2_small PARTITION OF orders_2 FOR VALUES FROM (MINVALUE) TO (100);
		CREATE TABLE later (LIKE orders INCLUDING ALL);
		ALTER PUBLICATION listedge ADD TABLE later`, `
lists:
  orders:
    tenant: shop
    key: id
    fields: {id: , note: , total: }
    orders: {total: {by: total}}
`, []step{
		{"INSERT INTO orders VALUES (1, 1, 'n', 1.50), (2, 1, 'm', 2)", "orders:1[1 @15e-1] orders:2[1 @2e0]"},
		{"UPDATE orders SET total = 3", "orders:1[1 @3e0] orders:2[1 @3e0]"},
		{"UPDATE orders SET shop = 2, id = 2 WHERE shop = 1", "orders:1[1 gone] orders:2[2 @3e0]"},
		{"INSERT INTO later VALUES (3, 1, 'l', 1)", ""},
		{"ALTER TABLE orders ATTACH PARTITION later FOR VALUES IN (3)", "whole:keys whole:orders"},
		{"UPDATE orders SET note = 'k' WHERE shop = 3", "orders:3[1 @1e0]"},
		{"ALTER TABLE orders DETACH PARTITION later", "whole:keys whole:orders"},
		{"UPDATE later SET note = 'j'", ""},
		{"ALTER TABLE orders ALTER note TYPE varchar(9)", "whole:keys whole:orders"},
		{"UPDATE orders SET total = 6 WHERE shop = 2 AND id = 1", "orders:2[1 @6e0]"},
		{"ALTER TABLE orders ALTER note TYPE char(9)", "whole:keys whole:orders"},
		{"UPDATE orders SET total = 7 WHERE shop = 2 AND id = 1", "orders:2[any]"}, // another type
		{"TRUNCATE orders_2_small", "whole:orders; whole:keys whole:orders"},
	}},
	{"products of accounts", `
		CREATE SCHEMA shop;
		CREATE TABLE shop.products (id bigint, account_id int, title text NOT NULL, code text, price_cents int, on_hand int, kind text, deleted_at timestamptz,
			inserted_at timestamptz NOT NULL DEFAULT '2020-01-01Z', PRIMARY KEY (account_id, id))`, `
lists:
  products:
    table: shop.products
    tenant: account_id
    key: id
    live: deleted_at is null
    fields: {id: , title: , code: , priceCents: , onHand: }
    orders: {newest: {by: inserted_at, descending: true}, title: {by: title, fold: true}}
    filters: {stock: {out: on_hand <= 0}, kind: {boxes: kind = 'box'}}
`, []step{
		{"INSERT INTO shop.products VALUES (1, 7, 'a', 'x', 100, 5, 'box')", "products:7[1 boxes @0s]"},
		{"UPDATE shop.products SET on_hand = 0, price_cents = NULL", "products:7[1 out boxes @0s]"},
		{"UPDATE shop.products SET account_id = 8", "products:7[1 gone] products:8[1 out boxes @0s]"},
		{"UPDATE shop.products SET deleted_at = now()", "products:8[1 gone]"},
		{"UPDATE shop.products SET deleted_at = NULL, id = -2", "products:8[-2 out boxes @0s, 1 gone]"},
		{"BEGIN; DELETE FROM shop.products; INSERT INTO shop.products VALUES (-2, 8, 'again', NULL, NULL, NULL, NULL); COMMIT", "products:8[-2 @0s]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge 00000000-0000-0000-0000-000000000005 8')", "keys:5[any] products:8[any]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge')", "whole:keys whole:products"},
		{"TRUNCATE shop.products", "whole:products; whole:keys whole:products"},
	}},
	{"people by the first order that there is", `
		CREATE SCHEMA crm;
		CREATE TABLE crm.people (id text NOT NULL, org_id int, full_name text NOT NULL,
			mail text, tel text, vat text, is_vendor bool, created timestamptz NOT NULL DEFAULT '2020-01-01Z');
		CREATE UNIQUE INDEX people_of_org ON crm.people (org_id, id);
		ALTER TABLE crm.people REPLICA IDENTITY FULL, ALTER full_name SET STORAGE EXTERNAL, ALTER vat SET STORAGE EXTERNAL`, `
lists:
  people:
    table: crm.people
    tenant: org_id
    key: id
    fields: {id: , fullName: , mail: , tel: , vat: }
    orders: {created: {by: created}, name: {by: full_name, fold: true}}
    filters: {type: {vendors: is_vendor}}
    search: [fullName, mail]
`, []step{
		{"INSERT INTO crm.people VALUES ('é 1', 3, repeat('x', 5000), 'm')", "people:3[é 1 @0s]"},
		// The old row has the large value.
		{"UPDATE crm.people SET mail = 'n', is_vendor = true", "people:3[é 1 vendors @0s]"},
		{"UPDATE crm.people SET org_id = 4", "people:3[é 1 gone] people:4[é 1 vendors @0s]"},
		// A row without a tenant is nobody's.
		{"UPDATE crm.people SET org_id = NULL", "people:4[é 1 gone] people:[any]"},
		{"UPDATE crm.people SET tel = '1'", "people:[any]"},
		{"UPDATE crm.people SET org_id = 4", "people:4[é 1 vendors @0s] people:[any]"},
		{"UPDATE crm.people SET id = repeat('k', 256)", "people:4[any]"},
		{"UPDATE crm.people SET id = ''", "people:4[any]"},
		{"DELETE FROM crm.people", "people:4[ gone]"},
		{"INSERT INTO crm.people VALUES ('a', NULL, 'n')", "people:[any]"},
		{"DELETE FROM crm.people", "people:[any]"},
	}},
	{"everybody's, in partitions by time", `
		CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL, happened timestamptz NOT NULL,
			PRIMARY KEY (id, happened)) PARTITION BY RANGE (happened);
		CREATE TABLE events_2020 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')`, `
lists:
  events:
    key: id
    fields: {id: , what: , happened: }
    orders: {happened: {by: happened, descending: true}}
`, []step{
		{"INSERT INTO events (what, happened) VALUES ('a', '2020-01-01Z')", "events:[any]"}, // two partitions may have the key
		{"UPDATE events SET what = 'b'", "events:[any]"},
		{"CREATE TABLE events_2021 PARTITION OF events FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')", "whole:events whole:keys"},
		{"UPDATE events SET happened = '2021-05-05Z'", "events:[any]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge 00000000-0000-0000-0000-000000000005 8')", "events:[any] keys:5[any]"},
	}},
	{"everybody's, by a key alone", `
		CREATE TABLE currencies (code varchar(3) PRIMARY KEY, title text NOT NULL)`, `
lists:
  currencies:
    key: code
    fields: {code: , title: }
    orders: {code: {by: code}}
`, []step{
		{"INSERT INTO currencies VALUES ('EUR', 'Euro')", "currencies:[EUR @EUR]"},
		{"UPDATE currencies SET title = 'euro'", "currencies:[EUR @EUR]"},
		{"UPDATE currencies SET code = 'EU'", "currencies:[EU @EU, EUR gone]"},
		{"DELETE FROM currencies", "currencies:[EU gone]"},
	}},
	{"Odoo's partners", `
		CREATE TABLE res_partner (id serial PRIMARY KEY, company_id int, name varchar NOT NULL, email varchar, active bool,
			customer_rank int, create_date timestamp NOT NULL DEFAULT '2020-01-01');
		CREATE UNIQUE INDEX ON res_partner (company_id, id);
		ALTER TABLE res_partner REPLICA IDENTITY FULL`, `
lists:
  partners:
    table: res_partner
    tenant: company_id
    key: id
    live: active
    fields: {id: , name: , email: , createDate: }
    orders: {name: {by: name, fold: true}}
    filters: {type: {customer: customer_rank > 0}}
`, []step{
		{"INSERT INTO res_partner VALUES (1, 2, 'n', NULL, true, 1)", "partners:2[1 customer @N]"},
		{"UPDATE res_partner SET company_id = NULL", "partners:2[1 gone] partners:[any]"},
		{"UPDATE res_partner SET company_id = 2, active = NULL", "partners:2[1 gone] partners:[any]"},
	}},
	{"Saleor's accounts, by two lists", `
		CREATE TABLE account_user (id int PRIMARY KEY, uuid uuid NOT NULL UNIQUE, email varchar(254) NOT NULL, is_staff bool NOT NULL,
			is_active bool NOT NULL DEFAULT true,
			date_joined timestamptz NOT NULL DEFAULT '2020-01-01Z')`, `
lists:
  users:
    table: account_user
    key: id
    live: is_active
    fields: {id: , email: }
    orders: {joined: {by: date_joined}}
  staff:
    table: account_user
    key: id
    live: is_active and is_staff
    fields: {uuid: , email: }
    orders: {email: {by: email}}
`, []step{
		{"INSERT INTO account_user VALUES (1, '00000000-0000-0000-0000-000000000001', 'a@b', false)", "staff:[1 gone] users:[1 @0s]"},
		{"UPDATE account_user SET is_staff = true", "staff:[1 @a@b] users:[1 @0s]"},
		{"UPDATE account_user SET is_active = false", "staff:[1 gone] users:[1 gone]"},
		{"UPDATE account_user SET id = 2", "staff:[1 gone, 2 gone] users:[1 gone, 2 gone]"},
	}},
	{"Medusa's customers, by two tenants", `
		CREATE TABLE customer (id text NOT NULL, store text NOT NULL, region int NOT NULL, email text,
			deleted_at timestamptz, created_at timestamptz NOT NULL DEFAULT '2020-01-01Z',
			PRIMARY KEY (store, id), UNIQUE (region, id));
		ALTER TABLE customer REPLICA IDENTITY FULL`, `
lists:
  customers:
    table: customer
    tenant: store
    key: id
    live: deleted_at is null
    fields: {id: , email: }
    orders: {created: {by: created_at}}
  regional:
    table: customer
    tenant: region
    key: id
    live: deleted_at is null
    fields: {id: , email: }
    orders: {created: {by: created_at}}
`, []step{
		{"INSERT INTO customer VALUES ('cus_1', 'a store', 4, 'a@b')", "customers:a store[cus_1 @0s] regional:4[cus_1 @0s]"},
		{"UPDATE customer SET store = 'b'", "customers:a store[cus_1 gone] customers:b[cus_1 @0s] regional:4[cus_1 @0s]"},
		{"UPDATE customer SET region = 5", "customers:b[cus_1 @0s] regional:4[cus_1 gone] regional:5[cus_1 @0s]"},
		{"UPDATE customer SET store = repeat('s', 256)", "customers:[any] customers:b[cus_1 gone] regional:5[cus_1 @0s]"}, // no workspace can have it
	}},
	{"odd names and types", `
		CREATE SCHEMA "Our ""own""";
		CREATE TYPE "Our ""own"""."Kind" AS ENUM ('a', 'it''s');
		CREATE DOMAIN "Our ""own""".title AS text CHECK (value <> '');
		CREATE DOMAIN "Our ""own""".kind AS "Our ""own"""."Kind";
		CREATE TABLE "Our ""own"""."The Table" ("Id" int PRIMARY KEY, "Title" "Our ""own""".title NOT NULL, "kind of" "Our ""own""".kind NOT NULL,
			extra jsonb, tags text[],
			size int GENERATED ALWAYS AS (length("Title")) STORED)`, `
lists:
  things:
    table: '"Our ""own"""."The Table"'
    key: Id
    fields: {id: {column: Id}, title: {column: Title}, kind: {column: kind of}, extra: }
    orders: {title: {by: title}}
    filters: {kind: {a: "\"kind of\" = 'a'"}}
`, []step{
		{`INSERT INTO "Our ""own"""."The Table" VALUES (1, 't', 'a', '{"b":  [1]}')`, "things:[1 a @t]"},
		{`UPDATE "Our ""own"""."The Table" SET "kind of" = 'it''s'`, "things:[1 @t]"},
		{`ALTER TYPE "Our ""own"""."Kind" RENAME VALUE 'it''s' TO 'its'`, "whole:keys whole:things"},
		{`ALTER TYPE "Our ""own"""."Kind" RENAME TO "Kinds"`, ""},
		{`UPDATE "Our ""own"""."The Table" SET extra = NULL`, "things:[1 @t]"},
		{`ALTER TABLE "Our ""own"""."The Table" RENAME extra TO more; ALTER TABLE "Our ""own"""."The Table" ADD extra jsonb`, "whole:keys whole:things"},
		{`UPDATE "Our ""own"""."The Table" SET extra = '0'`, "things:[1 @t]"},
	}},
}

// What `lists plan` asks for is what a follower needs.
func TestAppliedListsAreFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	unnamed := []*list.List{}
	for _, s := range listtest.Shapes {
		w.exec(s.SQL)
	}
	w.describe(listtest.DescriptionText(listtest.Shapes...))
	must(admin.ApplyLists(w.ctx(), w.url, w.lists, func(admin.Step) {}))
	w.awaitFollowing(w.follow())
	for i, s := range listtest.Shapes {
		w.exec(s.Rows(1, 20))
		rows, change := 0, w.newChange()
		for _, p := range change.Touched {
			if p.List != w.lists.Lists[i] || p.All {
				t.Errorf("%s: %.300s", s.Name, touched(change))
			}
			rows += len(p.Rows)
		}
		if rows == 0 {
			unnamed = append(unnamed, w.lists.Lists[i])
		}
	}
	if len(unnamed) != 1 || unnamed[0].Name != "events" { // two partitions may have the same key
		t.Errorf("no rows are named of %v", unnamed)
	}
}

// The lists that a heartbeat names are those whose tables are followed.
func TestHeartbeatsNameTheirLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	if text := fmt.Sprint(w.heartbeat().Followed); text != fmt.Sprint(w.lists.Lists) {
		t.Error(text)
	}
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
	writer := w.begin("INSERT INTO items (workspace_id, id, name) VALUES ($2, #2, 'b')")
	w.migrate() // does not wait for writers
	must2(writer.Exec(w.ctx(), "COMMIT"))
	w.awaitFollowing(f)
	w.steps([]step{{item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"}})
	epoch := w.epoch
	w.migrate() // has nothing to do
	w.steps([]step{{"UPDATE items SET track_stock = true WHERE id = #1", "items:1[1 tracked goods @0s]"}})
	if is := w.text("SELECT count(prattrs)::text FROM pg_publication_rel"); is != "0" || w.epoch != epoch {
		t.Errorf("%s tables have a list of columns, epoch %s after %s", is, w.epoch, epoch)
	}
}
