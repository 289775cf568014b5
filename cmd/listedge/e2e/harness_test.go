package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// The tests of this package use the program as its users do: they start it, on real
// Postgres and Redis, and talk HTTP.

// listedge is the program. TestMain compiles it.
var listedge string

// The exit statuses of the program.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

func TestMain(m *testing.M) {
	must(flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))) // tests wait more than they compute; -parallel overrides it
	dir, err := os.MkdirTemp("", "listedge")
	must(err)
	must(os.Chmod(dir, 0o755)) // dev runs children as another user
	listedge = filepath.Join(dir, "listedge")
	must(compile(listedge, raceDetector...))
	code := m.Run()
	shared.Stop()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// compile compiles the program into a file.
func compile(to string, flags ...string) error {
	build := exec.Command("go", slices.Concat([]string{"build", "-o", to}, flags, []string{"listedge/cmd/listedge"})...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// contents reads a file of the repository, by its path from the root.
func contents(t *testing.T, name string) string {
	t.Helper()
	text := must1(os.ReadFile(filepath.Join("..", "..", "..", name)))
	return string(text)
}

// The server that all tests share. A test that stops or changes a server starts its own.
var shared = postgrestest.Shared{Prepare: postgrestest.Prepare(admin.MigrateUp)}

// database returns the URL of a migrated, empty database of the test's own.
func database(t *testing.T) string {
	t.Helper()
	p := shared.Server()
	return p.URL(postgrestest.Copy(t, p, postgrestest.Template))
}

// privateDatabase is on a Postgres that the test may break.
func privateDatabase(t *testing.T) (*sandbox.Postgres, string) {
	t.Helper()
	return privateDatabaseWith(t, nil)
}

func privateDatabaseWith(t *testing.T, settings map[string]string) (*sandbox.Postgres, string) {
	t.Helper()
	p := sandboxtest.PostgresWith(t, settings)
	must(postgrestest.Make(t.Context(), p, "listedge", admin.MigrateUp))
	return p, p.URL("listedge")
}

var connect, execute, within = postgrestest.Connect, postgrestest.Exec, sandboxtest.Within

// output is a buffer that a running program writes and a test reads.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// program is `listedge …` under way.
type program struct {
	*exec.Cmd
	out, err output
	ended    chan struct{}
	code     int // once ended
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	return startCommand(t, exec.Command(listedge, args...))
}

// lastSaid is how many bytes of a program's log a test shows that has failed.
const lastSaid = 4000

// startCommand starts a program. If it still runs when the test ends, it is killed.
func startCommand(t *testing.T, c *exec.Cmd) *program {
	t.Helper()
	p := &program{Cmd: c, ended: make(chan struct{})}
	if c.Stdout == nil {
		c.Stdout = &p.out
	}
	if c.Stderr == nil {
		c.Stderr = &p.err
	}
	must(c.Start())
	go func() {
		defer close(p.ended)
		_ = c.Wait()
		p.code = c.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		said := p.err.String()
		if strings.Contains(said, "WARNING: DATA RACE") {
			t.Error(said)
		} else if t.Failed() && said != "" {
			t.Logf("listedge %s ends with: %s", c.Args[1], said[max(0, len(said)-lastSaid):])
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) { _ = p.Process.Signal(s) }

// stop ends the program as an operator does, and returns its exit status.
func (p *program) stop() int {
	p.signal(syscall.SIGTERM)
	<-p.ended
	return p.code
}

// untilAnswered runs a command to its end; again if a server did not answer it in time, as on a busy machine.
func untilAnswered(t *testing.T, args ...string) (p *program) {
	t.Helper()
	within(t, patience, "an answer in time", func() bool {
		p = start(t, args...)
		defer time.AfterFunc(patience, func() { p.signal(syscall.SIGKILL) }).Stop() // a server that starts, where it should refuse
		<-p.ended
		said := p.err.String()
		return p.code != exitFailed || !strings.Contains(said, "context deadline exceeded") && !strings.Contains(said, "i/o timeout")
	})
	return p
}

// command runs a command to its end and returns what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	p := untilAnswered(t, args...)
	if p.code != exitFine {
		t.Fatalf("listedge %s: exit %d: %s", strings.Join(args, " "), p.code, p.err.String())
	}
	return p.out.String()
}

// refused runs a command that ends with this status and prints one line of error, which has the text.
func refused(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	p := untilAnswered(t, args...)
	if said := p.err.String(); p.code != code || strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "listedge: ") || !strings.Contains(said, text) ||
		code == exitUsage && p.out.String() != "" {
		t.Errorf("listedge %q: exit %d: %s, want %d, %q", args, p.code, said, code, text)
	}
}

// parsed is the JSON that a command prints with --json.
func parsed[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	printed := command(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(printed), &v); err != nil {
		t.Fatalf("listedge %q: %v: %s", args, err, printed)
	}
	return v
}

// lateProofs are flags of a node whose proofs may be late, as on a busy machine: pages are hits.
var lateProofs = []string{"--freshness-bound", "30s"}

// patience is a time limit for hangs, long enough for a slow machine.
const patience = 2 * time.Minute

// pause is the pace of those who write and read, at random up to the longest. No test waits by it for something to happen.
func pause(longest time.Duration) { time.Sleep(rand.N(longest)) }

// testNode is a serving node.
type testNode struct {
	*program
	url, admin string
	document   *openapi3.T        // what its answers conform to; nil = that of the built-in lists
	toRedis    *sandboxtest.Relay // nil = none is between them
	toPostgres *sandboxtest.Relay // the same
	stopped    bool
}

// startNode starts `listedge serve` on free ports and waits until it is ready.
func startNode(t *testing.T, databaseURL string, args ...string) *testNode {
	t.Helper()
	n := launchNode(t, databaseURL, args...)
	n.awaitReady(t)
	return n
}

// startFollowed is the same, and changes reach the node.
func startFollowed(t *testing.T, databaseURL string, args ...string) *testNode {
	t.Helper()
	n := startNode(t, databaseURL, args...)
	n.awaitFollowed(t)
	return n
}

// launchNode starts a node and waits until it listens.
func launchNode(t *testing.T, databaseURL string, args ...string) *testNode {
	t.Helper()
	return launchProgram(t, listedge, nil, databaseURL, args...)
}

// launchProgram is the same with a program that was built otherwise and with environment
// variables of its own.
func launchProgram(t *testing.T, program string, environment []string, databaseURL string, args ...string) *testNode {
	t.Helper()
	c := serveCommand(program, databaseURL, args...)
	c.Env = append(os.Environ(), environment...)
	return awaitListening(t, startCommand(t, c))
}

// serveCommand is `listedge serve` on free ports, with a short drain.
func serveCommand(program, databaseURL string, args ...string) *exec.Cmd {
	return exec.Command(program, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--database-url", databaseURL, "--log-format", "json", "--drain", "50ms"}, args...)...)
}

func awaitListening(t *testing.T, p *program) *testNode {
	t.Helper()
	n := &testNode{program: p}
	within(t, patience, "listening", func() bool {
		select {
		case <-n.ended:
			t.Fatalf("serve ended with %d: %s", n.code, n.err.String())
		default:
		}
		return n.listens(n.err.String())
	})
	return n
}

// listens reads the node's addresses from its log, if they are there already.
func (n *testNode) listens(log string) bool {
	for line := range strings.Lines(log) {
		var entry struct{ Msg, Public, Admin string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
			n.url, n.admin = "http://"+entry.Public, "http://"+entry.Admin
			return true
		}
	}
	return false
}

func (n *testNode) awaitReady(t *testing.T) {
	t.Helper()
	within(t, patience, "ready", func() bool {
		r, err := http.Get(n.admin + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// metric sums the series of the name whose labels contain all of the parts.
func (n *testNode) metric(t *testing.T, name string, parts ...string) (sum float64) {
	t.Helper()
	plain := must1(http.NewRequest(http.MethodGet, n.admin+"/metrics", nil))
	plain.Header.Set("Accept-Encoding", "identity") // or most of the time went into compressing
	r, err := http.DefaultClient.Do(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text := must1(io.ReadAll(r.Body))
	found := false
	for line := range strings.Lines(string(text)) {
		blank := strings.LastIndex(line, " ") // values of labels have some, too
		bare, _, _ := strings.Cut(line[:max(blank, 0)], "{")
		if bare == name && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line[:blank], part) }) {
			sum, found = sum+must1(strconv.ParseFloat(strings.TrimSpace(line[blank:]), 64)), true
		}
	}
	if !found {
		t.Fatalf("no metric %s %q", name, parts)
	}
	return sum
}

// awaitCheck waits until /readyz says this of one thing the node depends on.
func (n *testNode) awaitCheck(t *testing.T, name, text string) {
	t.Helper()
	within(t, patience, name+": "+text, func() bool { return strings.Contains(n.check(t, name), text) })
}

// check is what /readyz says of one thing the node depends on.
func (n *testNode) check(t *testing.T, name string) string {
	t.Helper()
	_, r := n.readiness(t)
	return r.Checks[name]
}

// workspaceWithKey makes a workspace and a key that no test will exhaust, without
// the commands that do so, which take longer.
func workspaceWithKey(t *testing.T, databaseURL string) (workspace, key string) {
	t.Helper()
	return tenantWithKey(t, databaseURL, "", list.BuiltIn())
}

// tenantWithKey makes a workspace of the tenant; empty = its own id.
func tenantWithKey(t *testing.T, databaseURL, tenant string, lists *list.Set) (workspace, key string) {
	t.Helper()
	conn := openDatabase(t, databaseURL)
	defer conn.Close()
	made := must1(conn.CreateWorkspace(t.Context(), t.Name(), nil, nil, nil, tenant))
	rate, burst := 100_000.0, int32(100_000)
	k := must1(conn.CreateKey(t.Context(), admin.Key{WorkspaceID: made.ID, Scopes: lists.Scopes(), RatePerSecond: &rate, Burst: &burst}, nil))
	return made.ID.String(), k.Key
}

// openDatabase connects as a command does; again if the server did not answer in time, as on a busy machine.
func openDatabase(t *testing.T, databaseURL string) (conn *admin.Conn) {
	t.Helper()
	var err error
	within(t, patience, "a connection in time", func() bool {
		conn, err = admin.Open(t.Context(), databaseURL)
		return !errors.Is(err, context.DeadlineExceeded)
	})
	return must1(conn, err)
}

// newKeys makes keys with the default limit.
func newKeys(t *testing.T, databaseURL, workspace string, n int) (keys []string) {
	t.Helper()
	conn := openDatabase(t, databaseURL)
	defer conn.Close()
	for range n {
		k := must1(conn.CreateKey(t.Context(), admin.Key{WorkspaceID: uuid.MustParse(workspace), Scopes: list.BuiltIn().Scopes()}, nil))
		keys = append(keys, k.Key)
	}
	return keys
}

func newKeyFor(t *testing.T, databaseURL, workspace string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(command(t, append([]string{"keys", "create", "--database-url", databaseURL, "--workspace", workspace}, flags...)...))
}
