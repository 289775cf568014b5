package follower_test

import (
	"fmt"
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/list/listtest"
)

// $1, $2, … are workspaces 1, 2, …
func ids(sql string) string {
	for n := range 9 {
		sql = strings.ReplaceAll(sql, fmt.Sprintf("$%d", n+1), "'"+listtest.ID(n+1)+"'")
	}
	return sql
}

func TestWhatAChangeTouches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	w.exec("CREATE TABLE elsewhere (a int)")
	const hash = "sha256($1::text::bytea)"
	clock := func() (us int64) {
		t.Helper()
		must(w.db.QueryRow(w.ctx(), "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&us))
		return us
	}
	for _, c := range []struct{ name, sql, want string }{
		{"two rows of one workspace", "INSERT INTO items (workspace_id, name) VALUES ($1, 'x'), ($1, 'y')", "items:1"},
		{"two workspaces", "INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x'), ($2, 'y')", "contacts:1 contacts:2"},
		{"rollback", "BEGIN; INSERT INTO items (workspace_id, name) VALUES ($5, 'x'); ROLLBACK", ""},
		{"nothing matched", "DELETE FROM items WHERE workspace_id = $9", ""},
		{"released savepoint", "BEGIN; SAVEPOINT s; INSERT INTO items (workspace_id, name) VALUES ($6, 'x'); RELEASE s; COMMIT", "items:6"},
		{"100 subtransactions", "DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN INSERT INTO items (workspace_id, name) VALUES ($6, 'x'); " +
			"EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$", "items:6"},
		{"another table", "INSERT INTO elsewhere VALUES (1)", ""},
		{"another table's schema", "ALTER TABLE elsewhere ADD b int DEFAULT 1; CREATE INDEX ON elsewhere (a)", ""},
		{"other tables, their rights, their partitions and heirs",
			`CREATE TABLE dropped (a int) PARTITION BY LIST (a); CREATE TABLE dropped_1 PARTITION OF dropped DEFAULT;
			GRANT SELECT ON elsewhere TO pg_read_all_data; CREATE TABLE heir () INHERITS (elsewhere); DROP TABLE dropped, heir`, ""},
		{"other functions, types, schemas and roles' settings",
			`CREATE FUNCTION other() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE other AS ENUM ('a'); CREATE SCHEMA other;
			CREATE TABLE other.items (LIKE items); ALTER TABLE other.items ADD a int; DROP FUNCTION other; DROP TYPE other; DROP SCHEMA other CASCADE`, ""},
		{"upkeep of the tables", "ANALYZE; REINDEX TABLE items; CREATE STATISTICS passing ON name, unit FROM items; DROP STATISTICS passing", ""},
		{"VACUUM", "VACUUM (FREEZE, ANALYZE) items", ""},
		{"VACUUM of the catalog", "VACUUM (FREEZE) pg_class", ""},
		{"VACUUM FULL, which gives the table another file", "VACUUM FULL contacts", all},
		{"a temporary table", "CREATE TEMP TABLE passing AS SELECT * FROM items; DROP TABLE passing", ""},
		{"a temporary child, which makes the table one that may have children", "CREATE TEMP TABLE own () INHERITS (items)", all},
		{"its rows, which no other session can read", "INSERT INTO own (workspace_id, name) VALUES ($1, 'a'); DROP TABLE own", ""},
		{"a new index", "CREATE INDEX passing ON items (unit)", ""},
		{"workspace", "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", "keys:1"},
		{"suspension", "UPDATE workspaces SET suspended_at = now() WHERE id = $1", "keys:1"},
		{"key", "INSERT INTO api_keys (id, workspace_id, key_hash, key_prefix, scopes) VALUES ($5, $1, " + hash + ", '', '{}')", "keys:5"},
		{"revocation", "UPDATE api_keys SET revoked_at = now()", "keys:5"},
		{"a key's move to another workspace", "BEGIN; INSERT INTO workspaces (id, name) VALUES ($2, 'w'); UPDATE api_keys SET workspace_id = $2; COMMIT",
			"keys:2 keys:5"},
		{"a key under another ID", "UPDATE api_keys SET id = $4", "keys:4 keys:5"},
		{"a key's delete", "DELETE FROM api_keys", "keys:4"},
		{"1,000 workspaces", "INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 1000)", "1000 pairs"},
		{"1,001 workspaces", "BEGIN; INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x'); " +
			"INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 1000); COMMIT", "contacts:1 whole:items"},
		{"truncate, which gives the table another file", "TRUNCATE contacts", "whole:contacts, " + all},
		{"truncate of two", "TRUNCATE contacts, items", "whole:contacts whole:items, " + all},
		{"rewrite", "ALTER TABLE items ALTER unit TYPE varchar(100)", all},
		{"rewrite by a session that fires no triggers",
			"SET session_replication_role = replica; ALTER TABLE items ALTER unit TYPE varchar(100) USING 'x'; RESET session_replication_role", all},
		{"drop by a session that fires no triggers",
			"SET session_replication_role = replica; ALTER TABLE items DROP COLUMN unit; RESET session_replication_role; ALTER TABLE items ADD unit text", all},
		{"new column", "ALTER TABLE contacts ADD extra int DEFAULT random()", all},
		{"row security", "ALTER TABLE contacts ENABLE ROW LEVEL SECURITY", all},
		{"rights", "GRANT SELECT ON items TO pg_read_all_data", all},
		{"a function of searches", "ALTER FUNCTION listedge_fold COST 2", all},
		{"an overloaded function of names", "CREATE FUNCTION listedge_name_key(name varchar) RETURNS text LANGUAGE sql IMMUTABLE RETURN name", all},
		{"the schema", "CREATE SCHEMA passing; ALTER SCHEMA public RENAME TO away; ALTER SCHEMA away RENAME TO public", all},
		{"after a new column", "INSERT INTO contacts (workspace_id, name) VALUES ($2, 'x')", "contacts:2"},
		{"renamed away and back", "BEGIN; ALTER TABLE contacts RENAME TO c; ALTER TABLE c RENAME TO contacts; COMMIT", all},
		{"a message of another program", "SELECT pg_logical_emit_message(true, 'other', 'x')", ""},
		{"replicated from elsewhere", "SELECT pg_replication_origin_create(current_database()); " +
			"SELECT pg_replication_origin_session_setup(current_database()); INSERT INTO items (workspace_id, name) VALUES ($6, 'x')", "items:6"},
		{"no longer replicated from elsewhere", "SELECT pg_replication_origin_session_reset(); SELECT pg_replication_origin_drop(current_database()); " +
			"DELETE FROM items WHERE workspace_id = $6", "items:6"},
		{"an unlogged table that is not published", "CREATE UNLOGGED TABLE unlogged (a int); INSERT INTO unlogged VALUES (1)", ""},
	} {
		before := clock()
		w.exec(ids(c.sql))
		if c.want == "" { // then the next change is that of a marker
			w.heartbeat()
			w.heartbeat()
			w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($8, 'marker')"))
			c.want = "items:8"
		}
		var got changefeed.Change
		for want := range strings.SplitSeq(c.want, ", ") {
			got = w.change()
			if is := touched(got); is != want && !(want == "1000 pairs" && len(got.Touched) == 1000) {
				t.Fatalf("%s: %.200s, want %s", c.name, is, want)
			}
		}
		if after := clock(); c.name != "replicated from elsewhere" && (got.CommittedAt < before || got.CommittedAt > after) {
			t.Errorf("%s: committed at %d, which is not between %d and %d", c.name, got.CommittedAt, before, after)
		}
		if h := w.heartbeat(); got.XID == 0 || h.LSN < got.LSN && len(h.Unsettled) == 0 && w.heartbeat().LSN < got.LSN {
			t.Errorf("%s: %+v, then %+v", c.name, got, h)
		}
	}
}

// A change that is decoded late may be of a table that was dropped or renamed meanwhile.
func TestTablesThatAreGoneHoldNothingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE TABLE part (a int) PARTITION BY LIST (a); CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
		CREATE TABLE other (a int); ALTER PUBLICATION listedge ADD TABLE part, other`)
	f := w.follow()
	w.awaitFollowing(f)
	w.heartbeat()
	f.stop()
	w.exec("INSERT INTO part VALUES (1)")
	w.exec("DROP TABLE part_1")
	w.exec(ids("INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x')"))
	w.exec("ALTER TABLE contacts RENAME TO contacts_old")
	w.exec("INSERT INTO other VALUES (1)")
	w.exec("ALTER TABLE contacts_old RENAME TO contacts")
	before := w.epoch
	w.awaitFollowingFrom(w.follow())
	if w.epoch != before {
		t.Errorf("epoch %s after %s", w.epoch, before)
	}
	if is := touched(w.change()); is != "contacts:1" {
		t.Errorf("a renamed table: %s", is)
	}
	if is := touched(w.change()); is != all {
		t.Errorf("that it was renamed: %s", is)
	}
}

// Partitions are identified by oid, so their names and schemas do not matter.
func TestPartitionsHaveAnyName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`ALTER TABLE items RENAME TO items_old;
		CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id)) PARTITION BY HASH (workspace_id);
		CREATE SCHEMA other; CREATE TABLE other.contacts PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY HASH (workspace_id);
		CREATE TABLE other.api_keys PARTITION OF other.contacts FOR VALUES WITH (MODULUS 1, REMAINDER 0);
		CREATE TABLE "items of ""ours""" PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		CREATE TABLE other.items (LIKE contacts INCLUDING ALL);
		ALTER PUBLICATION listedge ADD TABLE items, other.items; ALTER PUBLICATION listedge DROP TABLE items_old`)
	w.awaitFollowing(w.follow())
	for _, c := range []struct{ sql, want string }{
		{"INSERT INTO items (workspace_id, name) VALUES ($1, 'a'), ($2, 'a'), ($3, 'a'), ($4, 'a')", "items:1 items:2 items:3 items:4"},
		{"UPDATE items SET name = 'b'", "items:1 items:2 items:3 items:4"},
		{"TRUNCATE other.contacts", "whole:items, " + all},
		{`ALTER TABLE items DETACH PARTITION "items of ""ours"""`, all},
		{`INSERT INTO "items of ""ours""" (workspace_id, name) VALUES ($1, 'a'); DROP TABLE items_old, "items of ""ours"""; ` +
			"INSERT INTO contacts (workspace_id, name) VALUES ($1, 'a')", "contacts:1"},
		// A table of the same name in another schema.
		{"INSERT INTO other.items (workspace_id, name) VALUES ($1, 'a'); INSERT INTO contacts (workspace_id, name) VALUES ($2, 'a')", "contacts:2"},
		// Queries of pages do not use search_path.
		{"ALTER DATABASE NAME SET search_path = other; INSERT INTO contacts (workspace_id, name) VALUES ($2, 'a')", "contacts:2"},
	} {
		w.exec(ids(strings.ReplaceAll(c.sql, "NAME", w.name)))
		for want := range strings.SplitSeq(c.want, ", ") {
			if is := touched(w.newChange()); is != want {
				t.Fatalf("%s: %s, want %s", c.sql, is, want)
			}
		}
	}
}

// If the replica identity lacks the workspace, a move between workspaces touches all lists.
func TestAMoveBehindAnotherKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	f := w.follow()
	w.awaitFollowing(f)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'a'); INSERT INTO contacts (workspace_id, name) VALUES ($1, 'a')"))
	w.change()
	w.exec(ids(`BEGIN; ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (id);
		UPDATE items SET workspace_id = $2; ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id); COMMIT`))
	if is := touched(w.change()); is != "whole:items" {
		t.Errorf("a move: %s", is)
	}
}

// awaitFollowingFrom is awaitFollowing, but keeps the reading position.
func (w *world) awaitFollowingFrom(r running) {
	w.Helper()
	at, epoch := w.at, w.epoch
	w.awaitFollowing(r)
	if w.epoch == epoch {
		w.at = at
	} else {
		w.at = changefeed.Position{}
	}
}
