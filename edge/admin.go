package edge

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"
)

// Check looks at one thing a node depends on.
type Check struct {
	Name string
	Run  func(context.Context) error
	// Needed to begin with: the node is not ready until it has passed once.
	// Afterwards a failure is told but changes nothing: every node would see
	// it, and a fleet that goes on with what it has serves more than one that
	// is taken out of rotation.
	Needed bool
}

// Health answers whether this node should be sent requests, and why.
type Health struct {
	checks   []Check
	notes    map[string]func() string
	mode     func() string
	started  atomic.Bool // every needed check has passed once
	draining atomic.Bool
}

// NewHealth makes the health of a node that is not ready yet. mode is what
// pages' freshness rests on. notes tell by name what somebody should look at,
// however ready the node is; an empty text = nothing.
func NewHealth(mode func() string, notes map[string]func() string, checks ...Check) *Health {
	return &Health{mode: mode, notes: notes, checks: checks}
}

// checkTimeout bounds one check.
const checkTimeout = time.Second

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"`
	Mode     string            `json:"mode"`
	Checks   map[string]string `json:"checks"`          // name -> "ok" or what is wrong
	Notes    map[string]string `json:"notes,omitempty"` // name -> what to look at, which makes nothing unready
}

// look runs all checks.
func (h *Health) look(ctx context.Context) Readiness {
	r := Readiness{Draining: h.draining.Load(), Mode: h.mode(), Checks: map[string]string{}}
	for name, text := range h.notes {
		if said := text(); said != "" {
			if r.Notes == nil {
				r.Notes = map[string]string{}
			}
			r.Notes[name] = said
		}
	}
	passed := true
	for _, c := range h.checks {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		err := c.Run(ctx)
		cancel()
		r.Checks[c.Name] = "ok"
		if err != nil {
			r.Checks[c.Name] = oneLine(err.Error())
			passed = passed && !c.Needed
		}
	}
	if passed {
		h.started.Store(true)
	}
	r.Ready = h.Ready()
	return r
}

// Ready says what /readyz last found.
func (h *Health) Ready() bool { return h.started.Load() && !h.draining.Load() }

// Await looks until the node is ready or ctx ends, and tells why it is not,
// once for each state of its checks.
func (h *Health) Await(ctx context.Context, waiting func(checks map[string]string)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var told map[string]string
	for {
		found := h.look(ctx)
		if found.Ready {
			return nil
		}
		if !maps.Equal(found.Checks, told) && ctx.Err() == nil {
			told = found.Checks
			waiting(told)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Drain makes the node not ready for good.
func (h *Health) Drain() { h.draining.Store(true) }

// Admin is the handler of the admin listener, which is not for the public: it
// has no authentication. names are those it answers to beside what hostCheck lets
// pass anyway. metrics, log and explain are what it has at these
// paths: the node's metrics, its last warnings and errors, and what it knows of
// a recent request. settings are those in effect, without secrets.
func Admin(names []string, health *Health, metrics, log http.Handler, explain http.HandlerFunc, settings map[string]any) http.Handler {
	mux := http.NewServeMux()
	checked := &hostCheck{next: mux}
	for _, name := range names {
		checked.names = append(checked.names, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		found := health.look(r.Context())
		status := http.StatusOK
		if !found.Ready {
			status = http.StatusServiceUnavailable
		}
		if !checked.accepts(r.Host) {
			found.Checks, found.Notes = nil, nil
		}
		tell(w, status, found)
	})
	mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { tell(w, http.StatusOK, settings) })
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /log", log)
	mux.HandleFunc("GET /explain", explain)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound) // it has the passwords that were given as flags
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", serveStatus)
	return checked
}

func tell(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
