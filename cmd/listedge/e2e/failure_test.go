package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// Redis and Postgres are killed, hang and come back while a node runs.

func TestStalePagesAreServedAndMarkedWhilePostgresIsDown(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	strangers := []string{newKeyFor(t, url, workspace), newKeyFor(t, url, workspace)} // one for each fault
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'Kept')", workspace)
	n := startFollowed(t, url, "--max-stale", "1h")
	n.first(t, "/v1/items", key).page(t)

	for i, fault := range []struct {
		name        string
		break_, fix func() error
	}{
		{"frozen", postgres.Freeze, postgres.Thaw},
		{"crashed", func() error { return postgres.Kill(syscall.SIGQUIT) }, func() error { return postgres.Restart(t.Context()) }},
	} {
		must(fault.break_())
		// A proven page is served as fresh until the proof is older than the bound.
		within(t, patience, "nothing is proven any more", func() bool {
			return n.mode() == "untrusted" && strings.Contains(n.get(t, "/v1/items", key).Header.Get("Cache-Status"), "stale-if-error")
		})
		for range 20 {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 || !strings.Contains(string(a.body), "Kept") {
				t.Fatalf("%s: %s %s", fault.name, a.Status, a.body)
			}
			if status := cacheStatus(a.Header); status != "listedge; fwd=stale; detail=stale-if-error" {
				t.Fatalf("%s: Cache-Status %s", fault.name, status)
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
		must(fault.fix())
		within(t, patience, "fresh pages again", func() bool {
			a := n.get(t, "/v1/items", key)
			return a.StatusCode == 200 && !strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
		})
	}
}

// The table of workspaces is locked, as by an ALTER TABLE that is not committed: look-ups of keys
// hang, and changes arrive. A revoked key stops long before the grace is over.
func TestARevokedKeyStopsWhileItsLookUpHangs(t *testing.T) {
	t.Parallel()
	address := database(t)
	workspace, key := workspaceWithKey(t, address)
	revoked := newKeyFor(t, address, workspace)
	n := startFollowed(t, address, "--key-grace", "1h")
	for _, k := range []string{key, revoked} {
		n.first(t, "/v1/items", k).page(t)
	}
	holder := connect(t, address)
	must1(holder.Exec(t.Context(), "BEGIN; LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE"))
	execute(t, address, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
	status := func(key string) int { return n.get(t, "/v1/items", key).StatusCode }
	within(t, patience, "the revoked key is refused", func() bool {
		if got := status(key); got != http.StatusOK {
			t.Fatalf("a key that was not changed gets %d", got)
		}
		return status(revoked) == http.StatusServiceUnavailable
	})
	must1(holder.Exec(t.Context(), "ROLLBACK"))
	within(t, patience, "it is known to be revoked", func() bool { return status(revoked) == http.StatusUnauthorized })
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
			_ = conn.SetDeadline(time.Now().Add(patience))
			ask := func(reader *bufio.Reader) (closed, ok bool) {
				if _, err := io.WriteString(conn, request); err != nil {
					return true, false
				}
				r, err := http.ReadResponse(reader, nil)
				if err != nil {
					return true, false
				}
				_, err = io.Copy(io.Discard, r.Body)
				return r.Close, err == nil && r.StatusCode == 200
			}
			for reader, closed, ok := bufio.NewReader(conn), false, true; !closed && ok; first() { // one connection, until the server asks to close it
				if closed, ok = ask(reader); ok {
					answered.Add(1)
				} else {
					lost.Add(1)
				}
			}
		})
	}
	busy.Wait()
	n.signal(syscall.SIGTERM)
	within(t, patience, "not ready", func() bool {
		r, err := http.Get(n.admin + "/readyz")
		if err != nil {
			return true // already closed
		}
		r.Body.Close()
		return r.StatusCode == 503
	})
	all.Wait()
	if <-n.ended; n.code != exitFine || lost.Load() != 0 || answered.Load() < clients {
		t.Errorf("exit %d, %d requests lost, %d answered: %s", n.code, lost.Load(), answered.Load(), n.err.String())
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("still listening")
	}
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
