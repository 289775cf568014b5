package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// Two workspaces have rows with the same ids. Neither may ever get rows of the other, from any
// tier, with concurrent requests.
func TestWorkspacesNeverSeeEachOther(t *testing.T) {
	t.Parallel()
	url := database(t)
	redis := sandboxtest.Redis(t)
	workspaces, keys := [2]string{}, [2]string{}
	for i := range workspaces {
		workspaces[i], keys[i] = workspaceWithKey(t, url)
		execute(t, url, `INSERT INTO items (workspace_id, id, name, created_at)
			SELECT $1, md5(g::text)::uuid, $2 || g, '2026-01-01'::timestamptz + g * interval '1 s' FROM generate_series(1, 300) g`,
			workspaces[i], fmt.Sprintf("owner%d-", i))
	}
	// A short life makes pages come from memory, Redis and Postgres by turns;
	// a small memory evicts them.
	flags := []string{"--redis-url", redis.URL(), "--freshness-bound", "0", "--cache-ttl", "200ms", "--cache-memory", "1MiB"}
	nodes := []*testNode{startNode(t, url, flags...), startNode(t, url, flags...)}

	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			owner := worker % 2
			n := nodes[worker/2%2]
			for i := range 150 {
				path := fmt.Sprintf("/v1/items?limit=%d&sort=%s", 1+i%5, []string{"name", "createdAt"}[i%2])
				if i%3 == 0 {
					path += "&search=owner"
				}
				a, err := n.try("GET", path, keys[owner])
				if err != nil {
					t.Error(err)
					return
				}
				if a.StatusCode != 200 {
					t.Errorf("%s: %s", a.Status, a.body)
					return
				}
				if strings.Contains(string(a.body), fmt.Sprintf("owner%d-", 1-owner)) || !strings.Contains(string(a.body), fmt.Sprintf("owner%d-", owner)) {
					t.Errorf("workspace %d was shown %s", owner, a.body)
					return
				}
			}
		})
	}
	wg.Wait()
	within(t, patience, "pages came from memory, Redis and Postgres: else the test did not try them", func() bool {
		answered := map[string]float64{}
		for i := range 8 { // in quick succession
			nodes[i%2].get(t, "/v1/items?limit=9", keys[0])
		}
		for _, n := range nodes {
			for _, tier := range []string{"memory", "redis", "origin"} {
				answered[tier] += n.metric(t, "listedge_http_request_duration_seconds_count", `outcome="`+tier+`"`)
			}
		}
		return answered["memory"] > 0 && answered["redis"] > 0 && answered["origin"] > 0
	})
	// A cursor of one workspace is a position in the other. It returns only rows of the key's
	// own workspace.
	cursor := *nodes[0].get(t, "/v1/items?limit=5", keys[0]).page(t).Page.NextCursor
	a := nodes[0].get(t, "/v1/items?limit=5&cursor="+cursor, keys[1])
	if strings.Contains(string(a.body), "owner0-") || len(a.page(t).Data) != 5 {
		t.Errorf("%s", a.body)
	}
}
