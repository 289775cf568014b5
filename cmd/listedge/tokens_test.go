package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

const tokens = 10

// spend requests one path after the other until the key has no token left, and returns how
// many queries that cost. next gets the Link of the last response.
func spend(t *testing.T, n *testNode, key string, next func(link string) (path string), headers ...string) (queries float64) {
	t.Helper()
	before := n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`)
	link, refused := "", false
	within(t, patience, "429", func() bool {
		a := n.get(t, next(link), key, headers...)
		link = a.next(t)
		refused = a.StatusCode == 429
		return refused
	})
	return n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`) - before
}

// The queries that a client causes are bounded by its tokens. A token is returned only if
// memory answers the request.
func TestEveryQueryCostsAToken(t *testing.T) {
	t.Parallel()
	database := database(t)
	command(t, "seed", "--database-url", database, "--workspaces", "1", "--items", walkedItems, "--contacts", "0")
	var workspaces []struct{ ID string }
	if err := json.Unmarshal([]byte(command(t, "workspaces", "list", "--database-url", database, "--json")), &workspaces); err != nil || len(workspaces) != 1 {
		t.Fatal(workspaces, err)
	}
	for _, mode := range []string{"500ms", "0"} {
		t.Run("freshness bound "+mode, func(t *testing.T) {
			n := startNode(t, database, "--freshness-bound", mode, "--cache-ttl", "1h")
			limit := 0
			others := func(string) string {
				limit++
				return fmt.Sprintf("/v1/items?search=%d", limit)
			}
			walk := func(link string) string {
				if link == "" {
					return "/v1/items?limit=1&sort=name"
				}
				return link
			}
			same := func(string) string { return "/v1/items" }
			for _, c := range []struct {
				name    string
				next    func(string) string
				headers []string
				most    float64
			}{
				{"pages not in memory", others, []string{"If-None-Match: *"}, tokens},
				{"pages that If-Match refuses", others, []string{"If-Match: \"a\""}, tokens},
				{"a page read again", same, []string{"If-None-Match: *", "Cache-Control: no-cache"}, tokens},
				{"a walk, of which pages are read ahead", walk, []string{"If-None-Match: *"}, tokens + 1},
			} {
				key := newKeyFor(t, database, workspaces[0].ID, "--rate", "0.001", "--burst", fmt.Sprint(tokens))
				if got := spend(t, n, key, c.next, c.headers...); got > c.most {
					t.Errorf("%s: %v queries for %d tokens", c.name, got, tokens)
				}
			}
		})
	}
}

// Even without a token left, many concurrent requests get 304: they neither wait for a token
// nor hold one.
func TestNotModifiedFromMemoryNeedsNoToken(t *testing.T) {
	database := database(t)
	workspace, _ := workspaceWithKey(t, database)
	for name, flags := range map[string][]string{"alone": nil, "with Redis": {"--redis-url", sandboxtest.Redis(t).URL()}} {
		t.Run(name, func(t *testing.T) {
			key := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", "1")
			n := startNode(t, database, append([]string{"--freshness-bound", "0", "--cache-ttl", "1h"}, flags...)...)
			// The first call to Redis opens a connection and brings the script. A request that
			// does not wait for it is decided without Redis.
			n.get(t, "/v1/items", newKeyFor(t, database, workspace)).page(t)
			first := n.get(t, "/v1/items", key)
			first.page(t)
			etag := first.Header.Get("ETag")
			if a := n.get(t, "/v1/items", key); a.StatusCode != 429 {
				t.Fatalf("%s, and the burst was 1", a.Status)
			}
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 10 {
						if a := n.get(t, "/v1/items", key, "If-None-Match: "+etag); a.StatusCode != 304 {
							t.Errorf("%s", a.Status)
						}
					}
				})
			}
			all.Wait()
			if a := n.get(t, "/v1/items", key, `If-None-Match: "another"`); a.StatusCode != 429 {
				t.Errorf("%s for a page that was modified", a.Status)
			}
		})
	}
}

// A small burst is not leased. Each of its requests is a call to Redis and costs a token,
// whatever the response, except a 304 from memory, which needs no token.
func TestAnswersFromMemoryCostATokenWhereTheLimitAskedRedis(t *testing.T) {
	database := database(t)
	workspace, _ := workspaceWithKey(t, database)
	n := startNode(t, database, "--freshness-bound", "0", "--cache-ttl", "1h", "--redis-url", sandboxtest.Redis(t).URL())
	for header, free := range map[string]int{"If-Match: \"a\"": 412, "Cache-Control: no-cache, only-if-cached": 504} {
		const burst = 5
		alone := func() float64 { return n.metric(t, "listedge_limiter_decisions_total", `source="local_fallback"`) }
		within(t, patience, "a burst that Redis decided throughout", func() bool { // on a busy machine a call may take longer than a request waits
			before := alone()
			key := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", strconv.Itoa(burst))
			n.get(t, "/v1/items", key).page(t)
			answered := 0
			for n.get(t, "/v1/items", key, header).StatusCode == free && answered <= burst {
				answered++
			}
			if alone() > before {
				return false
			}
			if answered != burst-1 {
				t.Errorf("%s: %d answers beside the first, of a burst of %d", header, answered, burst)
			}
			return true
		})
	}
}

// only-if-cached gets a page from memory or Redis and never queries Postgres. The call to
// Redis costs a token.
func TestOnlyIfCached(t *testing.T) {
	database := database(t)
	workspace, _ := workspaceWithKey(t, database)
	key := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", "10")
	flags := []string{"--freshness-bound", "0", "--cache-ttl", "1h", "--redis-url", sandboxtest.Redis(t).URL()}
	first, second := startNode(t, database, flags...), startNode(t, database, flags...)
	first.get(t, "/v1/items", key).page(t)
	var a *answer
	within(t, patience, "the page is in Redis", func() bool {
		a = second.get(t, "/v1/items", newKeyFor(t, database, workspace), "Cache-Control: only-if-cached")
		return a.StatusCode == 200
	})
	if got := cacheStatus(a.Header); got != "listedge; hit; detail=ttl" {
		t.Error(got)
	}
	before := second.get(t, "/v1/items", key).Header.Get("X-RateLimit-Remaining")
	a = second.get(t, "/v1/contacts", key, "Cache-Control: only-if-cached, max-age=5")
	if a.StatusCode != 504 || a.problem(t).Error.Code != "REQUEST_FAILED" || a.Header.Get("X-RateLimit-Remaining") == before {
		t.Errorf("%s %s, %s tokens left of %s", a.Status, a.body, a.Header.Get("X-RateLimit-Remaining"), before)
	}
	if got := second.metric(t, "listedge_origin_fetches_total"); got != 0 {
		t.Errorf("%v queries", got)
	}
}
