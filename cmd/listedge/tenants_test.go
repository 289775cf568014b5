package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// Two workspaces have rows with the same ids. Neither may ever get rows of the other, from any
// tier, with concurrent requests.
func TestWorkspacesNeverSeeEachOther(t *testing.T) {
	t.Parallel()
	url := database(t)
	redis := sandboxtest.Redis(t)
	workspaces, keys := [2]string{}, [2]string{}
	for i := range workspaces {
		workspaces[i], keys[i] = workspaceWithKey(t, url)
		execute(t, url, `INSERT INTO items (workspace_id, id, name, created_at)
			SELECT $1, md5(g::text)::uuid, $2 || g, '2026-01-01'::timestamptz + g * interval '1 s' FROM generate_series(1, 300) g`,
			workspaces[i], fmt.Sprintf("owner%d-", i))
	}
	// A short life makes pages come from memory, Redis and Postgres by turns;
	// a small memory evicts them.
	flags := []string{"--redis-url", redis.URL(), "--freshness-bound", "0", "--cache-ttl", "20ms", "--cache-memory", "1MiB"}
	nodes := []*testNode{startNode(t, url, flags...), startNode(t, url, flags...)}

	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			owner := worker % 2
			n := nodes[worker/2%2]
			for i := range 150 {
				path := fmt.Sprintf("/v1/items?limit=%d&sort=%s", 1+i%5, []string{"name", "createdAt"}[i%2])
				if i%3 == 0 {
					path += "&search=owner"
				}
				a, err := n.try("GET", path, keys[owner])
				if err != nil {
					t.Error(err)
					return
				}
				if a.StatusCode != 200 {
					t.Errorf("%s: %s", a.Status, a.body)
					return
				}
				if strings.Contains(string(a.body), fmt.Sprintf("owner%d-", 1-owner)) || !strings.Contains(string(a.body), fmt.Sprintf("owner%d-", owner)) {
					t.Errorf("workspace %d was shown %s", owner, a.body)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, tier := range []string{"memory", "redis", "origin"} {
		answered := 0.0
		for _, n := range nodes {
			answered += n.metric(t, "listedge_http_request_duration_seconds_count", `outcome="`+tier+`"`)
		}
		if answered == 0 {
			t.Errorf("no page came from %s: the test did not try it", tier)
		}
	}
	// A cursor of one workspace is a position in the other. It returns only rows of the key's
	// own workspace.
	cursor := *nodes[0].get(t, "/v1/items?limit=5", keys[0]).page(t).Page.NextCursor
	a := nodes[0].get(t, "/v1/items?limit=5&cursor="+cursor, keys[1])
	if strings.Contains(string(a.body), "owner0-") || len(a.page(t).Data) != 5 {
		t.Errorf("%s", a.body)
	}
}

// A cursor with a changed character is refused, or returns a valid page.
func TestMangledCursors(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Näme ' || g FROM generate_series(1, 30) g", workspace)
	n := startNode(t, url)
	for _, sort := range []string{"createdAt", "name"} {
		path := "/v1/items?limit=5&sort=" + sort + "&cursor="
		cursor := *n.get(t, "/v1/items?limit=5&sort="+sort, key).page(t).Page.NextCursor
		right := n.get(t, path+cursor, key).page(t).Data[0]["id"]
		for i := range cursor {
			for _, c := range []string{"A", "z", "_", "", "%00", "%C3%A9", "="} {
				mangled := cursor[:i] + c + cursor[i+1:]
				if mangled == cursor {
					continue
				}
				a := n.get(t, path+mangled, key)
				if a.StatusCode != 400 && (a.StatusCode != 200 || a.page(t).Data[0]["id"] != right) {
					t.Fatalf("%s: %s %s", mangled, a.Status, a.body)
				}
				if a.StatusCode == 400 && a.problem(t).Error.Details["cursor"] == "" {
					t.Fatalf("%s: %s", mangled, a.body)
				}
			}
		}
		foreign := n.get(t, "/v1/items?limit=5&sort="+map[string]string{"name": "createdAt", "createdAt": "name"}[sort]+"&cursor="+cursor, key)
		malformed := n.get(t, path+"x", key)
		if foreign.StatusCode != 400 || foreign.problem(t).Error.Details["cursor"] == malformed.problem(t).Error.Details["cursor"] {
			t.Errorf("foreign %s, malformed %s", foreign.body, malformed.body)
		}
		if other := n.get(t, strings.Replace(path, "limit=5", "limit=9", 1)+cursor, key); len(other.page(t).Data) != 9 {
			t.Error("the limit may change during a walk")
		}
	}
}
