package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
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
		if last.problem(t).Error.Code == "PLAN_LIMIT_REACHED" && strings.Contains(last.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"quota";q=%d;`, quota)) { // not a node that waited for Redis in vain
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
	if !strings.HasSuffix(policy, fmt.Sprintf(`, "quota";q=%d;w=%.0f`, quota, length.Seconds())) || !strings.HasSuffix(state, fmt.Sprintf(`, "quota";r=0;t=%d`, retry)) ||
		last.Header.Get("X-RateLimit-Limit") != strconv.Itoa(quota) || last.Header.Get("X-RateLimit-Remaining") != "0" || last.Header.Get("X-RateLimit-Reset") != strconv.Itoa(retry) {
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
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	}
	spendQuota(t, nodes, key, 40, 40)
	says(t, append([]string{"--database-url", url, "--node", nodes[0].admin, "--node", nodes[1].admin}, flags[:2]...), exitFine,
		admin.Finding{Subject: "fleet quotas", Level: admin.Warn, Text: "workspace " + workspace + " has used 100 %"})

	if list := command(t, "workspaces", "list", "--database-url", url); !strings.Contains(list, "40/month") {
		t.Error(list)
	}
	shown := func(of string) string {
		return string(parsed[struct{ Quota json.RawMessage }](t, "workspaces", "update", workspace, "--quota", of, "--database-url", url).Quota)
	}
	if got := shown("43/month"); got != `{"requests":43,"period":"month"}` {
		t.Error(got)
	}
	spendQuota(t, nodes, key, 43-40, 43)
	within(t, patience, "a refused request", func() bool { // Redis answers in time
		return nodes[0].get(t, "/v1/items", key, "X-Request-Id: used-up").problem(t).Error.Code == "PLAN_LIMIT_REACHED"
	})
	if said := explained(t, nodes[0], "used-up"); !strings.Contains(said, "refusedBy: quota\n") || !strings.Contains(said, "requests: 43\n") {
		t.Error(said)
	}
	for _, n := range nodes {
		if n.metric(t, "listedge_limiter_decisions_total", `decision="refused"`, `source="quota"`) == 0 {
			t.Error("no metric says that a quota refused")
		}
		if used := n.metric(t, "listedge_limiter_quota_used_ratio", `workspace="`+workspace+`"`); used != 1 {
			t.Errorf("the metric says that %v of the quota are used", used)
		}
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
