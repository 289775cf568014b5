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
	p := start(t, "purge", "--all", "--database-url", url)
	if <-p.ended; p.code != exitFailed || !strings.Contains(p.err.String(), "no node follows changes") {
		t.Fatalf("with no node: exit %d: %s", p.code, p.err.String())
	}
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
	for what, id := range map[string]string{"a workspace that is not there": uuid.NewString(), "the nil UUID": uuid.Nil.String()} {
		p = start(t, "purge", "--workspace", id, "--database-url", url)
		if <-p.ended; p.code != exitFailed || !strings.Contains(p.err.String(), "workspace "+id+": not found") {
			t.Errorf("%s: exit %d: %s", what, p.code, p.err.String())
		}
	}
	for what, args := range map[string][]string{"nothing": nil, "both": {"--all", "--workspace", workspace}} {
		p = start(t, append([]string{"purge", "--database-url", url}, args...)...)
		if <-p.ended; p.code != exitUsage || !strings.Contains(p.err.String(), "either --workspace or --all") {
			t.Errorf("%s: exit %d: %s", what, p.code, p.err.String())
		}
	}
	if !hit(key) || !hit(other) || n.metric(t, "listedge_origin_fetches_total") != before {
		t.Error("a purge that was refused purged")
	}
}
