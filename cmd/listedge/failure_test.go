package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/sandboxtest"
)

// Redis and Postgres are killed, hang and come back while a node runs.

// fastEnough is far above what a degraded answer takes and far below what a
// client would take for a hang. The exact budgets are tested in the packages
// that keep them.
const fastEnough = 5 * time.Second

func TestRedisHangingDyingAndComingBackEmpty(t *testing.T) {
	t.Parallel()
	url := database(t)
	redis := sandboxtest.Redis(t)
	workspace, _ := workspaceWithKey(t, url)
	key := newKeyFor(t, url, workspace, "--rate", "100000", "--burst", "15") // too small a burst to be leased from: every request asks
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 500) g", workspace)
	n := startNode(t, url, "--redis-url", redis.URL(), "--cache-ttl", "1ms", "--freshness-bound", "0") // every request goes to Redis
	serve := func(what string) {
		t.Helper()
		for i := range 30 {
			began := time.Now()
			a := n.get(t, "/v1/items?limit="+strconv.Itoa(1+i), key)
			for deadline := began.Add(patience); a.StatusCode == 429 && time.Now().Before(deadline); { // calls under way may yet take the tokens
				time.Sleep(10 * time.Millisecond)
				began = time.Now()
				a = n.get(t, "/v1/items?limit="+strconv.Itoa(1+i), key)
			}
			if a.StatusCode != 200 || len(a.page(t).Data) != 1+i {
				t.Fatalf("%s: %s %s", what, a.Status, a.body)
			}
			if took := time.Since(began); took > fastEnough {
				t.Errorf("%s: took %s", what, took)
			}
		}
	}
	serve("Redis well")
	for _, fault := range []struct {
		name        string
		break_, fix func() error
	}{
		{"frozen", redis.Freeze, redis.Thaw},
		{"killed", redis.Kill, func() error { return redis.Restart(t.Context()) }},
	} {
		if err := fault.break_(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "the limiter decides without Redis", func() bool {
			serve("Redis " + fault.name)
			return n.metric(t, "listedge_limiter_breaker_open") == 1
		})
		if err := fault.fix(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "Redis is used again", func() bool {
			serve("Redis back")
			return n.metric(t, "listedge_limiter_breaker_open")+n.metric(t, "listedge_cache_redis_breaker_open") == 0
		})
	}
	if n.metric(t, "listedge_limiter_decisions_total", `source="local_fallback"`) == 0 {
		t.Error("no decision was made locally: the test did not try it")
	}
}

func TestStalePagesAreServedAndMarkedWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	strangers := []string{newKeyFor(t, url, workspace), newKeyFor(t, url, workspace)} // one for each fault
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'Kept')", workspace)
	n := startNode(t, url, "--max-stale", "1h")
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	n.get(t, "/v1/items", key).page(t)

	for i, fault := range []struct {
		name        string
		break_, fix func() error
	}{
		{"frozen", postgres.Freeze, postgres.Thaw},
		{"crashed", func() error { return postgres.Kill(syscall.SIGQUIT) }, func() error { return postgres.Restart(t.Context()) }},
	} {
		if err := fault.break_(); err != nil {
			t.Fatal(err)
		}
		// A proven page is served as fresh until the proof is older than the bound.
		within(t, patience, "nothing is proven any more", func() bool {
			return n.mode() == "untrusted" && strings.Contains(n.get(t, "/v1/items", key).Header.Get("Cache-Status"), "stale-if-error")
		})
		for range 20 {
			began := time.Now()
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 || !strings.Contains(string(a.body), "Kept") {
				t.Fatalf("%s: %s %s", fault.name, a.Status, a.body)
			}
			if status := cacheStatus(a.Header); status != "listedge; fwd=stale; detail=stale-if-error" {
				t.Fatalf("%s: Cache-Status %s", fault.name, status)
			}
			if took := time.Since(began); took > fastEnough {
				t.Errorf("%s: took %s", fault.name, took)
			}
		}
		// A page that was never read gets 503 with Retry-After.
		a := n.get(t, "/v1/items?limit=3", key)
		if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.problem(t).Error.Code != "SERVICE_UNAVAILABLE" {
			t.Errorf("%s: %s %s", fault.name, a.Status, a.body)
		}
		if a := n.get(t, "/v1/items", strangers[i]); a.StatusCode != 503 || a.problem(t).Error.Code != "SERVICE_UNAVAILABLE" {
			t.Errorf("%s: a key that cannot be checked: %s %s", fault.name, a.Status, a.body)
		}
		within(t, patience, "ready, with a reason", func() bool {
			status, r := n.readiness(t)
			return status == http.StatusOK && r.Ready && r.Checks["postgres"] != "ok"
		})
		if err := fault.fix(); err != nil {
			t.Fatal(err)
		}
		within(t, patience, "fresh pages again", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
		})
	}
}

