package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Each row of the contract's tables, on one node. The harness also checks every response
// against the OpenAPI document.

func TestAuthentication(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	suspended, suspendedKey := workspaceWithKey(t, url)
	itemsOnly := newKeyFor(t, url, workspace, "--scopes", "items:read")
	revoked := newKeyFor(t, url, workspace)
	expired := newKeyFor(t, url, workspace, "--expires-in", "1ms")
	execute(t, url, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
	command(t, "workspaces", "suspend", suspended, "--database-url", url)
	n := startNode(t, url)

	unknown := newKeyFor(t, url, workspace)
	execute(t, url, "DELETE FROM api_keys WHERE key_prefix = $1", unknown[:9])

	mistyped := []byte(key)
	mistyped[10] ^= 1
	refusals := map[string]bool{}
	for name, c := range map[string]struct {
		path, key string
		headers   []string
		status    int
		code      string
	}{
		"good key":              {"/v1/items", key, nil, 200, ""},
		"missing":               {"/v1/items", "", nil, 401, "UNAUTHORIZED"},
		"empty":                 {"/v1/items", "", []string{"X-API-Key: "}, 401, "UNAUTHORIZED"},
		"given twice":           {"/v1/items", key, []string{"X-API-Key: " + key}, 401, "UNAUTHORIZED"},
		"malformed":             {"/v1/items", "Bearer abc", nil, 401, "UNAUTHORIZED"},
		"mistyped":              {"/v1/items", string(mistyped), nil, 401, "UNAUTHORIZED"},
		"unknown":               {"/v1/items", unknown, nil, 401, "UNAUTHORIZED"},
		"revoked":               {"/v1/items", revoked, nil, 401, "UNAUTHORIZED"},
		"expired":               {"/v1/items", expired, nil, 401, "UNAUTHORIZED"},
		"in the query":          {"/v1/items?X-API-Key=" + key, "", nil, 401, "UNAUTHORIZED"},
		"scope missing":         {"/v1/contacts", itemsOnly, nil, 403, "FORBIDDEN"},
		"scope there":           {"/v1/items", itemsOnly, nil, 200, ""},
		"workspace suspended":   {"/v1/items", suspendedKey, nil, 403, "FORBIDDEN"},
		"key before parameters": {"/v1/items?limit=0", "", nil, 401, "UNAUTHORIZED"},
	} {
		a := n.get(t, c.path, c.key, c.headers...)
		if a.StatusCode != c.status || a.StatusCode != 200 && a.problem(t).Error.Code != c.code {
			t.Errorf("%s: %s %s, want %d %s", name, a.Status, a.body, c.status, c.code)
		}
		for header := range a.Header {
			if refused := c.status > 400; refused && (strings.Contains(strings.ToLower(header), "ratelimit") || a.Header.Get("Cache-Control") != "no-store") {
				t.Errorf("%s: %v", name, a.Header)
			}
		}
		if name == "unknown" || name == "revoked" || name == "expired" {
			refusals[a.problem(t).Error.Message] = true
		}
	}
	if len(refusals) != 1 {
		t.Errorf("unknown, revoked and expired differ: %v", refusals)
	}

	command(t, "workspaces", "resume", suspended, "--database-url", url)
	within(t, patience, "the resumed workspace is served", func() bool { return n.get(t, "/v1/items", suspendedKey).StatusCode == 200 })
}

// Package edge tries what is not HTTP. A request that drips is ended in time.
func TestARequestThatDripsIsAnswered(t *testing.T) {
	t.Parallel()
	a := raw(t, startNode(t, database(t)), "GET /v1/items HTTP/1.1\r\nHost: a\r\nX-Api-Key: ")
	if p := a.problem(t); a.StatusCode != 408 || p.Error.Code != "REQUEST_FAILED" || p.RequestID == "" || p.RequestID != a.Header.Get("X-Request-Id") {
		t.Errorf("%s: %s", a.Status, a.body)
	}
}

func TestHeadersOfAPage(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name, description) SELECT $1, 'Item ' || g, repeat('tea ', 20) FROM generate_series(1, 60) g", workspace)
	n := startFollowed(t, url, lateProofs...)

	var key string
	var first *answer
	within(t, patience, "a page", func() bool { // another key, of which no token was used, if a busy machine does not read it in time
		key = newKeyFor(t, url, workspace, "--rate", "0.5", "--burst", "100000")
		first = n.get(t, "/v1/items?limit=10", key)
		return first.StatusCode != 503
	})
	for header, want := range map[string]string{
		"Content-Type":          `^application/json$`,
		"ETag":                  `^W/"[A-Za-z0-9_-]{22}"$`,
		"Cache-Control":         `^private, no-cache$`,
		"Vary":                  `^X-API-Key, Accept-Encoding$`,
		"Age":                   `^\d$`, // on a slow machine
		"Cache-Status":          `^listedge; fwd=uri-miss; proof-ms=\d+$`,
		"Link":                  `^<\?limit=10&cursor=[A-Za-z0-9_-]+>; rel="next"$`,
		"RateLimit-Policy":      `^"key";q=100000;w=200000;rate=0.5$`,
		"RateLimit":             `^"key";r=99999;t=[12]$`,
		"X-RateLimit-Limit":     `^100000$`,
		"X-RateLimit-Remaining": `^99999$`,
		"X-RateLimit-Reset":     `^[12]$`,
		"X-Request-Id":          `^[a-z0-9]{16}-[0-9a-z]+$`,
	} {
		if got := first.Header.Get(header); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %q, want %s", header, got, want)
		}
	}
	if again := n.get(t, "/v1/items?limit=10", key); cacheStatus(again.Header) != "listedge; hit; detail=memory" ||
		again.Header.Get("ETag") != first.Header.Get("ETag") {
		t.Errorf("second answer: %v", again.Header)
	}
	if last := n.first(t, "/v1/items?limit=100", key); last.Header.Get("Link") != "" || last.page(t).Page.HasMore {
		t.Error("the last page leads on")
	}
	for _, ask := range []struct{ method, header string }{{"HEAD", "Accept: */*"}, {"GET", "Accept-Encoding: identity"},
		{"GET", "Accept-Encoding: br, gzip;q=0.5"},
		{"GET", "If-None-Match: " + first.Header.Get("ETag")}} {
		a := n.request(t, ask.method, "/v1/items?limit=10", key, ask.header, "X-Request-Id: Mine-1.2:3_4")
		rows := a.StatusCode == 200 && ask.method == "GET"
		if a.Header.Get("ETag") != first.Header.Get("ETag") || a.Header.Get("X-Request-Id") != "Mine-1.2:3_4" || rows != (len(a.body) > 0) ||
			(a.StatusCode == 304) != strings.HasPrefix(ask.header, "If-") || (a.Header.Get("Content-Encoding") == "gzip") != strings.Contains(ask.header, "gzip") {
			t.Errorf("%v: %s, %d bytes, %v", ask, a.Status, len(a.body), a.Header)
		}
		if plain, err := a.unpacked(); rows && (err != nil || !strings.Contains(string(plain), `"name":"Item `)) {
			t.Errorf("%v: %v: %s", ask, err, plain)
		}
	}
}

