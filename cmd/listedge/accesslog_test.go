package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// What each access log has of the same six requests: a miss, a hit, a hit that
// is not of the sample, a 400, a 401 and a 429.
func TestTheAccessLogHasAllErrorsAndASample(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	small := newKeyFor(t, url, workspace, "--rate", "0", "--burst", "1")
	for which, want := range map[string][]string{
		"off":     nil,
		"errors":  {"invalid", "unauthorised", "limited"},
		"sampled": {"miss", "hit", "invalid", "unauthorised", "limited"},
	} {
		n := startNode(t, url, "--access-log", which)
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
		for _, r := range []struct{ id, path, key string }{
			{"miss", "/v1/items?search=Secret", key}, {"hit", "/v1/items?search=Secret", key}, {"unsampled", "/v1/items?search=Secret", key},
			{"invalid", "/v1/items?cursor=Secret", key}, {"unauthorised", "/v1/items", key + "x"}, {"limited", "/v1/items", small},
		} {
			n.get(t, r.path, r.key, "X-Request-Id: "+r.id)
		}
		var got []string
		logged := n.err.String()
		for line := range strings.Lines(logged) {
			var e struct {
				Msg, RequestID, Route, Outcome, KeyID, WorkspaceID, Limit, CacheStatus string
				Status                                                                 int
				Took, QueryTook                                                        float64
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Msg != "request" {
				continue
			}
			got = append(got, e.RequestID)
			if e.Route != "items" || e.Took <= 0 || e.Outcome == "" || e.Status == 0 || e.RequestID != "unauthorised" && (e.KeyID == "" || e.WorkspaceID != workspace || e.Limit == "") {
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
		n.stop()
	}
}
