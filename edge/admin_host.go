package edge

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hostCheck keeps web pages of others away from the admin listener. A page whose
// name is made to lead to this node (DNS rebinding) is of one origin with it for
// the browser of somebody who reaches both, and reads everything here. But the
// browser sends the name, as Host, and the page cannot change that.
//
// Answered are:
//
//   - addresses, which nobody makes lead elsewhere: what Kubernetes' probes,
//     Prometheus in it and most load balancers send; and no Host at all, which no
//     browser sends;
//   - localhost, the host of --admin-listen and the machine's own name;
//   - names that no stranger can have: of one label, as in Compose, and below
//     .localhost, .svc, .cluster.local and .internal.
//
// Other names are answered 421, but for /livez, and for /readyz without its
// reasons: health checks send what they like, and must not fail by it.
type hostCheck struct {
	names []string // that are answered beside these, in lower case
	next  http.Handler
}

var privateSuffixes = []string{".localhost", ".svc", ".cluster.local", ".internal"}

// accepts says whether a request with this Host is answered.
func (h *hostCheck) accepts(host string) bool {
	name := host
	if alone, _, err := net.SplitHostPort(host); err == nil {
		name = alone
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil || !strings.Contains(name, ".") {
		return true
	}
	for _, own := range h.names {
		if name == own {
			return true
		}
	}
	for _, suffix := range privateSuffixes {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func (h *hostCheck) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if health := r.URL.Path == "/livez" || r.URL.Path == "/readyz"; !health && !h.accepts(r.Host) {
		http.Error(w, fmt.Sprintf("This is an admin listener. It does not answer to the name %q, which a web page could have made to lead here: "+
			"ask by address, by the machine's name or by localhost, or have it listen by that name (--admin-listen NAME:PORT).", clip(r.Host, 100)),
			http.StatusMisdirectedRequest)
		return
	}
	h.next.ServeHTTP(w, r)
}
