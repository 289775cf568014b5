// Package admin is the admin listener of a node: for operators, their probes
// and Prometheus, never for the public. It has no authentication.
//
//	GET /livez  /readyz      health.go: should this node be sent requests?
//	GET /                    status.go: one node, live, in a browser
//	GET /state               status.go: what the status page shows beside the metrics
//	GET /runbook             status.go: what to do about each alert
//	GET /metrics  /log       given by the caller
//	GET /settings            what is in effect, without secrets
//	GET /explain             what happened to a recent request
//	GET /debug/pprof/        profiles of Go
//
// host.go refuses requests that come from foreign web pages.
package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"strings"

	"listedge/edge"
)

// Options are what the admin listener shows. All are required but Names.
type Options struct {
	Names    []string // host names in requests that are answered, besides those that host.go allows anyway
	Metrics  http.Handler
	Log      http.Handler // the node's last warnings and errors
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
	mux := http.NewServeMux()
	checked := &hostCheck{next: mux}
	for _, name := range o.Names {
		checked.names = append(checked.names, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		readiness := o.Health.Readiness()
		status := http.StatusOK
		if !readiness.Ready {
			status = http.StatusServiceUnavailable
		}
		if !checked.accepts(r.Host) {
			readiness.Checks = nil
		}
		writeJSON(w, status, readiness)
	})
	mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, o.Settings) })
	mux.Handle("GET /metrics", o.Metrics)
	mux.Handle("GET /log", o.Log)
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

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
