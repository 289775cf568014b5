package e2e

import (
	"context"
	"strings"
	"testing"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

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
	admitted := 0
	within(t, patience, "the burst is admitted", func() bool {
		for _, n := range nodes {
			within(t, patience, "followed", func() bool { return n.mode() == "followed" })
			if n.get(t, "/v1/items", key).StatusCode == 200 {
				admitted++
			}
		}
		return admitted >= 3
	})
	for _, n := range nodes {
		if a := n.get(t, "/v1/items", key); a.StatusCode != 429 {
			t.Fatal(a.Status)
		}
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
	within(t, patience, "the workspace is exhausted", func() bool { return nodes[0].get(t, "/v1/items", key).StatusCode == 429 })
	if a := nodes[1].get(t, "/v1/items", key); a.StatusCode != 429 {
		t.Error(a.Status)
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
}
