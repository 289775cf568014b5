package e2e

import (
	"net/http"
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// Pages and keys are read through a pooler in each of its modes, and changes are followed
// without it.
func TestANodeReadsThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			_, address := privateDatabase(t)
			execute(t, address, "CREATE ROLE listedge_node LOGIN PASSWORD 'p'")
			execute(t, address, docsGrants(t))
			direct := as(t, address, "listedge_node")
			_, pooled := sandboxtest.PgBouncer(t, direct, map[string]string{"pool_mode": mode})
			n := startNode(t, pooled, "--replication-url", direct)
			n.serves(t, address)

			by := allFine(t, "slot", "--database-url", pooled, "--replication-url", direct, "--node", n.admin)
			expect(t, by, "reading", admin.OK, "through a connection pooler")
			n.stop()

			_, writer := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": mode})
			for range 2 {
				workspaceWithKey(t, writer)
			}

			// Several times, because statements that one node prepares must not disturb the next.
			for range 3 {
				expect(t, diagnose(t, exitFine, "--database-url", pooled), "right to replicate", admin.Warn, "--replication-url")
			}
			n = startNode(t, pooled)
			within(t, soon, "pages live --cache-ttl", func() bool { _, r := n.readiness(t); return r.Mode == "ttl" })
			within(t, soon, "the log says why", func() bool { return strings.Contains(n.err.String(), "--replication-url") })
		})
	}
}

// If a node followed the changes of another database, its pages would never become stale. So
// it refuses such a --replication-url.
func TestAReplicationURLThatLeadsElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	address, other := database(t), database(t)
	expect(t, diagnose(t, exitFailed, "--database-url", address, "--replication-url", other), "reading", admin.Fail, "another server or database")
	n := launchNode(t, address, "--replication-url", other)
	within(t, soon, "it is reported", func() bool {
		status, r := n.readiness(t)
		return status == http.StatusServiceUnavailable && (strings.Contains(r.Checks["postgres"], "another server or database") || strings.Contains(r.Checks["postgres"], "is database "))
	})
}
