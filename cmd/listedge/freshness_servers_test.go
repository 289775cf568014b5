package main

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"listedge/sandbox/sandboxtest"
)

// Freshness where connections lead to the wrong server.

// through returns the address with the relay in place of its server.
func through(t *testing.T, address string, r *relay) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = r.addr()
	return u.String()
}

// One of two nodes reads from a standby that replays 20 s late. It answers 503,
// or what it had, marked; the other node follows the primary.
func TestFreshnessOfANodeLedToAStandby(t *testing.T) {
	f := &fleet{redis: sandboxtest.Redis(t)}
	f.postgres, f.url = privateDatabaseWith(t, map[string]string{"max_prepared_transactions": "20"})
	o := newOracle(t, f)
	revoked := newKeyFor(t, f.url, o.histories[0].workspace.String(), "--rate", "100000", "--burst", "100000")
	f.standby = sandboxtest.Standby(t, f.postgres, map[string]string{"recovery_min_apply_delay": "20s"})
	name := startRelay(t, f.postgres.Addr())
	for _, address := range []string{f.url, through(t, f.url, name)} {
		n := startNodeProcess(t, nil, "--database-url", address, "--redis-url", f.redis.URL())
		n.awaitReady(t)
		f.nodes = append(f.nodes, n)
		within(t, patience, "the first node follows, and not the second", func() bool { return f.nodes[0].metric(t, "listedge_freshness_follower") == 1 })
	}
	f.awaitFollowed(t)
	led := f.nodes[1]
	for _, key := range []string{revoked, o.histories[0].key, o.histories[1].key, o.histories[2].key} { // the fourth is not known to the node
		if a := led.get(t, "/v1/items?limit=7", key); a.StatusCode != 200 {
			t.Fatal(a.Status)
		}
	}
	name.redirect(f.standby.Addr())
	name.sever()
	o.run(t, "a node led to a standby", 3*time.Second, func() {
		time.Sleep(time.Second)
		execute(t, f.url, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
		time.Sleep(keyPromise)
		for range 40 {
			if a, err := led.try("GET", "/v1/items?limit=7", revoked); err != nil || a.StatusCode != 401 && a.StatusCode != 503 {
				t.Errorf("a revoked key still works: %v", err)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if n := led.metric(t, "listedge_freshness_refused_pages_total", `why="foreign"`); n == 0 {
		t.Error("no page was refused: the test shows nothing")
	}
	if n := strings.Count(led.log.String(), "it is not the primary"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, led.log.String())
	}
	if said := led.check(t, "postgres"); !strings.Contains(said, "is a standby") {
		t.Errorf("/readyz: %s", said)
	}
	name.redirect(f.postgres.Addr())
	name.sever()
	within(t, patience, "pages of the primary again", func() bool {
		a, err := led.try("GET", "/v1/items?limit=9", o.histories[0].key)
		return err == nil && a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
	})
	within(t, patience, "all is well", func() bool { return led.check(t, "postgres") == "ok" })
}

// keyPromise is how long a revocation may take to reach a node.
const keyPromise = time.Second
