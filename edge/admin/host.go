package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// hostCheck prevents DNS rebinding: a stranger's web page whose name resolves to
// this node has the same origin as the node in the browser of an operator, and
// could read everything here. The browser sends that name as Host, and the page
// cannot change it. So a request is answered only for these hosts:
//
//   - IP addresses, which do not resolve. Kubernetes' probes, Prometheus in it and
//     most load balancers send them. So is an empty Host, which no browser sends.
//   - localhost, the host of --admin-listen and the machine's own name;
//   - names that no stranger can register: of one label, as in Compose, and below
//     .localhost, .svc, .cluster.local and .internal.
//
// Other names get 421, except at /livez, and at /readyz without its reasons:
// health checks send any Host and must not fail because of it.
type hostCheck struct {
	names []string // also answered, in lower case
	next  http.Handler
}

var privateSuffixes = []string{".localhost", ".svc", ".cluster.local", ".internal"}

// accepts says whether a request with this Host is answered.
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
