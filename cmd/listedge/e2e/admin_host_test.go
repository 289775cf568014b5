package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
)

// DNS rebinding: a web page whose host name leads to the admin listener cannot read it.
// Operators, monitors and load balancers can.
func TestTheAdminListenerAnswersOnlyToNamesThatNoStrangerHas(t *testing.T) {
	t.Parallel()
	machine := must1(os.Hostname())
	n := startNode(t, database(t), "--admin-listen", "localhost:0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(n.admin, "http://"))
	must(err)
	ask := func(path, host string) (status int, body string) {
		t.Helper()
		r := must1(http.NewRequest("GET", n.admin+path, nil))
		r.Host = host
		answer := must1(http.DefaultTransport.RoundTrip(r))
		defer answer.Body.Close()
		text := must1(io.ReadAll(answer.Body))
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s of %s may be sniffed", path, host)
		}
		return answer.StatusCode, string(text)
	}
	for _, host := range []string{
		"127.0.0.1:" + port, "127.0.0.1", "10.1.2.3:9090", "[::1]:9090", "[2001:db8::1]", "localhost:" + port, "LOCALHOST", "localhost.:9090", "app.localhost",
		machine, strings.ToUpper(machine) + ":9090", "node1:9090", "listedge", "listedge-admin.shop.svc:9090", "10-1-2-3.listedge-nodes.shop.svc.cluster.local:9090",
		"ip-10-0-0-1.eu-west-1.compute.internal",
	} {
		if status, body := ask("/settings", host); status != 200 {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	for _, host := range []string{
		"attacker.example", "attacker.example:" + port, "localhost.attacker.example", "127.0.0.1.nip.io", "127.0.0.1.attacker.example:9090", "svc.attacker.example",
		"attacker.svc.example", "evil.local", machine + ".attacker.example",
	} {
		for _, path := range []string{"/", "/settings", "/metrics", "/log", "/explain?request-id=x", "/debug/pprof/", "/debug/pprof/cmdline", "/nowhere"} {
			if status, body := ask(path, host); status != 421 || !strings.Contains(body, "does not answer to the name") || strings.Contains(body, "listedge_") {
				t.Errorf("%s of %s: %d %s", path, host, status, body)
			}
		}
		// Health checks may send any host name. They get no details.
		status, body := ask("/readyz", host)
		var shown map[string]any
		if err := json.Unmarshal([]byte(body), &shown); err != nil || status != 200 || shown["ready"] != true || shown["checks"] != nil {
			t.Errorf("/readyz of %s: %d %s", host, status, body)
		}
		if status, _ := ask("/livez", host); status != 200 {
			t.Errorf("/livez of %s: %d", host, status)
		}
	}
	if status, body := ask("/settings", strings.Repeat("a.", 5000)+"example"); status != 421 || len(body) > 600 {
		t.Errorf("a long name: %d, %d bytes", status, len(body))
	}
}
