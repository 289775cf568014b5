package deploy_test

import (
	"encoding/csv"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// replaced is the text of a file of this folder with some of it changed for
// this machine; each change must find its place, so that what is tested stays
// the file that is deployed.
func replaced(t *testing.T, file string, changes ...string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A deployment replaces every node, one after the other, while clients go on
// asking on connections that they keep. Nobody may notice.
func TestNoRequestIsLostWhileNodesAreReplaced(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	public, stats := freePort(t), freePort(t)
	changes := []string{"bind :8080", "bind 127.0.0.1:" + public, "bind :8404", "bind 127.0.0.1:" + stats, " check port 9090 ", " check "}
	for i, n := range f.nodes {
		name := "node" + strconv.Itoa(i+1)
		_, admin, _ := strings.Cut(n.admin, ":")
		changes = append(changes, "server "+name+" "+name+":8080", "server "+name+" "+n.public+" port "+admin)
	}
	config := write(t, "haproxy.cfg", replaced(t, "haproxy/haproxy.cfg", changes...))
	startProgram(t, exec.Command(tool(t, "haproxy"), "-db", "-f", config))
	up := func(want ...string) func() bool {
		return func() bool { return slices.Equal(ofServers(stats, "status"), want) }
	}
	within(t, patience, "all nodes up", up("UP", "UP", "UP"))
	check := slices.Clone([]string(stack(t).Services["haproxy"].HealthCheck.Test[1:]))
	for i := range check {
		check[i] = strings.ReplaceAll(check[i], "8404", stats)
	}
	if said, err := exec.Command(check[0], check[1:]...).CombinedOutput(); err != nil {
		t.Errorf("the stack's health check of HAProxy: %v: %s", err, said)
	}

	var answered, lost atomic.Int64
	var complaint sync.Once
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				status, body, err := get("http://127.0.0.1:"+public+"/v1/items?limit=10", f.key)
				if err == nil && status == http.StatusOK {
					answered.Add(1)
					time.Sleep(8 * time.Millisecond) // the machine has others to serve
					continue
				}
				lost.Add(1)
				complaint.Do(func() { t.Errorf("the first request that was lost: %d %v %s", status, err, body) })
			}
		})
	}
	all := []string{"UP", "UP", "UP"}
	for i, n := range f.nodes {
		before := answered.Load()
		if how := n.stop(t); how != "exit status 0" {
			t.Errorf("the node ended with %s", how)
		}
		gone := slices.Clone(all)
		gone[i] = "DOWN"
		within(t, patience, "the node is out", up(gone...))
		n.start(t)
		within(t, patience, "the node is back", up(all...))
		if answered.Load() == before {
			t.Error("no request was answered meanwhile")
		}
	}
	close(stop)
	clients.Wait()
	again := ofServers(stats, "wretr")
	t.Logf("%d requests answered, %d lost; sent again by HAProxy, per node: %v", answered.Load(), lost.Load(), again)
	if !slices.Equal(again, []string{"0", "0", "0"}) {
		t.Error("HAProxy had to send requests again: nodes leave before it knows")
	}
	if lost.Load() > 0 {
		t.Errorf("%d requests lost of %d", lost.Load(), answered.Load()+lost.Load())
	}
}

// ofServers is a column of HAProxy's statistics for each node: `status` is UP,
// DOWN or on the way (UP 1/2).
func ofServers(port, column string) (values []string) {
	status, body, err := get("http://127.0.0.1:"+port+"/;csv", "")
	if err != nil || status != http.StatusOK {
		return nil
	}
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(body), "# "))).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil
	}
	proxy, server, at := slices.Index(rows[0], "pxname"), slices.Index(rows[0], "svname"), slices.Index(rows[0], column)
	for _, row := range rows[1:] {
		if row[proxy] == "nodes" && row[server] != "BACKEND" {
			values = append(values, row[at])
		}
	}
	return values
}
