package admin

import (
	"cmp"
	_ "embed"
	"net/http"
	"slices"
	"time"

	"listedge/edge"
	"listedge/metrics"
)

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
