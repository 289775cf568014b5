package e2e

import (
	"testing"
	"time"
)

func TestNoCacheGoesToTheDatabase(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1h")
	if got := n.first(t, "/v1/items", key).page(t); len(got.Data) != 0 {
		t.Fatal(got)
	}
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'New')", workspace)
	if got := n.first(t, "/v1/items", key).page(t); len(got.Data) != 0 {
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
	if got := n.first(t, "/v1/items", key).page(t); len(got.Data) != 1 {
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
