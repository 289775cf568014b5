package e2e

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// A purge makes every page of the workspace stale, and no page of another.
func TestPurge(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	_, other := workspaceWithKey(t, url)
	refused(t, exitFailed, "no node follows changes", "purge", "--all", "--database-url", url)
	n := startNode(t, url, lateProofs...)
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	hit := func(key string) bool {
		return strings.HasPrefix(n.get(t, "/v1/contacts?sort=name", key).Header.Get("Cache-Status"), "listedge; hit")
	}
	warm := func() {
		t.Helper()
		for _, key := range []string{key, other} {
			within(t, patience, "a hit", func() bool { return hit(key) })
		}
	}
	warm()
	before := n.metric(t, "listedge_origin_fetches_total")
	if said := command(t, "purge", "--workspace", workspace, "--database-url", url); said != "purged workspace "+workspace+"\n" {
		t.Error(said)
	}
	within(t, patience, "a miss", func() bool { return !hit(key) || n.metric(t, "listedge_origin_fetches_total") > before })
	if !hit(other) {
		t.Error("another workspace's page was purged")
	}
	warm()
	if said := command(t, "purge", "--all", "--database-url", url); said != "purged all workspaces\n" {
		t.Error(said)
	}
	before = n.metric(t, "listedge_origin_fetches_total")
	for _, key := range []string{key, other} {
		within(t, patience, "a miss", func() bool { return !hit(key) || n.metric(t, "listedge_origin_fetches_total") > before+1 })
	}
	warm()
	before = n.metric(t, "listedge_origin_fetches_total")
	for _, id := range []string{uuid.NewString(), uuid.Nil.String()} {
		refused(t, exitFailed, "workspace "+id+": not found", "purge", "--workspace", id, "--database-url", url)
	}
	refused(t, exitUsage, "either --workspace or --all", "purge", "--database-url", url)
	refused(t, exitUsage, "either --workspace or --all", "purge", "--database-url", url, "--all", "--workspace", workspace)
	if !hit(key) || !hit(other) || n.metric(t, "listedge_origin_fetches_total") != before {
		t.Error("a purge that was refused purged")
	}
}
