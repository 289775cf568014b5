package main

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// walkedItems in pages of one.
const walkedItems = "40"

// coldWalk is a node that has never seen the list of a workspace with
// walkedItems, and the workspace's key.
func coldWalk(t *testing.T, flags ...string) (n *testNode, key string) {
	t.Helper()
	database := database(t)
	command(t, "seed", "--database-url", database, "--workspaces", "1", "--items", walkedItems, "--contacts", "0")
	var workspaces []struct{ ID string }
	if err := json.Unmarshal([]byte(command(t, "workspaces", "list", "--database-url", database, "--json")), &workspaces); err != nil || len(workspaces) != 1 {
		t.Fatal(workspaces, err)
	}
	return startNode(t, database, flags...), newKeyFor(t, database, workspaces[0].ID, "--rate", "0.001", "--burst", "1000")
}

func TestAWalkGetsMostOfAColdListFromMemory(t *testing.T) {
	for _, mode := range []string{"500ms", "0"} {
		t.Run("freshness bound "+mode, func(t *testing.T) {
			t.Parallel()
			n, key := coldWalk(t, "--freshness-bound", mode, "--cache-ttl", "1m")
			hits, pages := 0, 0
			for path := "/v1/items?limit=1"; path != ""; pages++ {
				a := n.get(t, path, key)
				p := a.page(t)
				if strings.HasPrefix(a.Header.Get("Cache-Status"), "listedge; hit") {
					hits++
				}
				path = ""
				if p.Page.NextCursor != nil {
					path = "/v1/items?limit=1&cursor=" + url.QueryEscape(*p.Page.NextCursor)
				}
				read := float64(pages + 1) // the client has something to do, too
				within(t, patience, "the next page is there", func() bool {
					return pages == 0 || path == "" || n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`) > read
				})
			}
			if pages < 30 || hits < pages*3/4 { // a proof may come late on a busy machine
				t.Errorf("%d of %d pages were hits", hits, pages)
			}
			if fetched := n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`); fetched > float64(pages*5/4) || mode == "0" && fetched != float64(pages) {
				t.Errorf("%v queries for %d pages", fetched, pages)
			}
		})
	}
}

func TestAWalkThatStopsCostsOnePageAndNoToken(t *testing.T) {
	n, key := coldWalk(t, "--freshness-bound", "0", "--cache-ttl", "1m") // so that no page is read for another reason
	first := n.get(t, "/v1/items?limit=1", key).page(t)
	if got := n.metric(t, "listedge_cache_next_pages_total"); got != 0 {
		t.Fatalf("%v pages were read ahead of a client that has asked for one", got)
	}
	second := n.get(t, "/v1/items?limit=1&cursor="+url.QueryEscape(*first.Page.NextCursor), key)
	second.page(t)
	within(t, patience, "the third page is read", func() bool { return n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`) == 3 })
	for range 20 { // which of itself leads no further
		n.get(t, "/v1/items?limit=1&cursor="+url.QueryEscape(*first.Page.NextCursor), key)
	}
	if got := n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`); got != 3 {
		t.Errorf("%v queries", got)
	}
	if left := second.Header.Get("X-RateLimit-Remaining"); left != "998" {
		t.Errorf("%s tokens left of 1000 after two requests", left)
	}
}
