package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/sandbox/sandboxtest"
)

// A change of plan reaches every node through the log of changes: long before
// the next look-up of the key is due.
func TestAPlanChangeReachesEveryNode(t *testing.T) {
	url := database(t)
	server := sandboxtest.Redis(t)
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--database-url", url))
	key := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "3")
	nodes := []*testNode{startNode(t, url, "--redis-url", server.URL()), startNode(t, url, "--redis-url", server.URL())}
	for _, n := range nodes {
		within(t, 20*time.Second, "followed", func() bool { return n.mode() == "followed" })
	}
	for i := range 3 {
		if a := nodes[i%2].get(t, "/v1/items", key); a.StatusCode != 200 {
			t.Fatal(a.Status)
		}
	}
	for _, n := range nodes {
		if a := n.get(t, "/v1/items", key); a.StatusCode != 429 {
			t.Fatal(a.Status)
		}
	}
	var listed []struct{ ID string }
	if err := json.Unmarshal([]byte(command(t, "keys", "list", "--workspace", workspace, "--database-url", url, "--json")), &listed); err != nil {
		t.Fatal(err)
	}
	command(t, "keys", "update", listed[0].ID, "--rate", "1000", "--burst", "1000", "--database-url", url)
	for _, n := range nodes {
		within(t, 10*time.Second, "the new limit", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && a.Header.Get("RateLimit-Policy") == `"key";q=1000;w=1`
		})
	}
	// A limit for the whole workspace is one more bucket, on both.
	command(t, "workspaces", "update", workspace, "--rate", "0.001", "--burst", "4", "--database-url", url)
	for _, n := range nodes {
		within(t, 10*time.Second, "the workspace's limit", func() bool {
			return strings.Contains(n.get(t, "/v1/items", key).Header.Get("RateLimit-Policy"), `"workspace";q=4;`)
		})
	}
	within(t, 10*time.Second, "the workspace is exhausted", func() bool { return nodes[0].get(t, "/v1/items", key).StatusCode == 429 })
	if a := nodes[1].get(t, "/v1/items", key); a.StatusCode != 429 {
		t.Error(a.Status)
	}
}

func TestARedisThatMayEvictIsWarnedOf(t *testing.T) {
	url := database(t)
	server := sandboxtest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	if err := client.ConfigSet(context.Background(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, url, "--redis-url", server.URL())
	within(t, 10*time.Second, "the warning", func() bool { return strings.Contains(n.err.String(), "allkeys-lru") })
}

func TestLimiterFailureModes(t *testing.T) {
	url := database(t)
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--database-url", url))
	for mode, want := range map[string]int{"local": 2, "allow": 5, "deny": 0} {
		t.Run(mode, func(t *testing.T) {
			server := sandboxtest.Redis(t)
			known := newKeyFor(t, url, workspace)
			n := startNode(t, url, "--redis-url", server.URL(), "--limiter-failure-mode", mode, "--freshness-bound", "0", "--cache-ttl", "1h")
			if a := n.get(t, "/v1/items", known); a.StatusCode != 200 {
				t.Fatal(a.Status)
			}
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			key := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "2")
			admitted := 0
			for range 5 {
				switch a := n.get(t, "/v1/items", key); a.StatusCode {
				case 200:
					admitted++
				case 429:
				default:
					t.Fatalf("%s %s", a.Status, a.body)
				}
			}
			if admitted != want {
				t.Errorf("%d of 5 admitted by a burst of 2, want %d", admitted, want)
			}
		})
	}
}
