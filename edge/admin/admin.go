// Package admin is the admin listener of a node: for operators, their probes
// and Prometheus, never for the public. It has no authentication.
//
//	GET /livez  /readyz      should this node be sent requests? (health.go)
//	GET /                    one node, live, in a browser
//	GET /state               what the status page shows beside the metrics
//	GET /runbook             what to do about each alert
//	GET /metrics  /log       given by the caller
//	GET /settings            what is in effect, without secrets
//	GET /explain             what happened to a recent request
//	GET /debug/pprof/        profiles of Go
//
// hostCheck refuses requests that come from foreign web pages.
package admin

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"listedge/edge"
	"listedge/metrics"
)

// Options are what the admin listener shows. All are required but Names.
type Options struct {
	Names    []string // host names in requests that are answered, besides those that hostCheck allows anyway
	Metrics  http.Handler
	Log      func() any // the node's last warnings and errors
	Records  func(requestID string) []edge.Record
	Settings map[string]any // by name, without secrets

	// What the status page shows (State) comes from these. Only Fleet waits for a server.
	Health *Health
	Self   func() NodeState
	Fleet  func(context.Context) []NodeState // the other nodes; nil = there are none
	Keys   func() []KeyState
}

// Handler answers the requests to the admin listener.
func Handler(o Options) http.Handler {
	mux, checked := probed(o.Names, o.Health.Readiness)
	mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, o.Settings) })
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, o.Log()) })
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, o.Records(r.URL.Query().Get("request-id")))
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound) // flags may contain passwords
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", servePage(statusPage))
	mux.HandleFunc("GET /runbook", servePage(runbookPage))
	mux.HandleFunc("GET /state", o.serveState)
	return checked
}

// probed returns the handler of probes, and what answers it for the hosts that may ask.
func probed(names []string, readiness func() Readiness) (mux *http.ServeMux, checked *hostCheck) {
	mux = http.NewServeMux()
	checked = &hostCheck{next: mux}
	for _, name := range names {
		checked.names = append(checked.names, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		found := readiness()
		status := http.StatusOK
		if !found.Ready {
			status = http.StatusServiceUnavailable
		}
		if !checked.accepts(r.Host) {
			found.Checks = nil
		}
		writeJSON(w, status, found)
	})
	return mux, checked
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// The status page shows one node, live. It is one file without a build step and
// loads nothing from elsewhere: it must work when nothing else does.
//
// The page reads /metrics, so that it shows the numbers that Prometheus stores, by the
// same names. It computes rates and quantiles from two readings, so that the node keeps
// no state for it.
//
//go:embed status.html
var statusPage []byte

// The runbook is deploy/RUNBOOK.md as a web page, so that an operator can open it on the
// node. A test of deploy makes runbook.html.
//
//go:embed runbook.html
var runbookPage []byte

// servePage answers with a page that loads nothing from elsewhere.
func servePage(page []byte) http.HandlerFunc {
	policy := edge.PagePolicy(page, "")
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = w.Write(page)
	}
}

// NodeState is the state of a node that it publishes for the status pages of the others.
type NodeState struct {
	Name     string         `json:"name"` // the machine's name and the port of the admin listener
	Version  string         `json:"version"`
	Revision string         `json:"revision"`
	Started  time.Time      `json:"started"`
	Ready    bool           `json:"ready"`
	Mode     string         `json:"mode"`
	Follower bool           `json:"follower"`
	Down     []string       `json:"down"`            // names of the lights that are not green
	Nodes    int64          `json:"nodes,omitempty"` // that this node counts; 0 = it does not know yet, or runs without Redis
	Epoch    string         `json:"epoch,omitempty"` // of the log of changes
	Counts   metrics.Totals `json:"counts"`
	Proof    *float64       `json:"proof"` // age of the last proof in seconds; null = changes are not followed
	Age      float64        `json:"age"`   // seconds since the node published it
}

// KeyState is the rate at which a key is used on this node.
type KeyState struct {
	ID        string  `json:"id"`
	Prefix    string  `json:"prefix"` // empty = the node no longer knows the key
	Name      string  `json:"name"`
	Workspace string  `json:"workspace"`
	Requests  float64 `json:"requests"` // per second, over the last five seconds
	Refused   float64 `json:"refused"`  // likewise
}

// State is what the status page shows beside the metrics.
type State struct {
	Now      time.Time      `json:"now"`
	Self     NodeState      `json:"self"`
	Draining bool           `json:"draining"`
	Checks   []CheckState   `json:"checks"`
	Keys     []KeyState     `json:"keys"`
	Fleet    []NodeState    `json:"fleet"` // all known nodes, with this one
	Settings map[string]any `json:"settings"`
}

// serveState answers with the state.
func (o *Options) serveState(w http.ResponseWriter, r *http.Request) {
	self := o.Self()
	state := State{Now: time.Now(), Self: self, Draining: o.Health.draining.Load(), Checks: o.Health.States(), Keys: o.Keys(),
		Fleet: []NodeState{self}, Settings: o.Settings}
	if o.Fleet != nil {
		for _, n := range o.Fleet(r.Context()) {
			if n.Name != self.Name {
				state.Fleet = append(state.Fleet, n)
			}
		}
	}
	slices.SortFunc(state.Fleet, func(a, b NodeState) int { return cmp.Compare(a.Name, b.Name) })
	writeJSON(w, http.StatusOK, state)
}

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

// maxConnections bounds the connections to the admin listener: status pages, probes and
// Prometheus need some dozens. More would take the descriptors of the public listener.
const maxConnections = 32

// NewServer makes the server of the admin listener. A request and its response have bounds, because
// a connection that has begun a request keeps its place.
func NewServer(o Options, errorLog *log.Logger) *http.Server { return newServer(Handler(o), errorLog) }

// NewWaitingServer makes the server of the admin listener of a node that cannot serve yet: it answers probes alone.
func NewWaitingServer(names []string, readiness func() Readiness, errorLog *log.Logger) *http.Server {
	_, handler := probed(names, readiness)
	return newServer(handler, errorLog)
}

func newServer(handler http.Handler, errorLog *log.Logger) *http.Server {
	return &http.Server{Handler: handler, ConnState: (&connections{}).changed,
		ReadTimeout: 2 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 75 * time.Second, ErrorLog: errorLog}
}

// connections are the open ones of the listener. A new one that is too many takes the place of
// that which has waited longest for a request, or else of that whose request is the oldest. So
// nobody keeps a probe out, neither who opens many and sends nothing nor who reads no answer.
type connections struct {
	mu  sync.Mutex   // guards all
	all []connection // the one that changed its state last is the last
}

type connection struct {
	net.Conn
	state http.ConnState
}

func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(one connection) bool { return one.Conn == conn })
	if state == http.StateClosed {
		return
	}
	c.all = append(c.all, connection{conn, state})
	if state == http.StateNew && len(c.all) > maxConnections {
		waits := func(one connection) bool { return one.state != http.StateActive }
		i := max(0, slices.IndexFunc(c.all[:maxConnections], waits)) // the new one is the last
		c.all[i].Close()
		c.all = slices.Delete(c.all, i, i+1)
	}
}
