package e2e

import (
	"fmt"
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

// The queries that a client causes are bounded by its tokens.
func TestEveryQueryCostsAToken(t *testing.T) {
	t.Parallel()
	database := database(t)
	workspace := walkedWorkspace(t, database)
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
				key := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", fmt.Sprint(tokens))
				if got := spend(t, n, key, c.next, c.headers...); got > c.most {
					t.Errorf("%s: %v queries for %d tokens", c.name, got, tokens)
				}
			}
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
