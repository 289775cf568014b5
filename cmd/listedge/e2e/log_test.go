package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

func TestFailedRequestsAreLoggedAtTheUsualLevel(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	n.get(t, "/v1/items", key, "X-Request-Id: fine")
	execute(t, url, "ALTER TABLE items DROP CONSTRAINT items_created_at_check") // a defect, not an outage
	execute(t, url, "INSERT INTO items (workspace_id, name, created_at) VALUES ($1, 'endless', 'infinity')", workspace)
	a := n.get(t, "/v1/items?search=endless", key, "X-Request-Id: broken")
	if a.StatusCode != 500 || a.problem(t).Error.Code != "INTERNAL_ERROR" || strings.Contains(string(a.body), "infinity") {
		t.Errorf("%s %s", a.Status, a.body)
	}
	n.stop() // the line is written behind its response
	if logged := n.err.String(); !strings.Contains(logged, `"requestId":"broken"`) || !strings.Contains(logged, `"level":"ERROR"`) ||
		strings.Contains(logged, "fine") {
		t.Errorf("logged for %s: %s", workspace, logged)
	}
}

func TestSIGHUPChangesNothing(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	n.signal(syscall.SIGHUP)
	if a := n.get(t, "/v1/items", key); a.StatusCode != 200 || n.stop() != exitFine {
		t.Errorf("%s, exit %d", a.Status, n.code)
	}
}

