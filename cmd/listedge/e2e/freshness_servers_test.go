package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// Freshness where connections lead to the wrong server.

// through returns the address with the relay in place of its server.
func through(t *testing.T, address string, r *sandboxtest.Relay) string {
	t.Helper()
	u := must1(url.Parse(address))
	u.Host = r.Addr()
	return u.String()
}

// These tests are about nodes that share their Redis with nodes on another server or database.

// said formats a response for the message of a failed test.
func said(a *answer) string {
	if a == nil {
		return "none"
	}
	return fmt.Sprintf("%s, Cache-Status %q: %.300s", a.Status, a.Header.Get("Cache-Status"), a.body)
}

// After a fail-over the old primary still runs, and one of two nodes is connected to it. The
// node on the new primary serves nothing of the old one, and the fleet keeps the new
// primary's epoch.
func TestAnOldPrimaryDoesNotReachNodesOnTheNewOne(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	redis := sandboxtest.Redis(t)
	relayed := through(t, address, sandboxtest.StartRelay(t, old.Addr()))
	workspace, key := workspaceWithKey(t, address)
	revoked := newKeyFor(t, address, workspace)
	execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, 'of both')", workspace)
	left := startFollowed(t, relayed, "--redis-url", redis.URL())
	promoted := next.URL("listedge")
	awaitItem(t, promoted, workspace)
	execute(t, promoted, "SELECT pg_promote()")
	right := startFollowed(t, promoted, "--redis-url", redis.URL())
	epochs := func() float64 { return right.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) }
	before := epochs()
	execute(t, address, "UPDATE items SET name = 'of the old' WHERE workspace_id = $1", workspace)
	const why = "the database server is on timeline 1; the fleet follows timeline 2"
	asked := 0
	within(t, patience, "the node on the old primary says why, after enough answers", func() bool {
		limit := fmt.Sprintf("/v1/items?limit=%d", 1+asked%100)
		for _, n := range []*testNode{left, right} {
			if body := n.fresh(limit, key); asked > 0 && strings.Contains(body, "of the old") {
				t.Fatalf("answer %d: %s", asked, body)
			}
		}
		asked++
		return asked > 50 && strings.Contains(left.check(t, "timeline"), why) && strings.Contains(left.err.String(), why)
	})
	if said, n := right.check(t, "timeline"), epochs()-before; said != "ok" || n != 0 {
		t.Errorf("the node on the new primary says %q, and the epoch changed %v times", said, n)
	}
	says(t, []string{"--database-url", address, "--redis-url", redis.URL()}, exitFailed,
		doctor.Finding{Subject: "timeline", Level: doctor.Fail, Text: why})

	// A node that starts there learns which timeline the fleet follows before it
	// takes an answer: also one whose follower cannot connect, or does so late.
	left.stop()
	execute(t, promoted, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
	nowhere := sandboxtest.StartRelay(t, old.Addr())
	nowhere.Lose(true)
	_, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	for name, start := range map[string][]string{
		"once":             {relayed},
		"a hung follower":  {relayed, "--replication-url", through(t, address, nowhere)},
		"through a pooler": {pooled},
	} {
		t.Run("a node starts: "+name, func(t *testing.T) {
			t.Parallel()
			n := launchNode(t, start[0], append(start[1:], "--redis-url", redis.URL())...)
			requests := 0
			within(t, patience, "it says why, after enough requests", func() bool {
				for _, key := range []string{revoked, key} {
					if a, err := n.try("GET", "/v1/items?limit=50", key); err != nil || a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
						t.Fatalf("answer %d: %s (%v)", requests, said(a), err)
					}
					requests++
				}
				return requests > 30 && strings.Contains(n.check(t, "timeline"), why)
			})
			if status, r := n.readiness(t); status != 503 || r.Ready {
				t.Errorf("ready: %+v", r)
			}
		})
	}
}

// Two databases of one Postgres, one a copy of the other: all ids are equal.
// Their fleets have different names, and share nothing in their Redis. A pooler's database name is changed to lead to the copy:
// the run of the server is the same for both, and still no page is of it.
func TestTwoDatabasesShareARedis(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	address := database(t)
	workspace, key := workspaceWithKey(t, address)
	few := newKeyFor(t, address, workspace, "--rate", "0.001", "--burst", "6")
	execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, 'original')", workspace)
	p := shared.Server()
	u := must1(url.Parse(address))
	name := postgrestest.Copy(t, p, strings.TrimPrefix(u.Path, "/"))
	clone := p.URL(name)
	execute(t, clone, "UPDATE items SET name = 'of the copy'")
	pooler, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	one := startFollowed(t, address, "--redis-url", server.URL())
	misrouted := startFollowed(t, pooled, "--replication-url", address, "--redis-url", server.URL())
	other := startFollowed(t, clone, "--redis-url", server.URL(), "--region", "copy")
	if a := misrouted.first(t, "/v1/items?limit=1", key); !strings.Contains(string(a.body), "original") {
		t.Fatal(string(a.body))
	}
	must(pooler.LeadTo(p.Addr() + " dbname=" + name))
	within(t, patience, "the node says why", func() bool {
		_, _ = misrouted.try("GET", "/v1/contacts?limit=1", key)
		return strings.Contains(misrouted.check(t, "postgres"), "is database "+name+", and not "+u.Path[1:])
	})
	for limit := 2; limit <= 20; limit++ {
		for n, shown := range map[*testNode]string{misrouted: "original", one: "original", other: "of the copy"} {
			if body := n.fresh(fmt.Sprintf("/v1/items?limit=%d", limit), key); body != "" && !strings.Contains(body, shown) {
				t.Fatalf("%s, want %q", body, shown)
			}
		}
	}
	misrouted.stop()
	stranger := launchNode(t, clone, append(lateProofs, "--redis-url", server.URL())...) // of the fleet of the original
	stranger.awaitCheck(t, "fleet", "the fleet follows database ")
	if status, r := stranger.readiness(t); status != 503 || r.Ready {
		t.Errorf("%d %+v", status, r)
	}
	stranger.stop()
	for _, n := range []*testNode{one, other} {
		admitted := 0
		for range 8 {
			if n.get(t, "/v1/items", few).StatusCode == 200 {
				admitted++
			}
		}
		if nodes := n.metric(t, "listedge_limiter_nodes"); admitted == 0 || nodes != 1 && n == other {
			t.Errorf("%d requests are admitted for a burst of 6, by %v nodes", admitted, nodes)
		}
	}
	says(t, []string{"--database-url", clone, "--redis-url", server.URL(), "--region", "copy", "--node", other.admin}, exitFine,
		doctor.Finding{Subject: "fleet size", Level: doctor.OK, Text: "1 on all"})
	client := redistest.Client(t, server)
	for _, prefix := range []string{"listedge:", "listedge:copy:"} {
		if n := client.HLen(t.Context(), prefix+"{changes}:nodes").Val(); n != 1 {
			t.Errorf("%d nodes in the roster of %s", n, prefix)
		}
	}
	nodes := []string{"--node", strings.TrimPrefix(one.admin, "http://") + "," + strings.TrimPrefix(other.admin, "http://")}
	says(t, append(nodes, "--database-url", address, "--redis-url", server.URL()), exitFailed,
		doctor.Finding{Subject: "fleet database", Level: doctor.Fail})
}

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
