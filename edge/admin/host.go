package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// hostCheck prevents DNS rebinding. In the attack the name of a foreign web page
// resolves to this node. For the browser of an operator the page then has the same
// origin as the node, so it could read everything here. The browser sends that name as
// Host, and the page cannot change it. So only requests with these hosts are answered:
//
//   - IP addresses, which are not resolved. Probes of Kubernetes, Prometheus in
//     Kubernetes and most load balancers send them;
//   - an empty Host, which no browser sends;
//   - localhost, the host of --admin-listen and the machine's own name;
//   - names that an attacker cannot register: names of one label, as in Compose, and
//     names below .localhost, .svc, .cluster.local and .internal.
//
// Other names get a 421, except at /livez and /readyz, because health checks may send any
// Host. For those names /readyz does not say its reasons.
type hostCheck struct {
	names []string // further accepted names, in lower case
	next  http.Handler
}

var privateSuffixes = []string{".localhost", ".svc", ".cluster.local", ".internal"}

// accepts reports whether requests with this Host are answered.
func (h *hostCheck) accepts(host string) bool {
	name := host
	if withoutPort, _, err := net.SplitHostPort(host); err == nil {
		name = withoutPort
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil || !strings.Contains(name, ".") {
		return true
	}
	return slices.Contains(h.names, name) ||
		slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

func (h *hostCheck) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if health := r.URL.Path == "/livez" || r.URL.Path == "/readyz"; !health && !h.accepts(r.Host) {
		http.Error(w, fmt.Sprintf("This is an admin listener. It does not answer to the name %.100q, because a web page could use that name to read it. "+
			"Use the address, the machine's name or localhost, or listen by that name (--admin-listen NAME:PORT).", r.Host),
			http.StatusMisdirectedRequest)
		return
	}
	h.next.ServeHTTP(w, r)
}
