package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// DDL on the tables is visible within the bound, too, although the nodes' role is no
// superuser and the database has no event trigger. Nothing else is written that would make
// the pages stale.
func TestFreshnessOfTables(t *testing.T) {
	t.Parallel()
	owner := database(t)
	u := must1(url.Parse(owner))
	role := "node_of_" + u.Path[1:]
	execute(t, owner, "CREATE ROLE "+role+" LOGIN PASSWORD 'p'")
	execute(t, owner, command(t, "migrate", "grants", "--role", role))
	redis := sandboxtest.Redis(t)
	var nodes []*testNode
	for range 2 {
		nodes = append(nodes, startNode(t, as(t, owner, role), "--redis-url", redis.URL()))
	}
	workspace, key := workspaceWithKey(t, owner)
	moved, movedKey := workspaceWithKey(t, owner)
	execute(t, owner, fmt.Sprintf(`BEGIN; ALTER TABLE items RENAME TO items_old; CREATE SCHEMA other;
		CREATE TABLE items (LIKE items_old INCLUDING ALL) PARTITION BY LIST (workspace_id);
		CREATE TABLE other.contacts PARTITION OF items FOR VALUES IN ('%[1]s');
		CREATE TABLE elsewhere (LIKE items INCLUDING ALL); CREATE TABLE other.items (LIKE items INCLUDING ALL);
		INSERT INTO items (workspace_id, name, unit) VALUES ('%[1]s', 'a', 'v0');
		INSERT INTO elsewhere (workspace_id, name, unit) VALUES ('%[2]s', 'b', 'v1');
		INSERT INTO other.items (workspace_id, name, unit) VALUES ('%[1]s', 'c', 'v9');
		ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old;
		GRANT SELECT ON items TO %[3]s; GRANT USAGE ON SCHEMA other TO %[3]s; GRANT SELECT ON other.items TO %[3]s; COMMIT`, workspace, moved, role))

	// fresh returns the body of a response that is not marked as stale; empty = there is none.
	fresh := func(n *testNode, key string) string {
		a, err := n.try("GET", "/v1/items", key)
		if err != nil || a.StatusCode != http.StatusOK || strings.Contains(a.Header.Get("Cache-Status"), "detail=ttl") ||
			strings.Contains(a.Header.Get("Cache-Status"), "detail=stale-if-error") {
			return ""
		}
		return string(a.body)
	}
	// proven waits until all nodes serve the wanted pages from memory.
	proven := func(key, want string) {
		t.Helper()
		for _, n := range nodes {
			within(t, patience, "a hit that shows "+want, func() bool {
				a, err := n.try("GET", "/v1/items", key)
				return err == nil && n.mode() == "followed" && cacheStatus(a.Header) == "listedge; hit; detail=memory" && strings.Contains(string(a.body), want)
			})
		}
	}
	const none = `"data":[]`
	for _, c := range []struct{ name, sql, key, before, after string }{
		{"rows rewritten", "ALTER TABLE items ALTER unit TYPE text USING 'v1'", key, `"unit":"v0"`, `"unit":"v1"`},
		{"a partition of another table's name", "UPDATE items SET unit = 'v2'", key, `"unit":"v1"`, `"unit":"v2"`},
		{"a partition attached", fmt.Sprintf("ALTER TABLE items ATTACH PARTITION elsewhere FOR VALUES IN ('%s')", moved), movedKey, none, `"unit":"v1"`},
		{"a partition detached", "ALTER TABLE items DETACH PARTITION elsewhere", movedKey, `"unit":"v1"`, none},
		{"the search path moved", fmt.Sprintf("ALTER ROLE %s SET search_path = other; UPDATE items SET unit = 'v3'", role), key, `"unit":"v2"`, `"unit":"v3"`},
		{"an unlogged partition", "ALTER TABLE other.contacts SET UNLOGGED; UPDATE items SET unit = 'v4'", key, `"unit":"v3"`, `"unit":"v4"`},
	} {
		proven(c.key, c.before)
		execute(t, owner, c.sql)
		for done := time.Now(); time.Since(done) <= freshnessBound; pause(readPause) {
			for _, n := range nodes {
				fresh(n, c.key)
			}
		}
		for i, n := range nodes {
			if shown := fresh(n, c.key); shown != "" && !strings.Contains(shown, c.after) {
				t.Errorf("%s: node %d shows %s", c.name, i, shown)
			}
		}
		if c.name != "an unlogged partition" {
			proven(c.key, c.after)
		}
	}
	for _, n := range nodes {
		within(t, patience, "mode ttl, and why", func() bool {
			_, r := n.readiness(t)
			return r.Mode == "ttl"
		})
	}
	expect(t, diagnose(t, exitFine, "--database-url", owner), "follower", "warn", "lacks the rows of other.contacts")
	execute(t, owner, "UPDATE items SET unit = 'v5'")
	execute(t, owner, "ALTER TABLE other.contacts SET LOGGED")
	proven(key, `"unit":"v5"`)
}

// A table is rewritten, which changes rows that no change names. Then a transaction sets a
// row to what the log named last, and waits for a synchronous standby. A page that was read
// meanwhile does not have the row, and must not be kept when the row becomes visible.
func TestACommitThatWaitsWhileATableIsRewritten(t *testing.T) {
	t.Parallel()
	_, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	n := startFollowed(t, url)
	conn := connect(t, url)
	set := func(sql string) {
		t.Helper()
		must1(conn.Exec(t.Context(), sql))
	}
	count := func(sql string) (n int) {
		t.Helper()
		must(conn.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	execute(t, url, "INSERT INTO items (workspace_id, name, sku) VALUES ($1, 'x', 'foo')", workspace)
	rows := func() int { return len(n.first(t, "/v1/items?search=foo", key).page(t).Data) }
	within(t, patience, "the row", func() bool { return rows() == 1 })

	set("SET synchronous_commit = local")
	set("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
	set("SELECT pg_reload_conf()")
	waiting, done := connect(t, url), make(chan error, 1)
	within(t, patience, "commits wait", func() bool {
		var names string
		return waiting.QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&names) == nil && names == "absent"
	})
	go func() {
		_, err := waiting.PgConn().Exec(t.Context(), `SET synchronous_commit = local; BEGIN; ALTER TABLE items ALTER sku TYPE text USING NULL; COMMIT;
			SET synchronous_commit = on; BEGIN; UPDATE items SET sku = 'foo'; COMMIT`).ReadAll()
		done <- err
	}()
	within(t, patience, "the commit waits", func() bool { return count("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1 })
	within(t, patience, "the rewritten table", func() bool { return rows() == 0 })
	for began := time.Now(); time.Since(began) < freshnessBound; pause(readPause) { // meanwhile the follower announces the change of the schema
		if rows() != 0 {
			t.Error("the row is shown before its commit is visible")
		}
	}
	set("ALTER SYSTEM RESET synchronous_standby_names")
	set("SELECT pg_reload_conf()")
	must(<-done)
	within(t, patience, "the row is shown again", func() bool { return rows() == 1 })
}
