package e2e

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// If a fleet starts while Redis is down, no node knows how many there are. Yet the nodes do
// not admit the burst once each.
func TestColdNodesWithoutRedisShareALimit(t *testing.T) {
	url := database(t)
	server := sandboxtest.Redis(t)
	address := server.URL()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--database-url", url))
	const burst = 24
	key := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "24")
	var nodes []*testNode
	for range 3 {
		nodes = append(nodes, startNode(t, url, "--redis-url", address, "--freshness-bound", "0", "--cache-ttl", "1h"))
	}
	admitted := 0
	flood := func() {
		for range burst {
			for _, n := range nodes {
				switch a := n.get(t, "/v1/items", key); a.StatusCode {
				case 200:
					admitted++
				case 429:
				default:
					t.Fatalf("%s %s", a.Status, a.body)
				}
			}
		}
	}
	flood()
	if admitted == 0 || admitted > burst {
		t.Fatalf("%d of a burst of %d admitted", admitted, burst)
	}
	// Redis starts: the nodes find it and one another, and debit what they spent.
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		within(t, patience, "three nodes that owe nothing", func() bool {
			return n.metric(t, "listedge_limiter_nodes") == 3 && n.metric(t, "listedge_limiter_owing_buckets") == 0 && n.metric(t, "listedge_limiter_breaker_open") == 0
		})
	}
	flood()
	if admitted > burst+1 || admitted < burst-3 { // a token in 1,000 s
		t.Fatalf("%d of a burst of %d admitted in the end", admitted, burst)
	}
}
