package e2e

import (
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

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
	const refused, again = "the node may not query which database it reads", "no longer: the node may not query which database it reads"
	within(t, patience, "it says that it may not ask", func() bool { return strings.Contains(n.err.String(), refused) })
	execute(t, address, "GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
	within(t, patience, "it says that it may", func() bool { return strings.Contains(n.err.String(), again) })

	var is changefeed.Identity
	must(connect(t, address).QueryRow(t.Context(), "SELECT system_identifier::text, oid FROM pg_control_system(), pg_database WHERE datname = current_database()").Scan(&is.System, &is.Database))
	client := redistest.Client(t, server)
	within(t, patience, "a page under the name of the database", func() bool {
		n.get(t, "/v1/items", key, "Cache-Control: no-cache").page(t)
		names := must1(client.Keys(t.Context(), "listedge:page:"+is.Digest()+":*").Result())
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
