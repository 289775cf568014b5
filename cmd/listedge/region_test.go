package main

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// Two fleets, each with a Redis of its own, follow one Postgres.
func TestTwoRegionsOnOneDatabase(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'v0')", workspace)
	if said := command(t, "migrate", "up", "--region", "east", "--database-url", url); !strings.Contains(said, "_east") {
		t.Error(said)
	}
	var nodes []*testNode
	for _, region := range []string{"east", "west"} {
		redis := sandboxtest.Redis(t)
		for range 2 {
			nodes = append(nodes, startNode(t, url, "--redis-url", redis.URL(), "--region", region))
		}
	}
	followers := 0.0
	for _, n := range nodes {
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
		followers += n.metric(t, "listedge_freshness_follower")
		n.get(t, "/v1/items", key)
	}
	if followers != 2 {
		t.Errorf("%v followers", followers)
	}
	execute(t, url, "UPDATE items SET name = 'v1' WHERE workspace_id = $1", workspace)
	for _, n := range nodes {
		within(t, patience, "the change", func() bool { return strings.Contains(string(n.get(t, "/v1/items", key).body), "v1") })
	}
	by := doctor(t, exitFine, "--database-url", url, "--region", "west")
	expect(t, by, "slot", "ok", "followed")
	p := start(t, "serve", "--database-url", url, "--region", "New York")
	if <-p.ended; p.code != exitUsage || !strings.Contains(p.err.String(), "--region") {
		t.Errorf("exit %d: %s", p.code, p.err.String())
	}
}
