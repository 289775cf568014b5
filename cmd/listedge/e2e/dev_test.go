package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// processesOn lists the processes whose command line names the folder.
func processesOn(t *testing.T, dir string) (lines []string) {
	t.Helper()
	out := must1(exec.Command("ps", "-A", "-ww", "-o", "pid=,args=").Output())
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

var (
	printedKey  = regexp.MustCompile(`key +(lk_\w+)`)
	printedNode = regexp.MustCompile(`node +(http://[\d.:]+) .*admin: (http://[\d.:]+)`)
)

// awaitDev waits until `dev` has printed how to use it, and returns its nodes.
func awaitDev(t *testing.T, p *program, nodes int) (key string, all []*testNode) {
	t.Helper()
	within(t, patience, "dev serves", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("dev ended with %d: %s", p.code, p.err.String())
		default:
		}
		return strings.Contains(p.out.String(), "curl -i")
	})
	printed := p.out.String()
	key = printedKey.FindStringSubmatch(printed)[1]
	for _, m := range printedNode.FindAllStringSubmatch(printed, -1) {
		n := &testNode{program: p, url: m[1], admin: m[2]}
		n.awaitReady(t)
		all = append(all, n)
	}
	if len(all) != nodes {
		t.Fatalf("%d nodes in %s", len(all), printed)
	}
	return key, all
}

// lastDev counts the port ranges that devFlags has returned: tests run in parallel.
var lastDev atomic.Int64

// devFlags start `dev` on ports that were free a moment ago, below those that other
// servers take and the kernel hands out: three nodes need successive ones.
func devFlags(t *testing.T, dir string, more ...string) []string {
	t.Helper()
	const nodes, lowest, highest = 3, 10_000, 12_000
	for range (highest - lowest) / (2 * nodes) {
		base := lowest + (os.Getpid()*10+int(lastDev.Add(1))*2*nodes)%(highest-lowest-2*nodes)
		var taken []net.Listener
		for port := base; port < base+2*nodes; port++ {
			if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
				taken = append(taken, l)
			}
		}
		for _, l := range taken {
			l.Close()
		}
		if len(taken) == 2*nodes {
			return append([]string{"dev", "--data-dir", dir, "--listen", "127.0.0.1:" + strconv.Itoa(base),
				"--admin-listen", "127.0.0.1:" + strconv.Itoa(base+nodes)}, more...)
		}
	}
	t.Fatal("no free ports")
	return nil
}

func TestDevFromNothingToAWalkAndBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(sandboxtest.Dir(t), "state", "listedge")
	p := start(t, devFlags(t, dir)...)
	key, nodes := awaitDev(t, p, 1)
	if rows := nodes[0].walk(t, "/v1/items?limit=100", key, 100); len(rows) < 2000 {
		t.Errorf("%d items in the sample data", len(rows))
	}
	if a := nodes[0].get(t, "/v1/contacts?sort=name", key); len(a.page(t).Data) != 50 {
		t.Errorf("%s", a.body)
	}

	const startOver = "To start over, stop this and remove the folder: rm -r "
	if strings.Contains(p.err.String(), startOver) {
		t.Errorf("of a new folder: %s", p.err.String())
	}

	refused(t, exitFailed, "another `listedge dev` runs in "+dir, devFlags(t, dir)...)
	if log := must1(os.ReadFile(filepath.Join(dir, "postgres.log"))); !strings.Contains(string(log), "starting PostgreSQL") {
		t.Errorf("the log of the first has gone: %s", log)
	}

	if code := p.stop(); code != exitFine {
		t.Errorf("exit %d: %s", code, p.err.String())
	}
	if left := processesOn(t, dir); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}

	// The data is still there the next time, and the key works. There is another one, too.
	p = start(t, devFlags(t, dir)...)
	another, nodes := awaitDev(t, p, 1)
	for _, key := range []string{key, another} {
		if a := nodes[0].get(t, "/v1/items", key); len(a.page(t).Data) != 50 {
			t.Errorf("%s", a.body)
		}
	}
	if !strings.Contains(p.err.String(), startOver+dir+"\n") {
		t.Errorf("of a folder with data: %s", p.err.String())
	}
	p.stop()

	// A folder of another Postgres version is an error, and stays as it is.
	must(os.WriteFile(filepath.Join(dir, "cluster", "PG_VERSION"), []byte("9\n"), 0o644))
	old := start(t, devFlags(t, dir)...)
	if <-old.ended; old.code != exitFailed || !strings.Contains(old.err.String(), "not compatible") {
		t.Errorf("exit %d: %s", old.code, old.err.String())
	}
}

func TestDevKilledLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("only Linux ends the children of a killed parent")
		return
	}
	dir := sandboxtest.Dir(t)
	begin := func() *program {
		p := start(t, devFlags(t, dir)...)
		within(t, patience, "dev serves", func() bool { return strings.Contains(p.out.String(), "curl -i") })
		return p
	}
	p := begin()
	p.signal(syscall.SIGKILL)
	<-p.ended
	within(t, patience, "the private Postgres has ended", func() bool { return len(processesOn(t, dir+"/cluster")) == 0 })

	p = begin() // and starts again on what was left, and ends when its Postgres does
	pid := must1(os.ReadFile(filepath.Join(dir, "cluster", "postmaster.pid")))
	must(syscall.Kill(must1(strconv.Atoi(strings.Split(string(pid), "\n")[0])), syscall.SIGQUIT))
	if <-p.ended; p.code != exitFailed || !strings.Contains(p.err.String(), "Postgres has ended") {
		t.Errorf("exit %d: %s", p.code, p.err.String())
	}
	if left := processesOn(t, dir); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}
