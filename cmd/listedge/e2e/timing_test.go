package e2e

import (
	"regexp"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

var durations = regexp.MustCompile(`;dur=[0-9]+\.[0-9]{3}`)

func TestServerTimingHasTheParts(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	blocked := newKeyFor(t, url, workspace, "--rate", "0", "--burst", "1")
	n := startNode(t, url, "--server-timing", "--redis-url", sandboxtest.Redis(t).URL(), "--freshness-bound", "0", "--cache-ttl", "1h")
	for _, c := range []struct{ what, path, key, control, want string }{
		{"a miss", "/v1/items", key, "", "key, memory, limit, redis, fill, query"},
		{"a hit", "/v1/items", key, "", "key, memory, limit"},
		{"refused", "/v1/items", blocked, "", "key, memory, limit;desc=key"},
		{"wrong", "/v1/items?limit=0", key, "", "key, limit"},
		{"no key", "/v1/items", "", "", ""},
		{"bypassed", "/v1/contacts", key, "no-cache", "key, limit, fill, query"},
	} {
		a := n.get(t, c.path, c.key, "Cache-Control: "+c.control)
		if got := durations.ReplaceAllString(a.Header.Get("Server-Timing"), ""); got != c.want {
			t.Errorf("%s: Server-Timing %s, want %s", c.what, a.Header.Get("Server-Timing"), c.want)
		}
	}
	if a := n.get(t, "/v1/items", key, "If-None-Match: *"); a.StatusCode != 304 || durations.ReplaceAllString(a.Header.Get("Server-Timing"), "") != "key, memory, limit" {
		t.Errorf("not modified: %d, Server-Timing %s", a.StatusCode, a.Header.Get("Server-Timing"))
	}
	if a := startNode(t, url).get(t, "/v1/items", key); a.Header.Values("Server-Timing") != nil {
		t.Errorf("off: %v", a.Header)
	}
}