// Each setting of the access log, with the same six requests: a miss, a hit, a hit that is
// not in the sample, a 400, a 401 and a 429. All are traced, which logs none of them.
func TestTheAccessLogHasAllErrorsAndASample(t *testing.T) {
	t.Parallel()
	traces := startReceiver(t)
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	small := newKeyFor(t, url, workspace, "--rate", "0", "--burst", "1")
	for which, want := range map[string][]string{
		"off":     nil,
		"errors":  {"invalid", "unauthorised", "limited"},
		"sampled": {"miss", "hit", "invalid", "unauthorised", "limited"},
	} {
		n := startTraced(t, traces.env, url, append(lateProofs, "--access-log", which)...)
		n.awaitFollowed(t)
		for _, r := range []struct{ id, path, key string }{
			{"miss", "/v1/items?search=Secret", key}, {"hit", "/v1/items?search=Secret", key}, {"unsampled", "/v1/items?search=Secret", key},
			{"invalid", "/v1/items?cursor=Secret", key}, {"unauthorised", "/v1/items", key + "x"}, {"limited", "/v1/items", small},
		} {
			n.get(t, r.path, r.key, "X-Request-Id: "+r.id, "User-Agent: e2e")
		}
		raw(t, n, "GET /v1/items HTTP/1.1\r\nX-Api-Key "+key+"\r\n\r\n") // not a header: what fasthttp would log
		n.stop()                                                         // the last line is written behind its response
		var got []string
		logged := n.err.String()
		for line := range strings.Lines(logged) {
			var e struct {
				Time, Level, Msg, RequestID, Route, Outcome, KeyID, KeyPrefix, WorkspaceID, Limit, CacheStatus, Client, Agent string
				Status, Bytes                                                                                                 int
				Took, QueryTook                                                                                               float64
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time == "" || e.Level == "" || e.Msg == "" {
				t.Errorf("%v: %s", err, line)
			}
			if e.Msg != "request" || e.Route == "none" {
				continue
			}
			if which == "errors" && e.Status == 200 && e.Took >= 0.1 { // slow, as a busy machine is
				continue
			}
			got = append(got, e.RequestID)
			if e.Route != "items" || e.Took <= 0 || e.Outcome == "" || e.Status == 0 ||
				e.RequestID != "unauthorised" && (e.KeyID == "" || e.WorkspaceID != workspace || e.Limit == "") {
				t.Errorf("%s: %s", which, line)
			}
			if e.Client != "127.0.0.1" || e.Agent != "e2e" || e.Bytes == 0 || e.KeyPrefix != key[:9] && e.KeyPrefix != small[:9] {
				t.Errorf("%s: %s", which, line)
			}
			if e.RequestID == "miss" && (e.CacheStatus != "listedge; fwd=uri-miss" || e.QueryTook <= 0) {
				t.Errorf("%s: %s", which, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: logged are %v, want %v", which, got, want)
		}
		if strings.Contains(logged, key[9:]) || strings.Contains(logged, small) || strings.Contains(logged, "Secret") {
			t.Errorf("%s: a key, a search or a cursor is in the log: %s", which, logged)
		}
	}
}

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

// If Postgres or Redis fails or hangs, one line is logged, and one when it answers again, also without requests. What follows from
// it is not logged beside it, and the node stays ready.
func TestAnOutageIsLoggedOnceEachWay(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	redis := sandboxtest.Redis(t)
	n := startFollowed(t, url, "--redis-url", redis.URL(), "--cache-ttl", "1ms")
	for _, of := range []struct {
		server, how string
		requests    bool
		begin, end  func() error
	}{
		{"Postgres", "dies", true, func() error { return postgres.Kill(syscall.SIGQUIT) }, func() error { return postgres.Restart(context.Background()) }},
		{"Redis", "dies", false, redis.Kill, func() error { return redis.Restart(context.Background()) }},
		{"Redis", "hangs", true, redis.Freeze, redis.Thaw},
	} {
		t.Run(of.server+" "+of.how, func(t *testing.T) {
			before := len(n.err.String())
			logs := func(text string, up float64) {
				t.Helper()
				within(t, patience, text, func() bool {
					if of.requests {
						n.get(t, "/v1/items", key)
					}
					return strings.Contains(n.err.String()[before:], `"`+text) &&
						n.metric(t, "listedge_check_up", fmt.Sprintf("check=%q", strings.ToLower(of.server))) == up
				})
			}
			must(of.begin())
			logs(of.server+" is down", 0)
			if status, r := n.readiness(t); status != 200 || !r.Ready {
				t.Errorf("%d %+v", status, r)
			}
			must(of.end())
			logs("no longer: "+of.server+" is down", 1)
			n.awaitFollowed(t)
			about := slices.DeleteFunc(complaints(t, n.err.String()[before:]), func(line string) bool {
				return of.server == "Redis" && !strings.Contains(strings.ToLower(line), "redis") || strings.HasPrefix(line, "request failed")
			})
			if len(about) != 1 {
				t.Errorf("%d lines:\n%s", len(about), strings.Join(about, "\n"))
			}
		})
	}
}

// A reader of the log that is gone costs lines of it, and nothing else: neither pages nor checks nor the end of the process wait for it.
// Package node has tests of a reader that hangs.
func TestALogThatNobodyReadsStopsNothing(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	r := sandboxtest.Redis(t)
	reader, writer, err := os.Pipe()
	must(err)
	c := serveCommand(listedge, url, "--redis-url", r.URL())
	c.Stderr = writer
	p := startCommand(t, c)
	writer.Close()
	go func() { _, _ = io.Copy(&p.err, reader) }()
	n := awaitListening(t, p)
	n.awaitReady(t)
	reader.Close()
	must(r.Kill())
	n.awaitCheck(t, "redis", "refused")
	for range 20 {
		n.first(t, "/v1/items", key).page(t)
		if a := n.get(t, "/v1/items?cursor=wrong", key); a.StatusCode != 400 {
			t.Errorf("%s", a.Status)
		}
	}
	within(t, patience, "lines are lost", func() bool { return n.metric(t, "listedge_log_lines_lost_total") > 0 })
	defer time.AfterFunc(patience, func() { n.signal(syscall.SIGKILL) }).Stop() // a hang
	if code := n.stop(); code != exitFine {
		t.Errorf("exit %d", code)
	}
}

// Where a row in memory is not that of the database, the node counts it, says so without the row, and gives the tenant's rows up.
func TestANodeTellsThatRowsDiffer(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'Secret')", workspace)
	n := startFollowed(t, url, "--verify", "100ms")
	n.get(t, "/v1/items", key)
	verified := func() float64 { return n.metric(t, "listedge_replica_verified_pages_total", `list="items"`) }
	within(t, patience, "a verification", func() bool { return verified() > 0 })
	execute(t, url, `CREATE OR REPLACE FUNCTION listedge_fold(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN lower(t COLLATE "C")`)
	within(t, patience, "a mismatch", func() bool {
		n.get(t, "/v1/items", key) // the statement may have made the node give its rows up
		return n.metric(t, "listedge_replica_mismatches_total", `list="items"`, `kind="fold"`) > 0
	})
	within(t, patience, "its line", func() bool { return strings.Contains(n.err.String(), "rows in memory were not those of the database") })
	within(t, patience, "no rows in memory", func() bool { return n.metric(t, "listedge_replica_rows") == 0 })
	n.stop()
	for line := range strings.Lines(n.err.String()) {
		var entry struct{ Level, List, Tenant, Kind, Position, Held, Database string }
		if !strings.Contains(line, "rows in memory were not") {
			continue
		}
		must(json.Unmarshal([]byte(line), &entry))
		if entry.Level != "ERROR" || entry.List != "items" || entry.Tenant != workspace || entry.Kind != "fold" || len(entry.Position) != 11 ||
			len(entry.Held) != 11 || len(entry.Database) != 11 || entry.Held == entry.Database || strings.Contains(strings.ToLower(line), "secret") {
			t.Error(line)
		}
	}
}
