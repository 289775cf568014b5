package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestFailedRequestsAreLoggedAtTheUsualLevel(t *testing.T) {
	t.Parallel()
	_, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	n.get(t, "/v1/items", key, "X-Request-Id: fine")
	execute(t, url, "ALTER TABLE items DROP CONSTRAINT items_created_at_check") // a defect, not an outage
	execute(t, url, "INSERT INTO items (workspace_id, name, created_at) VALUES ($1, 'endless', 'infinity')", workspace)
	a := n.get(t, "/v1/items?search=endless", key, "X-Request-Id: broken")
	if a.StatusCode != 500 || a.problem(t).Error.Code != "INTERNAL_ERROR" || strings.Contains(string(a.body), "infinity") {
		t.Errorf("%s %s", a.Status, a.body)
	}
	n.stop() // the line is written behind its response
	if logged := n.err.String(); !strings.Contains(logged, `"requestId":"broken"`) || !strings.Contains(logged, `"level":"ERROR"`) || strings.Contains(logged, "fine") {
		t.Errorf("logged for %s: %s", workspace, logged)
	}
}

func TestSIGHUPChangesNothing(t *testing.T) {
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	n.signal(syscall.SIGHUP)
	if a := n.get(t, "/v1/items", key); a.StatusCode != 200 || n.stop() != exitFine {
		t.Errorf("%s, exit %d", a.Status, n.code)
	}
}

// The end of an outage is noticed without requests.
func TestAPostgresOutageIsLoggedOnceEachWay(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1ms")
	n.get(t, "/v1/items", key)
	logged := func(all ...string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(all, func(text string) bool { return strings.Count(n.err.String(), text) != 1 })
		}
	}
	must(postgres.Kill(syscall.SIGQUIT))
	within(t, patience, "the outage is logged", func() bool {
		n.get(t, "/v1/items", key)
		return logged("Postgres is down")() && n.metric(t, "listedge_check_up", `check="postgres"`) == 0
	})
	must(postgres.Restart(t.Context()))
	within(t, patience, "its end is logged", logged("no longer: Postgres is down"))
	within(t, patience, "the metric says so", func() bool { return n.metric(t, "listedge_check_up", `check="postgres"`) == 1 })
	for _, consequence := range []string{"are not read from Postgres", "is not written to Postgres", "is not queried"} {
		if strings.Contains(n.err.String(), consequence) {
			t.Errorf("logged beside its cause: %s", n.err.String())
		}
	}
}

// Each setting of the access log, with the same six requests: a miss, a hit, a hit that is
// not in the sample, a 400, a 401 and a 429.
func TestTheAccessLogHasAllErrorsAndASample(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	small := newKeyFor(t, url, workspace, "--rate", "0", "--burst", "1")
	for which, want := range map[string][]string{
		"off":     nil,
		"errors":  {"invalid", "unauthorised", "limited"},
		"sampled": {"miss", "hit", "invalid", "unauthorised", "limited"},
	} {
		n := startNode(t, url, append(lateProofs, "--access-log", which)...)
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
		for _, r := range []struct{ id, path, key string }{
			{"miss", "/v1/items?search=Secret", key}, {"hit", "/v1/items?search=Secret", key}, {"unsampled", "/v1/items?search=Secret", key},
			{"invalid", "/v1/items?cursor=Secret", key}, {"unauthorised", "/v1/items", key + "x"}, {"limited", "/v1/items", small},
		} {
			n.get(t, r.path, r.key, "X-Request-Id: "+r.id, "User-Agent: e2e")
		}
		raw(t, n, "GET /v1/items HTTP/1.1\r\nX-Api-Key "+key+"\r\n\r\n") // not a header: what fasthttp would log
		n.stop()                                                         // the last line is written behind its response
		var got []string
		logged := n.err.String()
		for line := range strings.Lines(logged) {
			var e struct {
				Time, Level, Msg, RequestID, Route, Outcome, KeyID, KeyPrefix, WorkspaceID, Limit, CacheStatus, Client, Agent string
				Status, Bytes                                                                                                 int
				Took, QueryTook                                                                                               float64
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time == "" || e.Level == "" || e.Msg == "" {
				t.Errorf("%v: %s", err, line)
			}
			if e.Msg != "request" || e.Route == "none" {
				continue
			}
			if which == "errors" && e.Status == 200 && e.Took >= 0.1 { // slow, as a busy machine is
				continue
			}
			got = append(got, e.RequestID)
			if e.Route != "items" || e.Took <= 0 || e.Outcome == "" || e.Status == 0 || e.RequestID != "unauthorised" && (e.KeyID == "" || e.WorkspaceID != workspace || e.Limit == "") {
				t.Errorf("%s: %s", which, line)
			}
			if e.Client != "127.0.0.1" || e.Agent != "e2e" || e.Bytes == 0 || e.KeyPrefix != key[:9] && e.KeyPrefix != small[:9] {
				t.Errorf("%s: %s", which, line)
			}
			if e.RequestID == "miss" && (e.CacheStatus != "listedge; fwd=uri-miss" || e.QueryTook <= 0) {
				t.Errorf("%s: %s", which, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: logged are %v, want %v", which, got, want)
		}
		if strings.Contains(logged, key[9:]) || strings.Contains(logged, small) || strings.Contains(logged, "Secret") {
			t.Errorf("%s: a key, a search or a cursor is in the log: %s", which, logged)
		}
	}
}
