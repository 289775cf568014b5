package e2e

import (
	"reflect"
	"strings"
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

// Postgres does not send a long value that an update leaves as it was. Nodes take it from the version that they
// hold: the update costs no query, and the lists by name stay.
func TestAnUpdateThatLeavesALongValueCostsNoQuery(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, `INSERT INTO items (workspace_id, name, sku, description) SELECT $1, 'Item ' || n || CASE n WHEN 7 THEN long ELSE '' END, 'sku' || n,
		CASE WHEN n IN (7, 8) THEN long END FROM generate_series(1, 40) n,
		(SELECT string_agg(md5(random()::text), '') AS long FROM generate_series(1, 96)) l`, workspace)
	n := startFollowed(t, url, lateProofs...)
	paths := []string{"/v1/items?sort=name&limit=100", "/v1/items?limit=100", "/v1/items?sort=name&limit=100&search=sku"}
	stocks := func(path string) map[any]any {
		shown := map[any]any{}
		for _, row := range n.get(t, path, key).page(t).Data {
			shown[row["sku"]] = row["stockOnHand"]
		}
		return shown
	}
	before := map[string]*answer{}
	for _, path := range paths {
		within(t, patience, path+" is a hit", func() bool {
			before[path] = n.get(t, path, key)
			return strings.Contains(before[path].Header.Get("Cache-Status"), "; hit")
		})
	}
	fetches := n.metric(t, "listedge_origin_fetches_total")
	execute(t, url, "UPDATE items SET stock_on_hand = 5 WHERE workspace_id = $1 AND sku IN ('sku7', 'sku8')", workspace)
	for _, path := range paths {
		within(t, patience, path+" shows the stock", func() bool { s := stocks(path); return s["sku7"] == "5" && s["sku8"] == "5" })
		shown, was := n.get(t, path, key).page(t).Data, before[path].page(t).Data
		for i := range was {
			if sku := was[i]["sku"]; sku == "sku7" || sku == "sku8" {
				was[i]["stockOnHand"] = "5"
			}
		}
		if !reflect.DeepEqual(shown, was) {
			t.Errorf("%s: the rows are not those of before", path)
		}
	}
	if queries := n.metric(t, "listedge_origin_fetches_total") - fetches; queries > 0 {
		t.Errorf("%v queries", queries)
	}
}
