package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

func TestLogsAreStructuredAndHoldNoKeys(t *testing.T) {
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--log-level", "debug")
	for _, path := range []string{"/v1/items", "/v1/items?limit=0", "/v1/items?search=secret", "/v1/items?X-API-Key=" + key, "/nowhere"} {
		n.get(t, path, key, "X-Request-Id: find-me")
	}
	raw(t, n, "GET /v1/items HTTP/1.1\r\nX-Api-Key "+key+"\r\n\r\n") // not a header: what fasthttp would log
	within(t, patience, "the last request is logged", func() bool { return strings.Contains(n.err.String(), `"route":"none","status":400`) })
	logged := n.err.String()
	if strings.Contains(logged, key) || strings.Contains(logged, key[9:]) || strings.Contains(logged, "secret") {
		t.Errorf("a key or a search is in the log: %s", logged)
	}
	if strings.Count(logged, `"requestId":"find-me"`) != 5 {
		t.Errorf("not every request is logged with its id: %s", logged)
	}
	for line := range strings.Lines(logged) {
		var entry struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" || entry.Msg == "" {
			t.Errorf("%v: %s", err, line)
		}
	}
}

func TestFailedRequestsAreLoggedAtTheUsualLevel(t *testing.T) {
	t.Parallel()
	_, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	n.get(t, "/v1/items", key, "X-Request-Id: fine")
	execute(t, url, "ALTER TABLE contacts RENAME TO kontakte") // a defect, not an outage
	a := n.get(t, "/v1/contacts", key, "X-Request-Id: broken")
	if a.StatusCode != 500 || a.problem(t).Error.Code != "INTERNAL_ERROR" || strings.Contains(string(a.body), "kontakte") || strings.Contains(string(a.body), "contacts") {
		t.Errorf("%s %s", a.Status, a.body)
	}
	if logged := n.err.String(); !strings.Contains(logged, `"requestId":"broken"`) || !strings.Contains(logged, `"level":"ERROR"`) || strings.Contains(logged, "fine") {
		t.Errorf("logged for %s: %s", workspace, logged)
	}
}

func TestSIGHUPSaysThatItChangesNothing(t *testing.T) {
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "it is said", func() bool { return strings.Contains(n.err.String(), "SIGHUP changes nothing") })
	if a := n.get(t, "/v1/items", key); a.StatusCode != 200 {
		t.Error(a.Status)
	}
}

// Their ends are noticed without a request, too.
func TestOutagesAreLoggedOnceEachWay(t *testing.T) {
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	redis := sandboxtest.Redis(t)
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1ms", "--redis-url", redis.URL())
	n.get(t, "/v1/items", key)
	logged := func(all ...string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(all, func(text string) bool { return strings.Count(n.err.String(), text) != 1 })
		}
	}
	requested := func(is func() bool) func() bool {
		return func() bool {
			n.get(t, "/v1/items", key)
			return is()
		}
	}
	if err := postgres.Kill(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "the outage is logged", requested(logged("Postgres is left alone for pages", "Postgres is left alone for keys")))
	if err := postgres.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "its end is logged", logged("again: pages are asked of Postgres", "again: keys are asked of Postgres"))
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "the outage of Redis is logged", requested(logged("Redis does not answer")))
	if err := redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, patience, "its end is logged", logged("again: Redis answers"))
}

func TestANodeThatWaitsForItsDatabaseSaysSo(t *testing.T) {
	n := launchNode(t, "postgres://127.0.0.1:1/none")
	within(t, patience, "it says why it is not ready", func() bool { return strings.Contains(n.err.String(), `"msg":"not ready"`) })
}
