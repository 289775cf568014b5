package e2e

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/redistest"
)

// Values of other types than ours at all keys in Redis cost a fleet its proofs for a moment.
// Nobody has to remove them, and no request is refused.
func TestAFleetRecoversFromDamagedKeys(t *testing.T) {
	t.Parallel()
	address := database(t)
	server, client := redistest.Start(t)
	workspace, key := workspaceWithKey(t, address)
	nodes := []*testNode{startNode(t, address, "--redis-url", server.URL()), startNode(t, address, "--redis-url", server.URL())}
	well := func() bool {
		for _, n := range nodes {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 {
				t.Fatalf("%s %s", a.Status, a.body)
			}
			if n.mode() != "followed" || n.metric(t, "listedge_limiter_nodes") != 2 || n.metric(t, "listedge_limiter_breaker_open") != 0 ||
				!strings.Contains(a.Header.Get("Cache-Status"), "hit") {
				return false
			}
		}
		return true
	}
	within(t, patience, "all is well", well)
	for name, damage := range map[string]func(key string) error{
		"a set":    func(key string) error { return client.SAdd(t.Context(), key, "x").Err() },
		"a string": func(key string) error { return client.Set(t.Context(), key, "x", 0).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			types := map[string]string{}
			for _, key := range client.Keys(t.Context(), "listedge:*").Val() {
				if strings.HasPrefix(key, "listedge:{changes}:") && !strings.Contains(key, ":log:") || key == "listedge:{fleet}:members" {
					types[key] = client.Type(t.Context(), key).Val()
				}
				must(client.Del(t.Context(), key).Err())
				must(damage(key))
			}
			if len(types) != 4 {
				t.Fatal(types)
			}
			for key, want := range types {
				within(t, patience, key+" is written anew", func() bool {
					return client.Type(t.Context(), key).Val() == want && client.Get(t.Context(), key).Val() != "x"
				})
			}
			execute(t, address, "INSERT INTO items (workspace_id, name) VALUES ($1, $2)", workspace, "after "+name)
			for _, n := range nodes {
				within(t, patience, "a change is seen", func() bool { return strings.Contains(string(n.get(t, "/v1/items", key).body), "after "+name) })
			}
			within(t, patience, "all is well again", well)
		})
	}
}
