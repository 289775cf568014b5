package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// After a change to a page that many nodes serve, one node reads it and the others wait for
// that node.
func TestAFleetReadsAChangedPageOnce(t *testing.T) {
	url := database(t)
	redis := sandboxtest.Redis(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'v0')", workspace)
	const size, changes = 8, 9
	var nodes []*testNode
	for range size {
		nodes = append(nodes, startNode(t, url, "--redis-url", redis.URL(), "--database-connections", "2"))
	}
	for _, n := range nodes {
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
		n.get(t, "/v1/items", key)
	}
	fetches := func() (sum float64) {
		for _, n := range nodes {
			sum += n.metric(t, "listedge_origin_fetches_total")
		}
		return sum
	}
	before := fetches()
	least := float64(size)
	for i := range changes {
		began := fetches()
		want := "v" + string(rune('1'+i))
		execute(t, url, "UPDATE items SET name = $2 WHERE workspace_id = $1", workspace, want)
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() {
				within(t, patience, "the new page", func() bool {
					a, err := n.try("GET", "/v1/items", key)
					return err == nil && strings.Contains(string(a.body), want)
				})
			})
		}
		wg.Wait()
		least = min(least, fetches()-began)
	}
	t.Logf("%.1f queries per change on %d nodes", (fetches()-before)/changes, size)
	if least > 2 { // of one change: on a busy machine nodes wait in vain for each other now and then
		t.Errorf("at least %.0f queries for a change on %d nodes", least, size)
	}
}

func TestNoCacheGoesToTheDatabase(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1h")
	if got := n.get(t, "/v1/items", key).page(t); len(got.Data) != 0 {
		t.Fatal(got)
	}
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'New')", workspace)
	if got := n.get(t, "/v1/items", key).page(t); len(got.Data) != 0 {
		t.Fatal("the page did not come from the cache: the test tries nothing")
	}
	var a *answer
	within(t, patience, "a page that bypassed the caches", func() bool {
		a = n.get(t, "/v1/items", key, "Cache-Control: max-age=0, no-cache")
		return cacheStatus(a.Header) == "listedge; fwd=bypass"
	})
	if len(a.page(t).Data) != 1 {
		t.Errorf("%s", a.body)
	}
	if n.metric(t, "listedge_http_request_duration_seconds_count", `outcome="bypass"`, `route="items"`) == 0 {
		t.Error("the request is not counted as bypassed")
	}
	// A page that was read for one such request is cached for all.
	if got := n.get(t, "/v1/items", key).page(t); len(got.Data) != 1 {
		t.Error("the page that was read is not kept")
	}
	// A client that always sends no-cache does not disable the cache.
	before := n.metric(t, "listedge_origin_fetches_total")
	began := time.Now()
	for range 200 {
		n.get(t, "/v1/items", key, "Cache-Control: no-cache")
	}
	if fetched, most := n.metric(t, "listedge_origin_fetches_total")-before, 2+time.Since(began).Seconds()*10; fetched > most {
		t.Errorf("%v queries in %s", fetched, time.Since(began))
	}
}
