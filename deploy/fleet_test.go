package deploy_test

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// listedge runs a command to its end and returns what it printed.
func listedge(t *testing.T, env []string, args ...string) string {
	t.Helper()
	path := must1(program())
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		t.Fatalf("listedge %s: %v: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	must(err)
	return strings.TrimSpace(string(out))
}

// patience is how long a test waits for what must come, on any machine: a limit for hangs.
const patience = 3 * time.Minute

var within = sandboxtest.Within

// freePort is one that nobody listens on, and that no other test has been given.
func freePort() string { return must1(sandbox.FreePort()) }

// tool is the path of a program that install.sh has installed.
func tool(name string) string { return must1(sandbox.FindServer(name, name)) }

// startProgram starts a program that the machine has and ends it with the
// test, whose failure shows what the program said.
func startProgram(t *testing.T, cmd *exec.Cmd) *sandbox.Child {
	t.Helper()
	log := must1(os.Create(filepath.Join(t.TempDir(), filepath.Base(cmd.Path)+".log")))
	cmd.Stdout, cmd.Stderr = log, log
	child := must1(sandbox.StartChild(cmd))
	t.Cleanup(func() {
		_ = child.End(20*time.Second, syscall.SIGKILL) // nothing it has is wanted any more
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s said: …%s", filepath.Base(cmd.Path), text[max(0, len(text)-4000):])
		}
	})
	return child
}

// fleet is nodes on a Postgres and a Redis of their own, with a key that no
// test exhausts.
type fleet struct {
	env      []string // of the nodes
	postgres *sandbox.Postgres
	redis    *sandbox.Redis
	nodes    []*node
	key      string
	balancer *sandbox.Child
	public   string // port of the balancer
	stats    string // port of its metrics
}

// node is a process at addresses that it keeps when it is started again.
type node struct {
	fleet         *fleet
	env           []string           // its own
	public, admin string             // host:port
	gate          *sandboxtest.Relay // to the admin listener, for HAProxy; nil = there is none
	program       string             // "" = what this source is
	process       *sandbox.Child
}

func startFleet(t *testing.T, size int) *fleet {
	t.Helper()
	f := startServers(t)
	for range size {
		f.add(t)
	}
	for _, n := range f.nodes {
		n.awaitMode(t, "followed")
	}
	return f
}

// startServers starts a fleet without nodes: its Postgres and its Redis.
func startServers(t *testing.T) *fleet { return startServersWith(t, nil) }

// startServersWith starts them with settings of Postgres.
func startServersWith(t *testing.T, settings map[string]string) *fleet {
	t.Helper()
	f := &fleet{postgres: sandboxtest.PostgresWith(t, settings), redis: sandboxtest.Redis(t)}
	f.env = []string{"LISTEDGE_DATABASE_URL=" + f.postgres.URL("postgres")}
	listedge(t, f.env, "migrate", "up")
	psql(t, f, sandbox.Sample(1, 300, 300))
	workspace := psql(t, f, "SELECT id FROM workspaces")[0]
	f.key = listedge(t, f.env, "keys", "create", "--workspace", workspace, "--rate", "100000", "--burst", "100000")
	f.env = append(f.env, "LISTEDGE_REDIS_URL="+f.redis.URL())
	return f
}

// psql returns the lines that a statement answers.
func psql(t *testing.T, f *fleet, statement string) []string {
	t.Helper()
	return strings.Fields(string(run(t, exec.Command(filepath.Join(f.postgres.Bin, "psql"), f.postgres.URL("postgres"), "-qAtc", statement))))
}

// run returns what a command writes to its standard output.
func run(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	said, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, said, errs.String())
	}
	return said
}

// add starts one more node, with more settings.
func (f *fleet) add(t *testing.T, env ...string) *node {
	t.Helper()
	return f.addAt(t, "127.0.0.1:"+freePort(), "127.0.0.1:"+freePort(), env...)
}

// addAt starts one more node at addresses of one's choice.
func (f *fleet) addAt(t *testing.T, public, admin string, env ...string) *node {
	t.Helper()
	n := &node{fleet: f, env: env, public: public, admin: admin}
	f.nodes = append(f.nodes, n)
	n.start(t)
	return n
}

func (n *node) start(t *testing.T) {
	t.Helper()
	path := cmp.Or(n.program, must1(program()))
	cmd := exec.Command(path, "serve", "--listen", n.public, "--admin-listen", n.admin)
	cmd.Env = append(append(os.Environ(), n.fleet.env...), n.env...)
	n.process = startProgram(t, cmd)
}

// stop asks the node to end and returns how its process ended.
func (n *node) stop(t *testing.T) string {
	t.Helper()
	must(n.process.End(patience, syscall.SIGTERM))
	return n.process.State()
}

// await200 sends the request until the node answers it with 200.
func (n *node) await200(t *testing.T, path string) {
	t.Helper()
	within(t, patience, "a page of "+n.public, func() bool {
		status, _, err := get("http://"+n.public+path, n.fleet.key)
		return err == nil && status == http.StatusOK
	})
}

// awaitMode waits until the node is ready and keeps its pages fresh in this mode of /readyz.
func (n *node) awaitMode(t *testing.T, mode string) {
	t.Helper()
	within(t, patience, "ready and "+mode, func() bool {
		select {
		case <-n.process.Done():
			t.Fatalf("the node ended: %s", n.process.State())
		default:
		}
		status, body, err := get("http://"+n.admin+"/readyz", "")
		return err == nil && status == http.StatusOK && strings.Contains(string(body), `"mode":"`+mode+`"`)
	})
}

var client = &http.Client{Timeout: time.Minute}

// get sends a GET, with an API key unless key is empty.
func get(url, key string) (status int, body []byte, err error) {
	r := must1(http.NewRequest(http.MethodGet, url, nil))
	if key != "" {
		r.Header.Set("X-API-Key", key)
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// load has three clients ask for pages, and for a path that is none, until stopped.
func load(address, key string, pause time.Duration) (stop func()) {
	ctx, end := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() {
			for at := i; ctx.Err() == nil; at++ {
				for _, path := range []string{"/v1/items?limit=" + strconv.Itoa(1+at%20), "/v1/contacts", "/v1/none"} {
					_, _, _ = get("http://"+address+path, key)
				}
				select { // the machine has others to serve
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return sync.OnceFunc(func() { end(); clients.Wait() })
}

// find returns what the first group of pattern matched, each time, in a file
// of this folder.
func find(t *testing.T, file, pattern string) []string {
	t.Helper()
	text := must1(os.ReadFile(file))
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("nothing in %s matches %s", file, pattern)
	}
	return found
}

// replaced is the text of a file of this folder with some of it changed for
// this machine; each change must find its place, so that what is tested stays
// the file that is deployed.
func replaced(t *testing.T, file string, changes ...string) string {
	t.Helper()
	b := must1(os.ReadFile(file))
	text := string(b)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("%s has no %q", file, changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	return text
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	must(os.WriteFile(path, []byte(text), 0o644))
	return path
}
