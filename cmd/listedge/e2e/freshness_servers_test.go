package e2e

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox"
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
	f := &fleet{redis: sandboxtest.Redis(t)}
	f.postgres, f.url = privateDatabaseWith(t, map[string]string{"max_prepared_transactions": "20"})
	o := newOracle(t, f)
	revoked := newKeyFor(t, f.url, o.histories[0].workspace.String(), "--rate", "100000", "--burst", "100000")
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
			return refused == 40
		})
	})
	if n := misrouted.metric(t, "listedge_replica_fills_total", `outcome="wrong-server"`); n == 0 {
		t.Error("no page was refused: the test shows nothing")
	}
	if n := strings.Count(misrouted.err.String(), "Postgres is down"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, misrouted.err.String())
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
		var lost bool
		return connect(t, standby.URL("listedge")).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM items WHERE name = 'lost')").Scan(&lost) == nil && lost
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
		return requests == 200
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
