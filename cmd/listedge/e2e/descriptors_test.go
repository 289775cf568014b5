package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

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

// If clients open more connections than a node has descriptors, the node refuses them. It
// keeps running, and its connections to the database keep working.
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
	var settings map[string]any
	if r, err := http.Get(n.admin + "/settings"); err != nil {
		t.Error(err)
	} else if err = json.NewDecoder(r.Body).Decode(&settings); err != nil || r.Body.Close() != nil || settings["max-connections"] != float64(limit) {
		t.Errorf("the limit is %d; /settings: %v (%v)", limit, settings, err)
	}
	if !strings.Contains(n.err.String(), "--max-connections") || !strings.Contains(n.err.String(), `"maxConnections":`+strconv.Itoa(limit)) {
		t.Errorf("the log does not have the limit: %s", n.err.String())
	}
	kept := must1(net.Dial("tcp", strings.TrimPrefix(n.url, "http://")))
	defer kept.Close()
	ask := func(path string) string {
		t.Helper()
		_ = kept.SetDeadline(time.Now().Add(time.Minute))
		must1(io.WriteString(kept, "GET "+path+" HTTP/1.1\r\nHost: a\r\nX-API-Key: "+key+"\r\n\r\n"))
		line := make([]byte, 64<<10)
		got := must1(kept.Read(line))
		return string(line[:got])
	}
	if got := ask("/v1/items?limit=1"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Fatal(got)
	}
	release := hold(t, n.url, 2*descriptors)
	within(t, patience, "all places are taken", func() bool { return n.metric(t, "listedge_http_connections") == float64(limit) })
	if got := ask("/v1/contacts?limit=1"); !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "fwd=uri-miss") {
		t.Errorf("a page that is not cached: %s", got)
	}
	release()
	within(t, patience, "a new client is answered", func() bool {
		a, err := n.try("GET", "/v1/items?limit=1", key)
		return err == nil && a.StatusCode == http.StatusOK
	})
	select {
	case <-n.ended:
		t.Errorf("the node ended: %s", n.err.String())
	default:
	}
	if strings.Contains(n.err.String(), "too many open files") {
		t.Errorf("the descriptors ran out: %s", n.err.String())
	}
}

// Whoever holds connections to the admin listener keeps neither clients nor probes out.
func TestIdleConnectionsToTheAdminListener(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startWithDescriptors(t, 160, url)
	kept := &http.Client{Transport: &http.Transport{}} // whose connection is idle meanwhile
	ask := func(client *http.Client, address string) {
		t.Helper()
		r := must1(http.NewRequest(http.MethodGet, address, nil))
		r.Header.Set("X-API-Key", key)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatalf("%v: %s", err, n.err.String())
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.Body.Close() != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", address, answer.Status, err)
		}
	}
	ask(kept, n.admin+"/metrics")
	for range 3 {
		defer hold(t, n.admin, 500)()
		for _, address := range []string{n.admin + "/readyz", n.admin + "/metrics", n.url + "/v1/items?limit=1"} {
			ask(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, address)
		}
		ask(kept, n.admin+"/metrics")
	}
	select {
	case <-n.ended:
		t.Errorf("the node ended: %s", n.err.String())
	default:
	}
	if strings.Contains(n.err.String(), "too many open files") {
		t.Errorf("the descriptors ran out: %s", n.err.String())
	}
}
