package e2e

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// explained returns what `listedge explain` prints about a request to the node.
func explained(t *testing.T, n *testNode, id string) string {
	t.Helper()
	return command(t, "explain", id, "--node", n.admin)
}

func TestExplainSaysWhyRefusedStaleOrSlow(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	workspace, key := workspaceWithKey(t, url)
	small := newKeyFor(t, url, workspace, "--rate", "0.001", "--burst", "1")
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'Secret')", workspace)
	n := startFollowed(t, url, "--freshness-bound", "5s") // its end is waited for

	says := func(id string, parts ...string) {
		t.Helper()
		said := explained(t, n, id)
		for _, part := range append(parts, "keyId: ", "workspaceId: "+workspace) {
			if !strings.Contains(said, part) {
				t.Errorf("%s: %q is missing in %s", id, part, said)
			}
		}
		if strings.Contains(said, key) || strings.Contains(said, small) || strings.Contains(said, "Secret") {
			t.Errorf("%s: a key or a search is shown: %s", id, said)
		}
	}
	n.first(t, "/v1/items?search=Secret", key, "X-Request-Id: a-miss").page(t)
	says("a-miss", "route: items\nstatus: 200\n", "cacheStatus: listedge; fwd=uri-miss", "missed: not-held\n", "queryTook: ", ";rate=100000")
	n.get(t, "/v1/items?search=Secret", key, "X-Request-Id: a-hit").page(t) // the connection's first
	says("a-hit", "tier: memory\n")

	n.first(t, "/v1/items", key).page(t) // so that a slow server does not take the one token
	n.first(t, "/v1/items", small).page(t)
	if a := n.get(t, "/v1/items", small, "X-Request-Id: one-too-many"); a.StatusCode != 429 {
		t.Fatal(a.Status)
	}
	says("one-too-many", "status: 429\n", "limit: memory\nrefusedBy: key\nretryAfter: ", "rateLimitPolicy: key;q=1;w=1000;rate=0.001\n", "rateLimit: key;r=0;t=")

	must(postgres.Kill(syscall.SIGQUIT))
	i := 0
	within(t, patience, "a stale page is served", func() bool {
		i++
		a := n.get(t, "/v1/items?search=Secret", key, "X-Request-Id: stale-"+strconv.Itoa(i))
		return strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error")
	})
	says("stale-"+strconv.Itoa(i), "detail=stale-if-error\n", "cause: ")
}

func TestExplainOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	n := startNode(t, database(t))
	refused(t, exitFailed, "does not remember a request never-seen", "explain", "never-seen", "--node", n.admin)
}

func TestReadySaysWhatTheNodeSays(t *testing.T) {
	t.Parallel()
	n := startNode(t, database(t))
	if said := command(t, "ready", "--node", n.admin); said != "ready\n" {
		t.Error(said)
	}
	lost := launchNode(t, "postgres://127.0.0.1:1/none")
	refused(t, exitFailed, "postgres: ", "ready", "--node", lost.admin, "--wait", "500ms")
	for admin, want := range map[string]string{
		lost.admin:           "postgres: failed to connect",
		"http://127.0.0.1:1": "ask the node: ",
		n.url:                "ask the node: /readyz is not the response of a node",
	} {
		refused(t, exitFailed, want, "ready", "--node", admin)
	}
}

// A node starts before its database and becomes ready by itself. Whoever waits learns when:
// `listedge ready --wait`, and systemd.
func TestReadyIsAwaited(t *testing.T) {
	t.Parallel()
	postgres, url := privateDatabase(t)
	_, key := workspaceWithKey(t, url)
	must(postgres.Kill(syscall.SIGQUIT))
	socket := filepath.Join(sandboxtest.Dir(t), "notify")
	systemd := must1(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))
	defer systemd.Close()
	n := launchProgram(t, listedge, []string{"NOTIFY_SOCKET=" + socket}, url)
	waiting := start(t, "ready", "--node", n.admin, "--wait", patience.String())
	n.awaitCheck(t, "postgres", "failed to connect")
	if a := n.get(t, "/v1/items", key); a.StatusCode != 503 {
		t.Errorf("without a database: %s %s", a.Status, a.body)
	}
	must(postgres.Restart(t.Context()))
	if <-waiting.ended; waiting.code != exitFine || waiting.out.String() != "ready\n" {
		t.Errorf("exit %d: %s", waiting.code, waiting.err.String())
	}
	within(t, patience, "200", func() bool { return n.get(t, "/v1/items", key).StatusCode == 200 })
	must(systemd.SetReadDeadline(time.Now().Add(patience)))
	said := make([]byte, 100)
	if length, err := systemd.Read(said); err != nil || string(said[:length]) != "READY=1" {
		t.Errorf("the notification to systemd is %q (%v)", said[:length], err)
	}
}

// systemd does not read what is sent to it: the node is ready all the same, and ends.
func TestASystemdThatDoesNotReadDelaysNoEnd(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(sandboxtest.Dir(t), "notify")
	systemd := must1(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))
	defer systemd.Close()
	filler := must1(syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0))
	defer syscall.Close(filler)
	must(syscall.SetNonblock(filler, true))
	for err := error(nil); err == nil; {
		err = syscall.Sendto(filler, []byte("x"), 0, &syscall.SockaddrUnix{Name: socket})
	}
	n := launchProgram(t, listedge, []string{"NOTIFY_SOCKET=" + socket}, database(t))
	n.awaitReady(t)
	within(t, patience, "it waits for systemd", func() bool {
		r := must1(http.Get(n.admin + "/debug/pprof/goroutine?debug=1"))
		defer r.Body.Close()
		return slices.ContainsFunc(strings.Split(string(must1(io.ReadAll(r.Body))), "\n\n"), func(stack string) bool {
			return strings.Contains(stack, ".notifySystemd") && strings.Contains(stack, ".Write")
		})
	})
	defer time.AfterFunc(patience, func() { n.signal(syscall.SIGKILL) }).Stop() // a hang
	if code := n.stop(); code != exitFine {
		t.Errorf("exit %d: %s", code, n.err.String())
	}
}
