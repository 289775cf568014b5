package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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
// the difference. Without a quota, the headers have none. Each change, of the key's limit, too, reaches both nodes.
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
	id := parsed[[]struct{ ID string }](t, "keys", "list", "--workspace", workspace, "--database-url", url)[0].ID
	command(t, "keys", "update", id, "--rate", "1000", "--burst", "1000", "--database-url", url)
	for _, n := range nodes {
		within(t, patience, "no quota, and another limit", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && a.Header.Get("RateLimit-Policy") == `"key";q=1000;w=1;rate=1000` && !strings.Contains(a.Header.Get("RateLimit"), "quota")
		})
	}
}

// A 304 costs no token, however many ask with no-cache, as a browser's fetch does, and a page that rows have no query.
func TestA304ForNoCacheCostsNothing(t *testing.T) {
	t.Parallel()
	const tokens = 10
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
