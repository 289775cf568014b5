package e2e

import (
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// A node that starts takes what others have read out of Redis, and applies what has changed
// since. The page oracle compares the rows.
func TestANodeThatStartsFindsAWarmTier(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 400) n", workspace)
	flags := append(lateProofs, "--redis-url", sandboxtest.Redis(t).URL())
	walk := func() (queries float64, changed int) {
		n := startNode(t, url, flags...)
		defer n.stop()
		n.awaitFollowed(t)
		for _, row := range n.walk(t, "/v1/items?limit=10", key, 10) {
			if row["stockOnHand"] == "7" {
				changed++
			}
		}
		return n.metric(t, "listedge_origin_fetches_total"), changed
	}
	if cold, _ := walk(); cold < 10 {
		t.Errorf("a cold walk costs %v queries", cold)
	}
	execute(t, url, "UPDATE items SET stock_on_hand = 7 WHERE workspace_id = $1 AND name LIKE 'Item 1%7'", workspace)
	within(t, patience, "a walk that costs few queries", func() bool { // a busy machine's Redis may be too slow for one
		queries, changed := walk()
		t.Logf("%v queries, %d rows of 11 that were changed", queries, changed)
		return queries <= 4 && changed == 11
	})
}
