package e2e

import (
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// The primary is killed and its standby promoted. The URL names both, so the node finds the
// new primary by itself.
func TestTheStandbyInTheURLTakesOver(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	workspace, key := workspaceWithKey(t, address)
	n := startNode(t, strings.Replace(address, old.Addr(), next.Addr()+","+old.Addr(), 1))
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	shows := func(name string) func() bool {
		return func() bool {
			a, err := n.try("GET", "/v1/items", key)
			return err == nil && a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") &&
				strings.Contains(string(a.body), `"name":"`+name+`"`)
		}
	}
	add := func(address, name string) {
		execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, $2)", workspace, name)
		within(t, patience, name, shows(name))
	}
	add(address, "before")
	address = next.URL("listedge")
	awaitItem(t, address, workspace)
	must(old.Kill(syscall.SIGQUIT))
	execute(t, address, "SELECT pg_promote()")
	within(t, patience, "the new primary is followed", func() bool {
		return n.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) > 0 && n.mode() == "followed"
	})
	add(address, "behind")
}

// awaitItem waits until a standby has replayed the item.
func awaitItem(t *testing.T, address, workspace string) {
	t.Helper()
	within(t, patience, "the standby has it all", func() bool {
		var there bool
		return connect(t, address).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM items WHERE workspace_id = $1)", workspace).Scan(&there) == nil && there
	})
}
