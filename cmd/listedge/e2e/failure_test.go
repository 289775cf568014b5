package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/apikey"
)

// Redis and Postgres are killed, hang and come back while a node runs.

func TestStalePagesAreServedAndMarkedWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	stranger := newKeyFor(t, url, workspace)
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'Kept')", workspace)
	n := startFollowed(t, url, "--max-stale", "1h")
	n.first(t, "/v1/items", key).page(t)

	must(postgres.Freeze())
	// A proven page is served as fresh until the proof is older than the bound.
	within(t, patience, "nothing is proven any more", func() bool {
		return n.mode() == "untrusted" && strings.Contains(n.get(t, "/v1/items", key).Header.Get("Cache-Status"), "stale-if-error")
	})
	for range 20 {
		a := n.get(t, "/v1/items", key)
		if status := cacheStatus(a.Header); a.StatusCode != 200 || !strings.Contains(string(a.body), "Kept") ||
			status != "listedge; fwd=stale; detail=stale-if-error" {
			t.Fatalf("%s, %s: %s", a.Status, status, a.body)
		}
	}
	for what, a := range map[string]*answer{
		"a page that was never read":   n.get(t, "/v1/items?limit=3", key),
		"a key that cannot be checked": n.get(t, "/v1/items", stranger),
	} {
		if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.problem(t).Error.Code != "SERVICE_UNAVAILABLE" {
			t.Errorf("%s: %s %s", what, a.Status, a.body)
		}
	}
	within(t, patience, "ready, with a reason", func() bool {
		status, r := n.readiness(t)
		return status == http.StatusOK && r.Ready && r.Checks["postgres"] != "ok"
	})
	must(postgres.Thaw())
	within(t, patience, "fresh pages again", func() bool {
		a := n.get(t, "/v1/items", key)
		return a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
	})
}

func TestAProgramStopsQuicklyWithoutItsServers(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	redis := sandboxtest.Redis(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--redis-url", redis.URL())
	n.get(t, "/v1/items", key)
	must(redis.Freeze())
	must(postgres.Freeze())
	n.signal(syscall.SIGTERM)
	<-n.ended
}

// Floods of keys come from the address of a proxy that is not trusted, so from the address of all clients. Keys whose checksums
// are wrong reach neither Postgres nor Redis. Of unknown keys with right checksums Postgres gets no more queries than promised.
// A client whose valid key this node does not know yet is answered all the same. Package apikey tries texts without our form.
func TestAFloodOfUnknownKeysLocksNobodyOut(t *testing.T) {
	t.Parallel()
	const clients, newcomers = 16, 50
	url := database(t)
	workspace, known := workspaceWithKey(t, url)
	keys := newKeys(t, url, workspace, newcomers)
	server := sandboxtest.Redis(t)
	n := startNode(t, url, "--redis-url", server.URL(), "--freshness-bound", "0")
	redis := redistest.Client(t, server)
	commands := func() int {
		return must1(strconv.Atoi(regexp.MustCompile(`total_commands_processed:(\d+)`).FindStringSubmatch(redis.Info(t.Context(), "stats").Val())[1]))
	}
	flood := func(key func() string) (refused, limited *atomic.Int64, end func()) {
		var stop atomic.Bool
		refused, limited = new(atomic.Int64), new(atomic.Int64)
		var flood sync.WaitGroup
		for range clients {
			flood.Go(func() {
				for !stop.Load() {
					a, err := n.try("GET", "/v1/items", key())
					switch {
					case err != nil:
						t.Error(err)
						return
					case a.StatusCode == 401:
						refused.Add(1)
					case a.StatusCode == 429 && a.Header.Get("Retry-After") != "":
						limited.Add(1)
					case a.StatusCode != 503: // by a machine that is too busy
						t.Errorf("%s: %s", a.Status, a.body)
					}
				}
			})
		}
		within(t, patience, "the address is limited", func() bool { return limited.Load() > 2000 })
		return refused, limited, func() { stop.Store(true); flood.Wait() }
	}
	n.first(t, "/v1/items", known).page(t)
	sent := commands()
	refused, limited, end := flood(func() string { return "lk_0000000000000000000000000000000000000000" })
	end()
	if sent = commands() - sent; sent > 300 || n.metric(t, "listedge_key_lookups_total", `outcome="unknown"`) > 0 || refused.Load() < 200 {
		t.Errorf("%d commands to Redis for %d bad keys, or one was looked up; %d requests were limited", sent, refused.Load(), limited.Load())
	}
	n.get(t, "/v1/items", known).page(t)

	before, began := n.metric(t, "listedge_key_queries_total"), time.Now()
	refused, limited, end = flood(apikey.Generate)
	defer end()
	for _, key := range keys {
		within(t, patience, "an answer", func() bool {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 && a.StatusCode != 503 {
				t.Fatalf("%s: %s", a.Status, a.body)
			}
			return a.StatusCode == 200
		})
	}
	end()
	queries, took := n.metric(t, "listedge_key_queries_total")-before, time.Since(began).Seconds()
	// Queries for unknown keys, for new ones, to refresh the keys in use, and for the forms of imported ones.
	if most := 50 + 50*took + newcomers + 2*2.5*took + 4; queries > most {
		t.Errorf("%v queries in %.1f s, more than %.0f", queries, took, most)
	}
	t.Logf("%d refused and %d limited in %.1f s: %v queries", refused.Load(), limited.Load(), took, queries)
	if n.metric(t, "listedge_key_lookups_total", `outcome="unknown"`) == 0 {
		t.Error("none of them was looked up: the test did not try that")
	}
}

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
	flags := []string{"--redis-url", redis.URL(), "--freshness-bound", "0", "--cache-ttl", "200ms", "--cache-memory", "1MiB"}
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
	within(t, patience, "pages came from memory, Redis and Postgres: else the test did not try them", func() bool {
		answered := map[string]float64{}
		for i := range 8 { // in quick succession
			nodes[i%2].get(t, "/v1/items?limit=9", keys[0])
		}
		for _, n := range nodes {
			for _, tier := range []string{"memory", "redis", "origin"} {
				answered[tier] += n.metric(t, "listedge_http_request_duration_seconds_count", `outcome="`+tier+`"`)
			}
		}
		return answered["memory"] > 0 && answered["redis"] > 0 && answered["origin"] > 0
	})
	// A cursor of one workspace is a position in the other. It returns only rows of the key's
	// own workspace.
	cursor := *nodes[0].first(t, "/v1/items?limit=5", keys[0]).page(t).Page.NextCursor
	a := nodes[0].get(t, "/v1/items?limit=5&cursor="+cursor, keys[1])
	if strings.Contains(string(a.body), "owner0-") || len(a.page(t).Data) != 5 {
		t.Errorf("%s", a.body)
	}
}

