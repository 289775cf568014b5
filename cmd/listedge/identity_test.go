package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
)

func TestWhenAnswersMayBeJudged(t *testing.T) {
	for _, c := range []struct {
		name        string
		looked      bool
		sinceAnswer time.Duration
		may         bool
	}{
		{"the epoch was looked at", true, 0, true},
		{"the database has just answered", false, 0, false},
		{"Redis has not answered yet", false, startTimeout - 1, false},
		{"Redis does not answer", false, startTimeout, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if may := mayJudge(c.looked, c.sinceAnswer); may != c.may {
				t.Error(may)
			}
		})
	}
}

// Before a node has read which timeline the fleet follows, it is not ready and serves nothing
// from the database.
func TestANodeThatHasNotLookedYet(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	var c cli
	parser, _ := newParser(&c, io.Discard, io.Discard)
	if _, err := parser.Parse([]string{"serve", "--database-url", url, "--redis-url", sandboxtest.Redis(t).URL(), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	public, private, err := listenBoth(c.Serve.ListenFlags)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(t.Context(), c.Serve.NodeFlags, databaseURLs{url, url}, map[string]any{}, newRecentLog(slog.DiscardHandler), public, private)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.close() })
	go func() { _ = n.server.Serve(public) }()
	go func() { _ = n.admin.Serve(private) }()
	client := &testNode{url: "http://" + public.Addr().String(), admin: "http://" + private.Addr().String()}
	if a := client.get(t, "/v1/items", key); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
		t.Error(describe(a))
	}
	go n.health.Run(t.Context(), n.logReadiness)
	client.awaitCheck(t, "timeline", "not known yet")
	if status, _ := client.readiness(t); status != 503 {
		t.Error(status)
	}
	n.findTimeline(t.Context())
	client.get(t, "/v1/items", key).page(t)
	client.awaitReady(t)
}

// A node whose follower cannot connect identifies its database itself. If it lacks the right
// to, it logs that once, and once when it has the right again.
func TestANodeWithoutAFollowerNamesItsPages(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	_, key := workspaceWithKey(t, address)
	execute(t, address, "CREATE ROLE listedge_node LOGIN PASSWORD 'p'")
	execute(t, address, docsGrants(t))
	execute(t, address, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	_, pooled := sandboxtest.PgBouncer(t, as(t, address, "listedge_node"), map[string]string{"pool_mode": "transaction"})
	server := sandboxtest.Redis(t)
	n := startNode(t, pooled, "--redis-url", server.URL())
	n.get(t, "/v1/items", key).page(t)
	const refused, again = "the node may not query which database it reads", "again: the node may query which database it reads"
	within(t, patience, "it says that it may not ask", func() bool { return strings.Contains(n.err.String(), refused) })
	execute(t, address, "GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
	within(t, patience, "it says that it may", func() bool { return strings.Contains(n.err.String(), again) })

	var is changefeed.Identity
	if err := connect(t, address).QueryRow(t.Context(), "SELECT system_identifier::text, oid FROM pg_control_system(), pg_database WHERE datname = current_database()").Scan(&is.System, &is.Database); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	within(t, patience, "a page under the name of the database", func() bool {
		n.get(t, "/v1/items", key, "Cache-Control: no-cache").page(t)
		names, err := client.Keys(t.Context(), "listedge:page:"+is.Digest()+":*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(names) > 0
	})
	within(t, patience, "all is well", func() bool {
		status, r := n.readiness(t)
		return status == 200 && r.Checks["timeline"] == "ok" && r.Checks["redis"] == "ok"
	})
	for _, text := range []string{refused, again} {
		if times := strings.Count(n.err.String(), `"msg":"`+text); times != 1 {
			t.Errorf("%q is logged %d times:\n%s", text, times, n.err.String())
		}
	}
}