func TestANodeStartsBeforeItsDatabaseAndBecomesReadyByItself(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	if err := postgres.Kill(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	n := launchNode(t, url)
	r, err := http.Get(n.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != 503 {
		t.Errorf("ready without a database: %s", r.Status)
	}
	if a := n.get(t, "/v1/items", key); a.StatusCode != 503 {
		t.Errorf("%s %s", a.Status, a.body)
	}
	if err := postgres.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitReady(t)
	within(t, patience, "200", func() bool { return n.get(t, "/v1/items", key).StatusCode == 200 })
}

func TestTenThousandBadKeysReachNeitherPostgresNorRedis(t *testing.T) {
	t.Parallel()
	url := database(t)
	server := sandboxtest.Redis(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--redis-url", server.URL(), "--freshness-bound", "0") // whose heartbeats would be counted
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	n.get(t, "/v1/items", key)
	scripts := func() int {
		info, err := client.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		for line := range strings.Lines(info) {
			if name, stats, ok := strings.Cut(line, ":calls="); ok && !strings.HasSuffix(name, "_info") && !strings.HasSuffix(name, "_ping") &&
				!strings.Contains(name, "hello") && !strings.Contains(name, "client") {
				var c int
				_, _ = fmt.Sscan(strings.SplitN(stats, ",", 2)[0], &c)
				calls += c
			}
		}
		return calls
	}
	before, fetched := scripts(), n.metric(t, "listedge_origin_fetches_total")
	loaded := func() float64 { return n.metric(t, "listedge_key_lookups_total", `outcome="unknown"`) }

	statuses := map[int]int{}
	for i := range 10_000 {
		bad := fmt.Sprintf("lk_%040d", i) // well-formed but for the checksum
		a, err := n.try("GET", "/v1/items", bad)
		if err != nil {
			t.Fatal(err)
		}
		if statuses[a.StatusCode]++; statuses[a.StatusCode] == 1 {
			if err := conforms(a); err != nil {
				t.Fatal(err)
			}
		}
		if a.StatusCode == 429 && a.Header.Get("Retry-After") == "" {
			t.Fatal("429 without Retry-After")
		}
	}
	if statuses[401] < 200 || statuses[429] == 0 || statuses[401]+statuses[429] != 10_000 {
		t.Errorf("statuses %v", statuses)
	}
	if after := scripts(); after-before > 500 { // the node's own calls, about one a second
		t.Errorf("%d Redis commands for 10,000 requests", after-before)
	}
	if n.metric(t, "listedge_origin_fetches_total") != fetched || loaded() != 0 {
		t.Error("Postgres was queried")
	}
	// Requests with a known key are served all the time, whatever the other keys do.
	if a := n.get(t, "/v1/items", key); a.StatusCode != 200 {
		t.Errorf("%s", a.Status)
	}
}

func TestUnknownWellFormedKeysAreRememberedAndLimited(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	var unknown []string
	for range 3 {
		unknown = append(unknown, newKeyFor(t, url, workspace))
	}
	execute(t, url, "DELETE FROM api_keys WHERE rate_per_second < 1000")
	n := startNode(t, url)
	n.get(t, "/v1/items", key)
	for i := range 60 {
		if a := n.get(t, "/v1/items", unknown[i%3]); a.StatusCode != 401 {
			t.Fatalf("%s", a.Status)
		}
	}
	if got := n.metric(t, "listedge_key_lookups_total", `outcome="unknown"`); got != 60 {
		t.Errorf("%v requests with unknown keys were counted", got)
	}
	// Queries also refresh the known key, twice or so a second.
	if got := n.metric(t, "listedge_key_queries_total"); got > 30 {
		t.Errorf("%v queries for three unknown keys", got)
	}
}

func TestSIGTERMLosesNoRequestOfBusyClients(t *testing.T) {
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 100) g", workspace)
	n := startNode(t, url, "--drain", "1s")
	address := strings.TrimPrefix(n.url, "http://")
	request := "GET /v1/items HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + key + "\r\n\r\n"

	const clients = 200
	var answered, lost atomic.Int64
	var busy sync.WaitGroup // until every client has had its first answer
	var all sync.WaitGroup
	busy.Add(clients)
	for range clients {
		all.Go(func() {
			first := sync.OnceFunc(busy.Done)
			defer first()
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			reader := bufio.NewReader(conn)
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			for { // one keep-alive connection, until the server asks to close it
				if _, err := io.WriteString(conn, request); err != nil {
					lost.Add(1)
					return
				}
				r, err := http.ReadResponse(reader, nil)
				if err != nil {
					lost.Add(1)
					return
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
					lost.Add(1)
					return
				}
				answered.Add(1)
				first()
				if r.Close {
					return
				}
			}
		})
	}
	busy.Wait()
	n.cancel()
	within(t, patience, "not ready", func() bool {
		r, err := http.Get(n.admin + "/readyz")
		if err != nil {
			return true // already closed
		}
		r.Body.Close()
		return r.StatusCode == 503
	})
	all.Wait()
	if code := n.stop(); code != exitFine || lost.Load() != 0 || answered.Load() < clients {
		t.Errorf("exit %d, %d requests lost, %d answered: %s", code, lost.Load(), answered.Load(), n.err.String())
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("still listening")
	}
}

// Two nodes on one Redis: a page that one has read, the other gets from Redis.
func TestASecondNodeTakesPagesFromRedis(t *testing.T) {
	url := database(t)
	redis := sandboxtest.Redis(t)
	_, key := workspaceWithKey(t, url)
	flags := []string{"--redis-url", redis.URL(), "--cache-ttl", "1m"}
	a, b := startNode(t, url, flags...), startNode(t, url, flags...)
	for _, n := range []*testNode{a, b} {
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	}
	first := a.get(t, "/v1/contacts", key)
	var second *answer
	within(t, patience, "the page is in Redis", func() bool {
		second = b.get(t, "/v1/contacts", key)
		status := cacheStatus(second.Header)
		if status == "listedge; fwd=uri-miss" { // the first node's store was still under way
			return false
		}
		return true
	})
	if first.Header.Get("ETag") != second.Header.Get("ETag") {
		t.Error("ETags of two nodes differ")
	}
	c := startNode(t, url, flags...)
	within(t, patience, "followed", func() bool { return c.mode() == "followed" })
	if got := cacheStatus(c.get(t, "/v1/contacts", key).Header); got != "listedge; hit; detail=redis" {
		t.Error(got)
	}
	// A bucket that one node empties is empty on the other.
	workspace := strings.TrimSpace(command(t, "workspaces", "create", "--name", "w", "--database-url", url))
	small := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "6")
	for i := range 6 {
		if r := []*testNode{a, b, c}[i%3].get(t, "/v1/items", small); r.StatusCode != 200 {
			t.Fatalf("request %d: %s", i, r.Status)
		}
	}
	for _, n := range []*testNode{a, b, c} {
		if r := n.get(t, "/v1/items", small); r.StatusCode != 429 {
			t.Errorf("%s", r.Status)
		}
	}
}

func TestAProgramStopsQuicklyWithoutItsServers(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	redis := sandboxtest.Redis(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url, "--redis-url", redis.URL())
	n.get(t, "/v1/items", key)
	if err := redis.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Freeze(); err != nil {
		t.Fatal(err)
	}
	n.cancel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-n.ended:
	case <-ctx.Done():
		t.Fatalf("does not stop: %s", n.err.String())
	}
}
