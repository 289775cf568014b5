package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
			for range 15 { // of which each fails to reach the server
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

// If Postgres or Redis fails or hangs, one line is logged, and one when it answers again, also without requests. What follows from
// it is not logged beside it.
func TestAnOutageIsLoggedOnceEachWay(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	redis := sandboxtest.Redis(t)
	n := startFollowed(t, url, "--redis-url", redis.URL(), "--cache-ttl", "1ms")
	for _, of := range []struct {
		server, how string
		begin, end  func() error
	}{
		{"Postgres", "dies", func() error { return postgres.Kill(syscall.SIGQUIT) }, func() error { return postgres.Restart(context.Background()) }},
		{"Redis", "dies", redis.Kill, func() error { return redis.Restart(context.Background()) }},
		{"Redis", "hangs", redis.Freeze, redis.Thaw},
	} {
		for _, requests := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %s, with requests: %v", of.server, of.how, requests), func(t *testing.T) {
				before := len(n.err.String())
				logs := func(text string, up float64) {
					t.Helper()
					within(t, patience, text, func() bool {
						if requests {
							n.get(t, "/v1/items", key)
						}
						return strings.Contains(n.err.String()[before:], `"`+text) &&
							n.metric(t, "listedge_check_up", fmt.Sprintf("check=%q", strings.ToLower(of.server))) == up
					})
				}
				must(of.begin())
				logs(of.server+" is down", 0)
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
}

// logPipe is the standard error of a node: a pipe whose reader may stop, or go away.
type logPipe struct {
	path    string
	reader  *os.File
	stopped chan struct{} // closed once the reader has stopped
}

// startWithPipe starts a node whose log is read from a pipe.
func startWithPipe(t *testing.T, databaseURL string, args ...string) (*testNode, *logPipe) {
	t.Helper()
	l := &logPipe{path: filepath.Join(sandboxtest.Dir(t), "log")}
	must(syscall.Mkfifo(l.path, 0o600))
	l.reader = must1(os.OpenFile(l.path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
	t.Cleanup(func() { l.reader.Close() })
	stderr := os.NewFile(uintptr(must1(syscall.Open(l.path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0))), l.path)
	c := serveCommand(listedge, databaseURL, args...)
	c.Stderr = stderr
	p := startCommand(t, c)
	stderr.Close()
	l.read(p)
	n := awaitListening(t, p)
	n.awaitReady(t)
	hang := time.AfterFunc(patience, func() { p.signal(syscall.SIGKILL) }) // so that the test ends
	t.Cleanup(func() { hang.Stop() })
	return n, l
}

// read begins to read the log of the program.
func (l *logPipe) read(p *program) {
	stopped := make(chan struct{})
	l.stopped = stopped
	must(l.reader.SetReadDeadline(time.Time{}))
	go func() {
		defer close(stopped)
		_, _ = io.Copy(&p.err, l.reader)
	}()
}

// stop stops reading, and fills the pipe to its last byte.
func (l *logPipe) stop() {
	must(l.reader.SetReadDeadline(time.Unix(1, 0)))
	<-l.stopped
	filler := must1(syscall.Open(l.path, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0))
	defer syscall.Close(filler)
	for _, size := range []int{4096, 1} {
		for err := error(nil); !errors.Is(err, syscall.EAGAIN); {
			_, err = syscall.Write(filler, bytes.Repeat([]byte("\n"), size))
		}
	}
}

// answers checks that pages are served, and that the admin listener says that Redis is down.
func answers(t *testing.T, n *testNode, key string) {
	t.Helper()
	for range 20 {
		n.first(t, "/v1/items", key).page(t)
		if a := n.get(t, "/v1/items?cursor=wrong", key); a.StatusCode != 400 {
			t.Errorf("%s", a.Status)
		}
	}
	n.awaitCheck(t, "redis", "refused")
	if n.metric(t, "listedge_check_up", `check="redis"`) != 0 {
		t.Error("the metric says that Redis is up")
	}
}

// A reader that hangs, or is gone, costs lines of the log, and nothing else: neither pages nor checks nor the end of the process
// wait for it.
func TestALogThatNobodyReadsStopsNothing(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"it hangs": {"--access-log", "sampled"}, "it is gone": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			_, key := workspaceWithKey(t, url)
			r := sandboxtest.Redis(t)
			n, log := startWithPipe(t, url, append(flags, "--redis-url", r.URL())...)
			lost := func() bool { return n.metric(t, "listedge_log_lines_lost_total") > 0 }
			if name == "it is gone" {
				log.reader.Close()
			} else {
				log.stop()
			}
			must(r.Kill())
			answers(t, n, key)
			if name == "it is gone" {
				within(t, patience, "lines are lost", lost)
			} else {
				within(t, patience, "lines are lost", func() bool {
					for range 100 {
						n.get(t, "/v1/items?cursor=wrong", key, "X-Request-Id: "+strings.Repeat("x", 128))
					}
					return lost()
				})
				log.read(n.program)
				within(t, patience, "it is said", func() bool { return strings.Contains(n.err.String(), `"msg":"lines of the log are lost`) })
				log.stop()
			}
			if code := n.stop(); code != exitFine {
				t.Errorf("exit %d", code)
			}
		})
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