// startWithDescriptors starts a node that may open this many files.
func startWithDescriptors(t *testing.T, descriptors int, databaseURL string, args ...string) *testNode {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", "ulimit -n " + strconv.Itoa(descriptors) + ` && exec "$0" "$@"`, listedge,
		"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--database-url", databaseURL, "--log-format", "json"}, args...)...)
	n := awaitListening(t, startCommand(t, c))
	n.awaitReady(t)
	return n
}

// hold opens this many connections and sends nothing on them.
func hold(t *testing.T, url string, connections int) (release func()) {
	t.Helper()
	var all []net.Conn
	release = func() {
		for _, c := range all {
			c.Close()
		}
		all = nil
	}
	t.Cleanup(func() { release() })
	for range connections {
		c := must1(net.Dial("tcp", strings.TrimPrefix(url, "http://")))
		all = append(all, c)
	}
	return release
}

// If clients open more connections than a node has descriptors, the node refuses them. It keeps running, its connections to the
// database keep working, and whoever holds connections to the admin listener keeps neither clients nor probes out.
func TestClientsDoNotTakeTheLastDescriptors(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	const descriptors = 200
	n := startWithDescriptors(t, descriptors, url, "--max-connections", "100000")
	limit := int(n.metric(t, "listedge_http_connections_limit"))
	if limit < 10 || limit > descriptors-16 {
		t.Fatalf("%d connections of %d descriptors", limit, descriptors)
	}
	if log := n.err.String(); !strings.Contains(log, "--max-connections") || !strings.Contains(log, `"maxConnections":`+strconv.Itoa(limit)) {
		t.Errorf("the log does not have the limit, %d: %s", limit, log)
	}
	kept := &http.Client{Transport: &http.Transport{}} // whose connections are idle meanwhile
	asks := func(client *http.Client, address string) (cacheStatus string) {
		t.Helper()
		r := must1(http.NewRequest(http.MethodGet, address, nil))
		r.Header.Set("X-API-Key", key)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatalf("%v: %s", err, n.err.String())
		}
		defer answer.Body.Close()
		if must1(io.Copy(io.Discard, answer.Body)); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", address, answer.Status)
		}
		return answer.Header.Get("Cache-Status")
	}
	asks(kept, n.url+"/v1/items?limit=1")
	asks(kept, n.admin+"/metrics")
	release := hold(t, n.url, 2*descriptors)
	within(t, patience, "all places are taken", func() bool { return n.metric(t, "listedge_http_connections") == float64(limit) })
	if from := asks(kept, n.url+"/v1/contacts?limit=1"); !strings.Contains(from, "fwd=uri-miss") {
		t.Errorf("a page that is not cached: %s", from)
	}
	release()
	within(t, patience, "a new client is answered", func() bool {
		a, err := n.try("GET", "/v1/items?limit=1", key)
		return err == nil && a.StatusCode == http.StatusOK
	})
	for range 3 {
		defer hold(t, n.admin, 500)()
		for _, address := range []string{n.admin + "/readyz", n.admin + "/metrics", n.url + "/v1/items?limit=1"} {
			asks(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, address)
		}
		asks(kept, n.admin+"/metrics")
	}
	unfinished := must1(net.Dial("tcp", strings.TrimPrefix(n.admin, "http://")))
	defer unfinished.Close()
	must(unfinished.SetDeadline(time.Now().Add(patience)))
	must1(io.WriteString(unfinished, "GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"))
	if _, err := io.ReadAll(unfinished); err != nil { // until the node closes it
		t.Errorf("a request whose body never comes keeps its place: %v", err)
	}
	if code := n.stop(); code != exitFine || strings.Contains(n.err.String(), "too many open files") {
		t.Errorf("exit %d: %s", code, n.err.String())
	}
}
