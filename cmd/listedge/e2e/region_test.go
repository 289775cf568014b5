package e2e

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
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
	expect(t, diagnose(t, exitFine, "--database-url", url, "--region", "west"), "slot", "ok", "followed")
	by := diagnose(t, exitFailed, "--database-url", url, "--region", "east", "--node", nodes[0].admin+","+nodes[1].admin+","+nodes[2].admin+","+nodes[3].admin)
	expect(t, by, "fleet region", admin.Fail, "east on ")
	expect(t, by, "fleet follower", admin.Fail, "each for a fleet of its own")
	expect(t, by, "fleet log of changes", admin.Fail, "; epoch ")
	expect(t, by, "fleet redis-url", admin.Warn, "; redis://")
	refused(t, exitUsage, "--region", "serve", "--database-url", url, "--region", "New York")
}

// A node whose database is not that of its fleet is not ready, until the fleet has no other
// node. A fleet of another region may share the Redis.
func TestANodeOnAnotherDatabaseThanItsFleet(t *testing.T) {
	t.Parallel()
	redis := sandboxtest.Redis(t)
	ours, theirs := database(t), database(t)
	first := launchNode(t, ours, "--redis-url", redis.URL())
	first.awaitReady(t)
	stranger := launchNode(t, theirs, append(lateProofs, "--redis-url", redis.URL())...)
	const why = "the fleet follows database "
	stranger.awaitCheck(t, "fleet", why)
	if status, r := stranger.readiness(t); status != 503 || r.Ready {
		t.Errorf("%d %+v", status, r)
	}
	says(t, []string{"--database-url", theirs, "--redis-url", redis.URL()}, exitFailed,
		admin.Finding{Subject: "fleet", Level: admin.Fail, Text: why})
	startNode(t, theirs, "--redis-url", redis.URL(), "--region", "another")
	within(t, patience, "it is logged", func() bool { return strings.Contains(stranger.err.String(), why) })
	if status, r := first.readiness(t); status != 200 || r.Checks["fleet"] != "ok" {
		t.Errorf("%d %+v", status, r)
	}
	first.stop()
	stranger.awaitReady(t)
	if logged := strings.Count(stranger.err.String(), why); logged != 1 {
		t.Errorf("it is logged %d times: %s", logged, stranger.err.String())
	}
}
