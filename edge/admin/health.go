package admin

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"time"
)

// Check is one thing that a node depends on.
type Check struct {
	Name string
	Run  func(context.Context) error
	// Needed: the node becomes ready only after all needed checks have passed at once.
	// A later failure is reported, but the node stays ready: every node would see the
	// failure, and a fleet that serves its stored pages is better than no fleet.
	Needed bool
}

// Health says whether this node should be sent requests, and why.
type Health struct {
	checks   []Check
	notes    map[string]func() string
	mode     func() string
	started  atomic.Bool // all needed checks have passed, in one run
	draining atomic.Bool
}

// NewHealth makes the health of a node that is not ready yet. mode returns how pages
// are kept fresh. notes return, by name, texts for an operator that do not affect
// readiness; an empty text = there is nothing to look at.
func NewHealth(mode func() string, notes map[string]func() string, checks ...Check) *Health {
	return &Health{mode: mode, notes: notes, checks: checks}
}

const (
	checkTimeout  = time.Second            // of one check
	checkInterval = 200 * time.Millisecond // of Await
)

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"`
	Mode     string            `json:"mode"`
	Checks   map[string]string `json:"checks"`          // name -> "ok" or what is wrong
	Notes    map[string]string `json:"notes,omitempty"` // name -> what to look at; no note makes a node unready
}

// check runs all checks.
func (h *Health) check(ctx context.Context) Readiness {
	r := Readiness{Draining: h.draining.Load(), Mode: h.mode(), Checks: map[string]string{}, Notes: map[string]string{}}
	for name, note := range h.notes {
		if text := note(); text != "" {
			r.Notes[name] = text
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

// Ready reports whether the node is ready, by the results of the last checks.
func (h *Health) Ready() bool { return h.started.Load() && !h.draining.Load() }

// Await runs the checks until the node is ready or ctx ends. It calls waiting
// when their results have changed and the node is not ready.
func (h *Health) Await(ctx context.Context, waiting func(checks map[string]string)) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	var reported map[string]string
	for {
		readiness := h.check(ctx)
		if readiness.Ready {
			return nil
		}
		if !maps.Equal(readiness.Checks, reported) && ctx.Err() == nil {
			reported = readiness.Checks
			waiting(reported)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Drain makes the node permanently not ready: it is about to stop.
func (h *Health) Drain() { h.draining.Store(true) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
