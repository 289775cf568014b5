package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
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
		if c.status == 401 || c.status == 403 {
			for header := range a.Header {
				if strings.Contains(strings.ToLower(header), "ratelimit") {
					t.Errorf("%s: %s on a %d", name, header, c.status)
				}
			}
			if a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: Cache-Control %q", name, a.Header.Get("Cache-Control"))
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

func TestWhatTheHTTPLayerRefusesHasTheSameBody(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := startNode(t, url)
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"no HTTP":            {"hello\r\n\r\n", 400},
		"header too large":   {"GET /v1/items HTTP/1.1\r\nHost: a\r\nX-Filler: " + strings.Repeat("x", 20_000) + "\r\n\r\n", 431},
		"huge body":          {"POST /v1/items HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n", 413},
		"request that drips": {"GET /v1/items HTTP/1.1\r\nHost: a\r\nX-Api-Key: ", 408},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the last one takes as long as a request may
			a := raw(t, n, c.request)
			p := a.problem(t)
			if a.StatusCode != c.status || p.Error.Code != "REQUEST_FAILED" || p.RequestID == "" || p.RequestID != a.Header.Get("X-Request-Id") {
				t.Errorf("%s: %s", a.Status, a.body)
			}
			if a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", a.Header)
			}
		})
	}
}

func TestHeadersOfAPage(t *testing.T) {
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
	t.Run("HEAD", func(t *testing.T) {
		head := n.request(t, "HEAD", "/v1/items?limit=10", key)
		if head.StatusCode != 200 || len(head.body) != 0 || head.Header.Get("ETag") != first.Header.Get("ETag") ||
			head.ContentLength < 1000 || head.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s, length %d, %v", head.Status, head.ContentLength, head.Header)
		}
		if head := n.request(t, "HEAD", "/v1/items?limit=0", key); head.StatusCode != 400 || len(head.body) != 0 {
			t.Errorf("%s %s", head.Status, head.body)
		}
	})
	t.Run("conditional", func(t *testing.T) {
		a := n.get(t, "/v1/items?limit=10", key, "If-None-Match: "+first.Header.Get("ETag"))
		if a.StatusCode != 304 || len(a.body) != 0 || a.Header.Get("ETag") == "" || a.Header.Get("Vary") == "" || a.Header.Get("Cache-Control") == "" ||
			a.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s with %d bytes and %v", a.Status, len(a.body), a.Header)
		}
	})
	t.Run("gzip", func(t *testing.T) {
		plain := n.get(t, "/v1/items?limit=10", key, "Accept-Encoding: identity", "X-Request-Id: same")
		packed := n.get(t, "/v1/items?limit=10", key, "Accept-Encoding: br, gzip;q=0.5", "X-Request-Id: same")
		if plain.Header.Get("Content-Encoding") != "" || packed.Header.Get("Content-Encoding") != "gzip" || len(packed.body) >= len(plain.body)/2 {
			t.Fatalf("%d bytes plain, %d packed, %v", len(plain.body), len(packed.body), packed.Header)
		}
		if unpacked, err := packed.unpacked(); err != nil || string(unpacked) != string(plain.body) {
			t.Errorf("%v: %.80q", err, unpacked)
		}
		if packed.Header.Get("ETag") != plain.Header.Get("ETag") {
			t.Error("the ETag depends on the encoding")
		}
	})
	t.Run("request id", func(t *testing.T) {
		if a := n.get(t, "/v1/items", key, "X-Request-Id: Mine-1.2:3_4"); a.page(t).RequestID != "Mine-1.2:3_4" || a.Header.Get("X-Request-Id") != "Mine-1.2:3_4" {
			t.Errorf("%v", a.Header)
		}
		if a := n.get(t, "/v1/items", key, "X-Request-Id: -x"); a.page(t).RequestID == "-x" {
			t.Error("took over an id that is not valid")
		}
		if a := n.get(t, "/nowhere", key, "X-Request-Id: lost"); a.problem(t).RequestID != "lost" {
			t.Errorf("%s", a.body)
		}
		if a := n.get(t, "/docs", "", "X-Request-Id: reader"); a.Header.Get("X-Request-Id") != "reader" {
			t.Errorf("%v", a.Header)
		}
	})
}

