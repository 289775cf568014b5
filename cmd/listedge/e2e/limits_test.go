package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// quotaWorkspace makes a workspace with a quota, and a key that no rate stops. The month does not end
// while the test runs.
func quotaWorkspace(t *testing.T, url, quota, shown string) (workspace, key string) {
	t.Helper()
	within(t, 2*patience, "a month that goes on for a while", func() bool {
		_, rest := theMonth()
		return rest > patience
	})
	made := parsed[struct {
		ID    string
		Quota json.RawMessage
	}](t, "workspaces", "create", "--name", "w", "--quota", quota, "--database-url", url)
	if string(made.Quota) != shown {
		t.Fatal(string(made.Quota))
	}
	return made.ID, newKeyFor(t, url, made.ID, "--rate", "100000", "--burst", "100000")
}

// theMonth returns the length of the current month, and how much of it is left.
func theMonth() (length, rest time.Duration) {
	now := time.Now().UTC()
	begin := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	end := begin.AddDate(0, 1, 0)
	return end.Sub(begin), end.Sub(now)
}

// spendQuota sends requests to the nodes in turn until the rest of the quota is used up, and
// then some more. If one node refuses, the other may still hold tokens, or the node may not
// know a changed quota yet.
func spendQuota(t *testing.T, nodes []*testNode, key string, left, quota int) {
	t.Helper()
	admitted, turn := 0, 0
	next := func() *answer {
		turn++
		a := nodes[turn%len(nodes)].get(t, "/v1/items", key)
		if a.StatusCode == 200 {
			admitted++
		}
		return a
	}
	within(t, patience, fmt.Sprintf("%d requests are admitted", left), func() bool {
		next()
		return admitted >= left
	})
	var last *answer
	used := 0
	within(t, patience, "the quota is used up", func() bool {
		if last = next(); last.StatusCode != 429 {
			t.Fatalf("%s, and %d of %d are admitted", last.Status, admitted, left)
		}
		if last.problem(t).Error.Code == "PLAN_LIMIT_REACHED" &&
			strings.Contains(last.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"quota";q=%d;`, quota)) { // not a node that waited for Redis in vain
			used++
		}
		return used >= 6
	})
	length, rest := theMonth()
	retry, _ := strconv.Atoi(last.Header.Get("Retry-After"))
	if off := rest - time.Duration(retry)*time.Second; off.Abs() > patience {
		t.Errorf("Retry-After: %d, and the month lasts %v more", retry, rest)
	}
	policy, state := last.Header.Get("RateLimit-Policy"), last.Header.Get("RateLimit")
	if !strings.HasSuffix(policy, fmt.Sprintf(`, "quota";q=%d;w=%.0f`, quota, length.Seconds())) ||
		!strings.HasSuffix(state, fmt.Sprintf(`, "quota";r=0;t=%d`, retry)) ||
		last.Header.Get("X-RateLimit-Limit") != strconv.Itoa(quota) || last.Header.Get("X-RateLimit-Remaining") != "0" ||
		last.Header.Get("X-RateLimit-Reset") != strconv.Itoa(retry) {
		t.Errorf("%v", last.Header)
	}
}

// Two nodes together admit exactly the quota of a workspace. After it was raised, they admit
// the difference. Without a quota, the headers have none.
func TestAQuotaOverTwoNodes(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := quotaWorkspace(t, url, "40/month", `{"requests":40,"period":"month"}`)
	flags := []string{"--redis-url", sandboxtest.Redis(t).URL(), "--limiter-failure-mode", "deny", "--freshness-bound", "2s"}
	nodes := []*testNode{startNode(t, url, flags...), startNode(t, url, flags...)}
	for _, n := range nodes {
		n.awaitFollowed(t)
	}
	spendQuota(t, nodes, key, 40, 40)
	if list := command(t, "workspaces", "list", "--database-url", url); !regexp.MustCompile(`\s40/month, \d+ admitted this month\s`).MatchString(list) {
		t.Error(list)
	}
	shown := func(of string) string {
		return string(parsed[struct{ Quota json.RawMessage }](t, "workspaces", "update", workspace, "--quota", of, "--database-url", url).Quota)
	}
	if got := shown("43/month"); got != `{"requests":43,"period":"month"}` {
		t.Error(got)
	}
	spendQuota(t, nodes, key, 43-40, 43)
	within(t, patience, "a refused request", func() bool { // Redis answers in time, and the node knows the changed quota
		a := nodes[0].get(t, "/v1/items", key, "X-Request-Id: used-up")
		return a.problem(t).Error.Code == "PLAN_LIMIT_REACHED" && strings.Contains(a.Header.Get("RateLimit-Policy"), `"quota";q=43;`)
	})
	if said := explained(t, nodes[0], "used-up"); !strings.Contains(said, "refusedBy: quota\n") || !strings.Contains(said, "quota;q=43;") {
		t.Error(said)
	}
	for _, n := range nodes {
		within(t, patience, "metrics say that a quota refused, and that all of it is used", func() bool { // as above
			n.get(t, "/v1/items", key)
			return n.metric(t, "listedge_limiter_decisions_total", `decision="refused"`, `source="quota"`) > 0 &&
				n.metric(t, "listedge_limiter_quota_used_ratio", `workspace="`+workspace+`"`) == 1
		})
	}
	if got := shown("none"); got != "null" {
		t.Error(got)
	}
	for _, n := range nodes {
		within(t, patience, "no quota", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && !strings.Contains(a.Header.Get("RateLimit-Policy")+a.Header.Get("RateLimit"), "quota")
		})
	}
}

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
			for _, c := range []struct {
				name    string
				next    func(string) string
				headers []string
				most    float64
			}{
				{"pages not in memory", others, []string{"If-None-Match: *"}, tokens},
				{"pages that If-Match refuses", others, []string{"If-Match: \"a\""}, tokens},
				{"pages read for no-cache", others, []string{"If-None-Match: *", "Cache-Control: no-cache"}, tokens},
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

// A 304 costs no token, however many ask with no-cache, as a browser's fetch does, and a page that rows have no query.
func TestA304ForNoCacheCostsNothing(t *testing.T) {
	t.Parallel()
	database := database(t)
	n := startFollowed(t, database, lateProofs...)
	workspace, key := workspaceWithKey(t, database)
	poor := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", fmt.Sprint(tokens))
	etag := n.first(t, "/v1/items", key).Header.Get("ETag")
	n.first(t, "/v1/items", poor)
	queries := n.metric(t, "listedge_origin_fetches_total")
	for range 3 * tokens {
		a := n.get(t, "/v1/items", poor, "If-None-Match: "+etag, "Cache-Control: no-cache", "Pragma: no-cache")
		if a.StatusCode != 304 || cacheStatus(a.Header) != "listedge; hit; detail=memory" {
			t.Fatalf("%s, %s", a.Status, cacheStatus(a.Header))
		}
	}
	if read, proven := n.metric(t, "listedge_origin_fetches_total")-queries, n.metric(t, "listedge_cache_proven_pages_total"); read > 0 || proven != 3*tokens {
		t.Errorf("%v queries, %v pages were proven", read, proven)
	}
}

// only-if-cached gets a page from memory or Redis and never queries Postgres. The call to
// Redis costs a token.
func TestOnlyIfCached(t *testing.T) {
	t.Parallel()
	database := database(t)
	workspace, _ := workspaceWithKey(t, database)
	// So large that a node refuses nothing if Redis is late, as on a busy machine.
	key := newKeyFor(t, database, workspace, "--rate", "0.001", "--burst", "100000")
	flags := []string{"--freshness-bound", "0", "--cache-ttl", "1h", "--redis-url", sandboxtest.Redis(t).URL()}
	first, second := startNode(t, database, flags...), startNode(t, database, flags...)
	first.first(t, "/v1/items", key).page(t)
	var a *answer
	within(t, patience, "the page is in Redis", func() bool {
		a = second.get(t, "/v1/items", newKeyFor(t, database, workspace), "Cache-Control: only-if-cached")
		return a.StatusCode == 200
	})
	if got := cacheStatus(a.Header); got != "listedge; hit; detail=ttl" {
		t.Error(got)
	}
	before := second.first(t, "/v1/items", key).Header.Get("X-RateLimit-Remaining")
	a = second.get(t, "/v1/contacts", key, "Cache-Control: only-if-cached, max-age=5")
	if a.StatusCode != 504 || a.problem(t).Error.Code != "REQUEST_FAILED" || a.Header.Get("X-RateLimit-Remaining") == before {
		t.Errorf("%s %s, %s tokens left of %s", a.Status, a.body, a.Header.Get("X-RateLimit-Remaining"), before)
	}
	if got := second.metric(t, "listedge_origin_fetches_total"); got != 0 {
		t.Errorf("%v queries", got)
	}
}

// A changed limit reaches every node through the log of changes, long before the next look-up
// of the key.
func TestAPlanChangeReachesEveryNode(t *testing.T) {
	t.Parallel()
	url := database(t)
	server := sandboxtest.Redis(t)
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--database-url", url))
	key := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "3")
	var nodes []*testNode
	for range 2 { // which admit nothing while Redis is too slow on a busy machine
		nodes = append(nodes, startNode(t, url, "--redis-url", server.URL(), "--limiter-failure-mode", "deny"))
	}
	// An answer of Redis that comes too late costs its token and is a refusal for a second, so the bucket
	// may be empty before all of it is admitted.
	admitted := 0
	exhaust := func(n *testNode) {
		t.Helper()
		within(t, patience, "the bucket is empty", func() bool {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode == 200 {
				admitted++
			}
			return a.StatusCode == 429 && a.Header.Get("Retry-After") != "1"
		})
	}
	for _, n := range nodes {
		n.awaitFollowed(t)
		exhaust(n)
	}
	if admitted > 3 {
		t.Errorf("%d requests of a burst of 3 are admitted", admitted)
	}
	listed := parsed[[]struct{ ID string }](t, "keys", "list", "--workspace", workspace, "--database-url", url)
	command(t, "keys", "update", listed[0].ID, "--rate", "1000", "--burst", "1000", "--database-url", url)
	for _, n := range nodes {
		within(t, patience, "the new limit", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && a.Header.Get("RateLimit-Policy") == `"key";q=1000;w=1;rate=1000`
		})
	}
	// A limit for the whole workspace is one more bucket, on both.
	command(t, "workspaces", "update", workspace, "--rate", "0.001", "--burst", "4", "--database-url", url)
	for _, n := range nodes {
		within(t, patience, "the workspace's limit", func() bool {
			return strings.Contains(n.get(t, "/v1/items", key).Header.Get("RateLimit-Policy"), `"workspace";q=4;`)
		})
	}
	admitted = 0
	for _, n := range nodes {
		exhaust(n)
	}
	if admitted > 4 {
		t.Errorf("%d requests of a burst of 4 are admitted", admitted)
	}
}

func TestARedisThatMayEvictIsWarnedOf(t *testing.T) {
	t.Parallel()
	url := database(t)
	server := sandboxtest.Redis(t)
	client := redistest.Client(t, server)
	must(client.ConfigSet(context.Background(), "maxmemory-policy", "allkeys-lru").Err())
	n := startNode(t, url, "--redis-url", server.URL())
	within(t, patience, "the warning", func() bool { return strings.Contains(n.err.String(), "allkeys-lru") })
	must(server.Freeze()) // what it does not answer is no better news
	n.awaitCheck(t, "redis", "no answer")
	n.awaitCheck(t, "redis eviction", "no answer")
	must(server.Thaw())
	n.awaitCheck(t, "redis eviction", "allkeys-lru")
	if log := n.err.String(); strings.Contains(log, "no longer: Redis may evict") {
		t.Error(log)
	}
}
