package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"listedge/edge/admin"
	originadmin "listedge/origin/admin"
)

// A load balancer that is not in --trusted-proxies is reported once in the log, in /readyz and
// by the doctor. The node stays ready.
func TestAProxyThatIsNotTrustedIsReported(t *testing.T) {
	t.Parallel()
	url := database(t)
	readiness := func(n *testNode) (r admin.Readiness) {
		t.Helper()
		answer := must1(http.Get(n.admin + "/readyz"))
		defer answer.Body.Close()
		must(json.NewDecoder(answer.Body).Decode(&r))
		return r
	}
	for _, c := range []struct {
		name, trusted, header string
		reported              bool
	}{
		{"none is named", "", "X-Forwarded-For: 198.51.100.7", true},
		{"another is named", "10.0.0.0/8", "X-Forwarded-For: 10.0.0.1", true},
		{"by the standard's header", "", "Forwarded: for=198.51.100.7", true},
		{"it is named", "127.0.0.0/8", "X-Forwarded-For: 198.51.100.7", false},
		{"there is none", "", "X-Other: 198.51.100.7", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startNode(t, url, "--trusted-proxies", c.trusted)
			if r := readiness(n); len(r.Notes) != 0 {
				t.Errorf("before anything was sent: %v", r.Notes)
			}
			for range 20 {
				n.get(t, "/v1/items", "", c.header, "Connection: close")
			}
			want := 0
			if c.reported {
				want = 1
			}
			if got := strings.Count(n.err.String(), "--trusted-proxies does not name it"); got != want {
				t.Errorf("reported %d times in the log: %s", got, n.err.String())
			}
			r := readiness(n)
			if reported := strings.Contains(r.Notes["trusted-proxies"], "127.0.0.1 sends"); reported != c.reported || !r.Ready {
				t.Errorf("%+v", r)
			}
			if c.reported {
				says(t, []string{"--database-url", url, "--node", n.admin}, exitFine, originadmin.Finding{Subject: n.subject(), Level: originadmin.Warn, Text: "is not named in --trusted-proxies"})
			}
		})
	}
}