func TestAgeCountsFromTheQuery(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--cache-ttl", "1m", "--freshness-bound", "0")
	n.get(t, "/v1/items", key)
	within(t, patience, "Age 1", func() bool {
		a := n.get(t, "/v1/items", key)
		return a.Header.Get("Age") == "1" && regexp.MustCompile(`^listedge; hit; detail=ttl; proof-ms=1\d{3}$`).MatchString(a.Header.Get("Cache-Status"))
	})
}

func TestLimits(t *testing.T) {
	url := database(t)
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--rate", "0.001", "--burst", "8", "--database-url", url))
	key := newKeyFor(t, url, workspace, "--rate", "0.01", "--burst", "5")
	other := newKeyFor(t, url, workspace, "--rate", "0.01", "--burst", "5")
	blocked := newKeyFor(t, url, workspace, "--rate", "0")
	n := startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "1h") // so that pages stay in memory

	for i := range 5 {
		a := n.get(t, "/v1/items", key)
		if a.StatusCode != 200 || a.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(4-i) {
			t.Fatalf("request %d: %s, %v", i, a.Status, a.Header)
		}
		if got := a.Header.Get("RateLimit-Policy"); got != `"key";q=5;w=500;rate=0.01, "workspace";q=8;w=8000;rate=0.001` {
			t.Error(got)
		}
	}
	// The key is exhausted; a refused request costs no token and touches nothing else.
	a := n.get(t, "/v1/items?limit=0", key)
	retry, _ := strconv.Atoi(a.Header.Get("Retry-After"))
	if a.StatusCode != 429 || a.problem(t).Error.Code != "RATE_LIMITED" || retry < 90 || retry > 100 {
		t.Errorf("%s %s, Retry-After %s", a.Status, a.body, a.Header.Get("Retry-After"))
	}
	if got, want := a.Header.Get("RateLimit"), `"key";r=0;t=`+strconv.Itoa(retry)+`, "workspace";r=3;t=`; !strings.HasPrefix(got, want) {
		t.Errorf("RateLimit %s, want %s…", got, want)
	}
	if a.Header.Get("X-RateLimit-Remaining") != "0" || a.Header.Get("X-RateLimit-Reset") != strconv.Itoa(retry) || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", a.Header)
	}
	for range 20 {
		n.get(t, "/v1/items", key)
	}
	// The workspace has three tokens left for its other key, which has five.
	for i := range 3 {
		if a := n.get(t, "/v1/contacts", other); a.StatusCode != 200 {
			t.Fatalf("request %d: %s", i, a.Status)
		}
	}
	a = n.get(t, "/v1/contacts", other)
	if a.StatusCode != 429 || !strings.HasPrefix(a.Header.Get("RateLimit"), `"key";r=2;`) || !strings.Contains(a.Header.Get("RateLimit"), `"workspace";r=0;t=`) ||
		a.Header.Get("X-RateLimit-Limit") != "8" || a.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("%s %v", a.Status, a.Header)
	}
	if a := n.get(t, "/v1/items", blocked); a.StatusCode != 429 || a.Header.Get("Retry-After") == "" ||
		a.Header.Get("RateLimit") != `"key";r=0;t=`+a.Header.Get("Retry-After") {
		t.Errorf("rate 0: %s %v", a.Status, a.Header)
	}
	// Wrong parameters cost a token: the check of the limit comes first.
	if got := n.get(t, "/v1/items?limit=0", newKeyFor(t, url,
		strings.TrimSpace(command(t, "workspaces", "create", "--name", "x", "--database-url", url)))); got.StatusCode != 400 ||
		got.Header.Get("X-RateLimit-Remaining") != "99" || got.Header.Get("X-RateLimit-Limit") != "100" {
		t.Errorf("%s %v", got.Status, got.Header)
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
