package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox"
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

// One of two nodes is connected to a standby that replays 20 s late. It answers 503 or serves
// its cached pages marked as stale. The other node follows the primary.
func TestFreshnessOfANodeLedToAStandby(t *testing.T) {
	t.Parallel()
	f := &fleet{redis: sandboxtest.Redis(t), in: items}
	f.postgres, f.url = privateDatabaseWith(t, map[string]string{"max_prepared_transactions": "20"})
	o := newOracle(t, f)
	revoked := newKeyFor(t, f.url, o.histories[0].tenant, "--rate", "100000", "--burst", "100000")
	f.standby = sandboxtest.Standby(t, f.postgres, map[string]string{"recovery_min_apply_delay": "20s"})
	name := sandboxtest.StartRelay(t, f.postgres.Addr())
	for _, address := range []string{f.url, through(t, f.url, name)} {
		n := launchNode(t, address, "--redis-url", f.redis.URL())
		n.awaitReady(t)
		f.nodes = append(f.nodes, n)
		within(t, patience, "the first node follows, and not the second", func() bool { return f.nodes[0].metric(t, "listedge_freshness_follower") == 1 })
	}
	f.awaitFollowed(t)
	misrouted := f.nodes[1]
	for _, key := range []string{revoked, o.histories[0].key, o.histories[1].key, o.histories[2].key} { // the fourth is not known to the node
		if a := misrouted.first(t, "/v1/items?limit=7", key); a.StatusCode != 200 {
			t.Fatal(a.Status)
		}
	}
	name.Redirect(f.standby.Addr())
	name.Sever()
	o.run(t, "a node routed to a standby", func() {
		o.judges(t, during)
		execute(t, f.url, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
		// It may work until a look-up has found the standby. On a busy machine that takes several, and
		// origin/apikey has tests of how long it works meanwhile.
		refused := 0
		within(t, patience, "the revoked key is refused, and not only now and then", func() bool {
			a := misrouted.get(t, "/v1/items?limit=7", revoked)
			if refused++; a.StatusCode != 401 && a.StatusCode != 503 {
				refused = 0
			}
			return refused == 10 // on a busy machine each waits for a second and more
		})
	})
	if n := misrouted.metric(t, "listedge_replica_fills_total", `outcome="wrong-server"`); n == 0 {
		t.Error("no page was refused: the test shows nothing")
	}
	if said := misrouted.err.String(); !strings.Contains(said, "Postgres is down") { // a busy machine is between up and down
		t.Errorf("the log does not say it:\n%s", said)
	}
	misrouted.awaitCheck(t, "postgres", "is a standby")
	name.Redirect(f.postgres.Addr())
	name.Sever()
	within(t, patience, "pages of the primary again", func() bool {
		a, err := misrouted.try("GET", "/v1/items?limit=9", o.histories[0].key)
		return err == nil && a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
	})
	misrouted.awaitCheck(t, "postgres", "ok")
}

// cluster is the server's data folder.
func cluster(p *sandbox.Postgres) string { return filepath.Join(filepath.Dir(p.LogFile()), "cluster") }

// The primary is restored from an older copy, and its standby is not rebuilt: the standby
// shows commits that the primary has lost.
func TestFreshnessOfAStandbyAheadOfItsPrimary(t *testing.T) {
	t.Parallel()
	primary, address := privateDatabase(t)
	standby := sandboxtest.Standby(t, primary, map[string]string{"wal_retrieve_retry_interval": "100ms"})
	workspace, key := workspaceWithKey(t, address)
	execute(t, address, "INSERT INTO items (workspace_id, name) SELECT $1, 'kept' FROM generate_series(1, 100)", workspace)
	n := startFollowed(t, address, "--replica-url", standby.URL("listedge"))
	served := func() float64 { return n.metric(t, "listedge_origin_standby_fetches_total", `outcome="ok"`) }
	limit := 0
	ask := func() (body string, fresh bool) {
		limit = limit%100 + 1
		a, err := n.try("GET", fmt.Sprintf("/v1/items?limit=%d&sort=%s", limit, []string{"name", "createdAt"}[limit%2]), key)
		return string(a.body), err == nil && a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
	}
	within(t, patience, "pages of the standby", func() bool { ask(); return served() > 0 })

	stop := func() {
		t.Helper()
		must(primary.Kill(syscall.SIGINT))
	}
	start := func() {
		t.Helper()
		must(primary.Restart(t.Context()))
	}
	copied := filepath.Join(sandboxtest.Dir(t), "copy")
	files := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	stop()
	files(cluster(primary), copied)
	start()
	for range 30 { // far enough that the primary is long in getting there again
		execute(t, address, "UPDATE items SET name = 'lost' WHERE workspace_id = $1", workspace)
	}
	within(t, patience, "the standby has it all", func() bool {
		lost, err := postgrestest.Value[bool](standby.URL("listedge"), "SELECT EXISTS (SELECT FROM items WHERE name = 'lost')")
		return err == nil && lost
	})
	stop()
	if out, err := exec.Command("rm", "-rf", cluster(primary)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files(copied, cluster(primary))
	resyncs := n.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`)
	start()
	within(t, patience, "followed again", func() bool {
		return n.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) > resyncs && n.mode() == "followed"
	})
	requests := 0
	within(t, patience, "enough answers to judge by", func() bool {
		body, fresh := ask()
		if fresh {
			requests++
		}
		if fresh && strings.Contains(body, "lost") {
			t.Fatalf("the %dth answer is of the lost history (limit %d; %v of the standby)", requests, limit, served())
		}
		return requests == 100 // of as many pages
	})
}

// A pooler's database name is changed to lead to a copy of the database on the same server,
// so the run of the server is the same for both.
func TestAPoolerThatLeadsToAnotherDatabase(t *testing.T) {
	t.Parallel()
	p, address := privateDatabase(t)
	workspace, key := workspaceWithKey(t, address)
	execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, 'original')", workspace)
	for _, sql := range []string{"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'listedge'", "CREATE DATABASE copied TEMPLATE listedge"} {
		execute(t, p.URL("postgres"), sql)
	}
	execute(t, p.URL("copied"), "UPDATE items SET name = 'of the copy'")
	pooler, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	redis := sandboxtest.Redis(t)
	misrouted := startNode(t, pooled, "--replication-url", address, "--redis-url", redis.URL())
	right := startNode(t, address, "--redis-url", redis.URL())
	for _, n := range []*testNode{misrouted, right} {
		n.awaitFollowed(t)
		if a := n.first(t, "/v1/items?limit=1", key); !strings.Contains(string(a.body), "original") {
			t.Fatal(string(a.body))
		}
	}
	must(pooler.LeadTo(p.Addr() + " dbname=copied"))
	within(t, patience, "the node says why", func() bool {
		_, _ = misrouted.try("GET", "/v1/contacts?limit=1", key)
		return strings.Contains(misrouted.check(t, "postgres"), "is database copied, and not listedge")
	})
	for limit := 2; limit <= 20; limit++ {
		for _, n := range []*testNode{misrouted, right} {
			a := n.get(t, fmt.Sprintf("/v1/items?limit=%d", limit), key)
			if strings.Contains(string(a.body), "of the copy") {
				t.Fatalf("a page of the copy: %d %s", a.StatusCode, a.Header.Get("Cache-Status"))
			}
		}
	}
}

// These tests are about nodes that share their Redis with nodes on another server or database.

// mixedForms are the ways to write that need no settings of the server.
var mixedForms = []form{inPlace, inPlace, deleteAndInsert}

// askAlways requests the oracle's pages from a node until stop is called, so that the node
// stores in Redis what it reads. It ignores the responses.
func (o *oracle) askAlways(n *testNode) (stop func()) {
	done := make(chan struct{})
	var asking sync.WaitGroup
	for _, h := range o.histories {
		asking.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_, _ = n.try("GET", "/v1/items?limit=50", h.key)
					pause(readPause)
				}
			}
		})
	}
	return func() { close(done); asking.Wait() }
}

// describe formats a response for the message of a failed test.
func describe(a *answer) string {
	if a == nil {
		return "none"
	}
	return fmt.Sprintf("%s, Cache-Status %q: %.300s", a.Status, a.Header.Get("Cache-Status"), a.body)
}

// only is a fleet of one node, for the oracle.
func only(n *testNode, databaseURL string) *fleet {
	return &fleet{url: databaseURL, in: items, nodes: []*testNode{n}}
}

// After a fail-over the old primary still runs, and one of two nodes is connected to it. The
// node on the new primary serves nothing of the old one, and the fleet keeps the new
// primary's epoch.
func TestAnOldPrimaryDoesNotReachNodesOnTheNewOne(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	redis := sandboxtest.Redis(t)
	u := must1(url.Parse(address))
	u.Host = sandboxtest.StartRelay(t, old.Addr()).Addr()
	o := newOracle(t, only(nil, address))
	o.forms = mixedForms
	left := startFollowed(t, u.String(), "--redis-url", redis.URL())
	promoted := next.URL("listedge")
	for _, h := range o.histories {
		awaitItem(t, promoted, h.tenant)
	}
	execute(t, promoted, "SELECT pg_promote()")
	right := startFollowed(t, promoted, "--redis-url", redis.URL())
	o.fleet = only(right, promoted)
	o.fleet.nodes = append(o.fleet.nodes, left)
	epochs := func() float64 { return right.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) }
	before := epochs()
	o.run(t, "split brain", func() { o.judges(t, 2*during) })
	if n := epochs() - before; n != 0 {
		t.Errorf("the epoch changed %v times", n)
	}
	const why = "the database server is on timeline 1; the fleet follows timeline 2"
	within(t, patience, "the node on the old primary says why", func() bool {
		return strings.Contains(left.check(t, "timeline"), why) && strings.Contains(left.err.String(), why)
	})
	if said := right.check(t, "timeline"); said != "ok" {
		t.Errorf("the node on the new primary says %q", said)
	}
	says(t, []string{"--database-url", address, "--redis-url", redis.URL()}, exitFailed,
		doctor.Finding{Subject: "timeline", Level: doctor.Fail, Text: why})

	// A node that starts there learns which timeline the fleet follows before it
	// takes an answer: also one whose follower cannot connect, or does so late.
	left.stop()
	revoked := o.histories[0].key
	execute(t, promoted, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
	nowhere := sandboxtest.StartRelay(t, old.Addr())
	nowhere.Lose(true)
	hung := *u
	hung.Host = nowhere.Addr()
	_, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	for name, start := range map[string][]string{
		"once":             {u.String()},
		"once more":        {u.String()},
		"a hung follower":  {u.String(), "--replication-url", hung.String()},
		"through a pooler": {pooled},
	} {
		t.Run("a node starts: "+name, func(t *testing.T) {
			n := launchNode(t, start[0], append(start[1:], "--redis-url", redis.URL())...)
			requests := 0
			within(t, patience, "it says why, after enough requests", func() bool {
				for _, key := range []string{revoked, o.histories[1].key} {
					if a, err := n.try("GET", "/v1/items?limit=50", key); err != nil || a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
						t.Fatalf("answer %d: %s (%v)", requests, describe(a), err)
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
// Their fleets have different names, and share nothing in their Redis.
func TestTwoDatabasesShareARedis(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	address := database(t)
	o := newOracle(t, only(nil, address))
	o.forms = mixedForms
	few := newKeyFor(t, address, o.histories[0].tenant, "--rate", "0.001", "--burst", "6")
	p := shared.Server()
	u := must1(url.Parse(address))
	clone := p.URL(postgrestest.Copy(t, p, strings.TrimPrefix(u.Path, "/")))
	one := startFollowed(t, address, "--redis-url", server.URL())
	other := startNode(t, clone, "--redis-url", server.URL(), "--region", "copy")
	for _, n := range []*testNode{one, other} {
		within(t, patience, "both are followed at once", func() bool {
			return n.mode() == "followed" && n.metric(t, "listedge_freshness_follower") == 1
		})
	}
	o.fleet = only(other, clone)
	stop := o.askAlways(one)
	o.run(t, "two databases", func() { o.judges(t, 2*during) })
	stop()
	for _, n := range []*testNode{one, other} {
		admitted := 0
		for range 8 {
			if n.get(t, "/v1/items", few).StatusCode == 200 {
				admitted++
			}
		}
		if nodes := n.metric(t, "listedge_limiter_nodes"); admitted == 0 || nodes != 1 {
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
