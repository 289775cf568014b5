package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// After a fail-over the old primary still runs. Nodes close their connections to it, and
// serve nothing that it answers.
func TestTheOldPrimaryLivesOn(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	name := sandboxtest.StartRelay(t, old.Addr())
	u := must1(url.Parse(address))
	u.Host = name.Addr()
	workspace, key := workspaceWithKey(t, address)
	execute(t, address, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 0)", workspace)
	n := startNode(t, u.String(), "--database-connections", "4")
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	shows := func(value, limit int) bool {
		a, err := n.try("GET", fmt.Sprintf("/v1/items?limit=%d", limit), key)
		return err == nil && a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") &&
			strings.Contains(string(a.body), fmt.Sprintf(`"stockOnHand":"%d"`, value))
	}
	for limit := 10; limit < 14; limit++ {
		within(t, patience, "a page", func() bool { return shows(0, limit) })
	}
	address = next.URL("listedge")
	awaitItem(t, address, workspace)
	name.Redirect(next.Addr())
	execute(t, address, "SELECT pg_promote()")
	execute(t, old.URL("listedge"), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listedge follower'")
	resyncs := func() float64 { return n.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) }
	within(t, patience, "the new primary is followed", func() bool { return resyncs() > 0 && n.mode() == "followed" })
	for value := 1; value <= 3; value++ {
		execute(t, address, "UPDATE items SET stock_on_hand = $2 WHERE workspace_id = $1", workspace, value)
		time.Sleep(freshnessBound) // until then the old value may be shown
		within(t, patience, "a fresh page", func() bool {
			if shows(value-1, 10+value%4) {
				t.Fatalf("%d is shown, and not %d", value-1, value)
			}
			return shows(value, 10+value%4)
		})
	}
	execute(t, address, "UPDATE api_keys SET revoked_at = now() WHERE workspace_id = $1", workspace)
	within(t, patience, "the revocation", func() bool {
		a, err := n.try("GET", "/v1/items", key)
		return err == nil && a.StatusCode == 401
	})
}

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
