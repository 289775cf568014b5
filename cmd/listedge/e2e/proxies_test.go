package e2e

import (
	"strings"
	"testing"

	originadmin "listedge/origin/admin"
)

// A load balancer that is not in --trusted-proxies is reported once in the log, in /readyz and
// by the doctor. The node stays ready.
func TestAProxyThatIsNotTrustedIsReported(t *testing.T) {
	t.Parallel()
	url := database(t)
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
			n.awaitCheck(t, "trusted-proxies", "ok")
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
			if c.reported {
				n.awaitCheck(t, "trusted-proxies", "127.0.0.1 sends")
				n.awaitReady(t)
				says(t, []string{"--database-url", url, "--node", n.admin}, exitFine, originadmin.Finding{Subject: "trusted-proxies", Level: originadmin.Warn, Text: "is not named in --trusted-proxies"})
			}
		})
	}
}
