package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// complaints are the warnings and errors of a log, without their other attributes.
func complaints(t *testing.T, log string) (all []string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var entry struct{ Level, Msg, Error string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if entry.Level == "WARN" || entry.Level == "ERROR" {
			all = append(all, entry.Msg+": "+entry.Error)
		}
	}
	return all
}

// A server that cannot be reached at the start is logged in one line, with the cause, before
// the first request. Requests add no line about it.
func TestUnreachableServersAreLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flag, url string
		logged    []string // parts of the one line
	}{
		"Redis":               {"--redis-url", "redis://127.0.0.1:1", []string{"Redis is down", "127.0.0.1:1", "refused"}},
		"Redis, a Cluster":    {"--redis-url", "redis://127.0.0.1:1,127.0.0.1:2", []string{"Redis is down", "refused"}},
		"Redis, by Sentinel":  {"--redis-url", "redis+sentinel://127.0.0.1:1/master", []string{"Redis is down", "sentinel"}},
		"replica 127.0.0.1:1": {"--replica-url", "postgres://127.0.0.1:1/listedge", []string{"the replica 127.0.0.1:1 is not queried", "refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			workspace, key := workspaceWithKey(t, url)
			n := launchNode(t, url, c.flag, c.url, "--cache-ttl", "1ms", "--max-stale", "0s")
			n.awaitReady(t)
			about := func() []string {
				return slices.DeleteFunc(complaints(t, n.err.String()), func(line string) bool { return !strings.Contains(line, c.logged[0]) })
			}
			within(t, patience, "it is reported", func() bool { return len(about()) > 0 })
			if check, _, _ := strings.Cut(name, ","); n.metric(t, "listedge_check_up", fmt.Sprintf("check=%q", strings.ToLower(check))) != 0 {
				t.Error("the metric says that it is up")
			}
			for range 100 { // over 3 s, in which all that fails fails more than once
				time.Sleep(30 * time.Millisecond)
				execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'one more')", workspace)
				if a := n.get(t, "/v1/items", key); a.StatusCode != 200 {
					t.Fatalf("%s: %s", a.Status, a.body)
				}
			}
			logged := about()
			if len(logged) != 1 || slices.ContainsFunc(c.logged, func(part string) bool { return !strings.Contains(logged[0], part) }) {
				t.Errorf("%d lines:\n%s", len(logged), strings.Join(logged, "\n"))
			}
		})
	}
}

// If Redis fails or hangs, one line is logged, and one when it answers again, also without
// requests.
func TestARedisOutageIsLoggedOnceEachWay(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ begin, end func(*sandbox.Redis) error }{
		"dies":  {(*sandbox.Redis).Kill, func(r *sandbox.Redis) error { return r.Restart(context.Background()) }},
		"hangs": {(*sandbox.Redis).Freeze, (*sandbox.Redis).Thaw},
	} {
		for _, requests := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, with requests: %v", name, requests), func(t *testing.T) {
				t.Parallel()
				checkLoggedOnceEachWay(t, fault.begin, fault.end, requests)
			})
		}
	}
}

func checkLoggedOnceEachWay(t *testing.T, begin, end func(*sandbox.Redis) error, requests bool) {
	url := database(t)
	_, key := workspaceWithKey(t, url)
	r := sandboxtest.Redis(t)
	get := func(n *testNode) {
		if requests {
			n.get(t, "/v1/items", key)
		}
	}
	n := launchNode(t, url, "--redis-url", r.URL(), "--cache-ttl", "1ms", "--max-stale", "0s")
	n.awaitReady(t)
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	must(begin(r))
	within(t, patience, "it is reported", func() bool {
		get(n)
		return strings.Contains(n.err.String(), "Redis is down")
	})
	must(end(r))
	within(t, patience, "its end is logged", func() bool {
		get(n)
		return strings.Contains(n.err.String(), "no longer: Redis is down") && n.check(t, "redis") == "ok" && n.mode() == "followed"
	})
	logged := slices.DeleteFunc(complaints(t, n.err.String()), func(line string) bool { return !strings.Contains(strings.ToLower(line), "redis") })
	if len(logged) != 1 {
		t.Errorf("%d lines:\n%s", len(logged), strings.Join(logged, "\n"))
	}
}