// A refused request costs no token and touches nothing else. Two keys share the limit of their workspace.
func TestLimits(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--rate", "0.001", "--burst", "8", "--database-url", url))
	key := newKeyFor(t, url, workspace, "--rate", "0.01", "--burst", "5")
	other := newKeyFor(t, url, workspace, "--rate", "0.01", "--burst", "5")
	blocked := newKeyFor(t, url, workspace, "--rate", "0")
	usual := newKeyFor(t, url, strings.TrimSpace(command(t, "workspaces", "create", "--name", "x", "--database-url", url)))
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1h") // so that pages stay in memory
	for i, c := range []struct {
		times, status           int
		path, key, limit, state string // of the last response
	}{
		{5, 200, "/v1/items", key, "5 0", `"key";r=0;t=\d+, "workspace";r=3;t=\d+`},
		{21, 429, "/v1/items?limit=0", key, "5 0", `"key";r=0;t=RETRY, "workspace";r=3;t=\d+`},
		{3, 200, "/v1/contacts", other, "8 0", `"key";r=2;t=\d+, "workspace";r=0;t=\d+`},
		{1, 429, "/v1/contacts", other, "8 0", `"key";r=2;t=\d+, "workspace";r=0;t=RETRY`},
		{1, 429, "/v1/items", blocked, "0 0", `"key";r=0;t=RETRY`},
		{1, 400, "/v1/items?limit=0", usual, "100 99", `"key";r=99;t=\d+`}, // the check of the limit comes first
	} {
		var a *answer
		for range c.times {
			if a = n.get(t, c.path, c.key); a.StatusCode != c.status {
				t.Fatalf("%d: %s, want %d", i, a.Status, c.status)
			}
		}
		retry, limit := a.Header.Get("Retry-After"), a.Header.Get("X-RateLimit-Limit")+" "+a.Header.Get("X-RateLimit-Remaining")
		if !regexp.MustCompile("^"+strings.Replace(c.state, "RETRY", retry, 1)+"$").MatchString(a.Header.Get("RateLimit")) || limit != c.limit ||
			(c.status == 429) != (retry != "" && a.problem(t).Error.Code == "RATE_LIMITED") {
			t.Errorf("%d: %s %v", i, a.Status, a.Header)
		}
		if got := a.Header.Get("RateLimit-Policy"); c.key == key && got != `"key";q=5;w=500;rate=0.01, "workspace";q=8;w=8000;rate=0.001` {
			t.Error(got)
		}
	}
}

// raw sends bytes as they are and reads one response.
func raw(t *testing.T, n *testNode, request string) *answer {
	t.Helper()
	conn := must1(net.Dial("tcp", strings.TrimPrefix(n.url, "http://")))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	must1(io.WriteString(conn, request))
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	return &answer{r, must1(io.ReadAll(r.Body))}
}
