package admin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"listedge/metrics"
)

// Effect is what a failing check means for readiness.
type Effect int

const (
	// Reported: /readyz names it, and the node stays ready.
	Reported Effect = iota
	// Starts: the node becomes ready only after all of these have passed. A later failure
	// is reported, but the node stays ready: every node would see the failure, and a
	// fleet that serves its stored pages is better than no fleet.
	Starts
	// Always: the node is not ready while it fails. It is for what is wrong with this node
	// alone.
	Always
)

// Check is one row of the table of what a node needs. /readyz, the log, the status page and
// the doctor show it, each in its form.
type Check struct {
	Name    string                      // as people call it: Redis, Replica 10.0.0.9:5432; /readyz has it in lower case
	Run     func(context.Context) error // nil = all is well
	Effect  Effect
	Broken  string   // what its failure means; empty = the error says it, and something else logs it
	Remedy  string   // what to do about a failure, unless the error knows (WithRemedy); empty = the runbook says so
	Runbook string   // the section of the runbook about its failure
	Light   bool     // it is a server or the follower: the status page has a light for it
	After   []string // the checks whose failure explains this one's
}

// WithRemedy adds to an error what to do about it, behind a colon.
func WithRemedy(err error, remedy string) error { return &remedied{err, remedy} }

type remedied struct {
	error
	remedy string
}

func (r *remedied) Error() string { return r.error.Error() + ": " + r.remedy }

func (r *remedied) Unwrap() error { return r.error }

func (r *remedied) Remedy() string { return r.remedy }

// Explain returns a failure in words for an operator, and what to do about it if the error
// knows.
func Explain(err error) (why, remedy string) {
	knows, timeout := interface{ Remedy() string }(nil), net.Error(nil)
	if errors.As(err, &knows) {
		remedy = knows.Remedy()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time", remedy
	}
	return strings.TrimSuffix(strings.Join(strings.Fields(err.Error()), " "), ": "+remedy), remedy
}

// explain is Explain with the remedy of the table.
func (c *Check) explain(err error) (why, remedy string) {
	why, remedy = Explain(err)
	return why, cmp.Or(remedy, c.Remedy)
}

// Impaired is the failure of a check whose server is up: /readyz names it, the light stays.
type Impaired struct{ Err error }

func (i Impaired) Error() string { return i.Err.Error() }

func (i Impaired) Unwrap() error { return i.Err }

// CheckState is what the last runs of a check found.
type CheckState struct {
	Name    string    `json:"name"`
	Broken  string    `json:"broken"`
	Light   bool      `json:"light"`
	Serious bool      `json:"serious"` // it has a light, or a node needs it to become ready
	Runbook string    `json:"runbook"`
	Checked bool      `json:"checked"` // false: nothing is known yet
	Up      bool      `json:"up"`
	Since   time.Time `json:"since"`             // when it became up or down
	Why     string    `json:"why,omitempty"`     // the failure; empty = there is none
	Remedy  string    `json:"remedy,omitempty"`  // what to do about it; empty = the runbook says so
	Follows bool      `json:"follows,omitempty"` // the failure of another check explains it
}

// WhatToDo is the remedy, or where it is.
func (s *CheckState) WhatToDo() string {
	if s.Remedy == "" && s.Runbook != "" {
		return "see " + s.Runbook + " in the runbook"
	}
	return s.Remedy
}

// checkState is what is known of a check. The embedded state changes after several failures
// in a row; ran and last, with each run.
type checkState struct {
	CheckState
	ran      bool
	last     error
	failures int       // in a row
	failing  time.Time // when the first of them began
	logged   bool      // the log says that it is down
}

// Health runs the checks of a node in the background, and says whether this node should
// be sent requests, and why. It runs them concurrently and independently of requests: a
// hung server delays no other check and no probe, and an idle node also knows what is down.
type Health struct {
	checks   []Check
	mode     func() string
	logger   *slog.Logger
	started  atomic.Bool // all checks that are needed to start have passed
	draining atomic.Bool

	mu       sync.Mutex // guards all below
	states   []checkState
	reported Readiness // that was logged last
}

const (
	checkTimeout = time.Second
	// checkInterval is the time between two runs of a check; startInterval, until the node
	// has started.
	checkInterval = time.Second
	startInterval = 200 * time.Millisecond
	// reportAfter is how long a start may take before the log says that the node is not ready.
	reportAfter = time.Second
	// downAfter is how many checks in a row fail before a dependency counts as down:
	// one may have waited for a connection.
	downAfter = 2
)

// NewHealth makes the health of a node that has checked nothing yet. mode returns how pages
// are kept fresh.
func NewHealth(logger *slog.Logger, mode func() string, checks ...Check) *Health {
	h := &Health{logger: logger, mode: mode, checks: checks, states: make([]checkState, len(checks))}
	for i, c := range checks {
		h.states[i].CheckState = CheckState{Name: c.Name, Broken: c.Broken, Light: c.Light, Serious: c.Light || c.Effect > Reported, Runbook: c.Runbook}
	}
	return h
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"`
	Mode     string            `json:"mode"`
	Checks   map[string]string `json:"checks"` // name -> "ok", or what is wrong and what to do
}

// Run runs the checks until ctx ends. It logs what becomes of each, and of readiness.
func (h *Health) Run(ctx context.Context) {
	began := time.Now()
	var checking sync.WaitGroup
	defer checking.Wait()
	for i := range h.checks {
		checking.Go(func() {
			for ctx.Err() == nil {
				next := time.Now().Add(checkInterval)
				h.check(ctx, i)
				h.logReadiness(time.Since(began) >= reportAfter)
				if !h.started.Load() {
					next = time.Now().Add(startInterval)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Until(next)):
				}
			}
		})
	}
}

func (h *Health) check(ctx context.Context, i int) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	err := h.checks[i].Run(limited)
	cancel()
	if ctx.Err() != nil { // the node stops
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, c := &h.states[i], &h.checks[i]
	defer h.log(c, s)
	s.ran, s.last, s.Why, s.Remedy = true, err, "", ""
	if h.passed(Starts) {
		h.started.Store(true)
	}
	impaired := errors.As(err, &Impaired{})
	if err == nil || impaired {
		if !s.Up {
			s.Up, s.Since = true, began
		}
		s.Checked, s.failures = true, 0
	} else if s.failures++; s.failures == 1 {
		s.failing = began
	}
	if s.failures >= downAfter && (s.Up || !s.Checked) {
		s.Checked, s.Up, s.Since = true, false, s.failing
	}
	if impaired || s.Checked && !s.Up {
		s.Why, s.Remedy = c.explain(err)
	}
}

// log says when a check has gone down or up, once the node has started: before, the log says
// why it is not ready. h.mu is held.
func (h *Health) log(c *Check, s *checkState) {
	down := s.Checked && !s.Up
	if c.Broken == "" || down == s.logged || !h.started.Load() {
		return
	}
	s.logged = down
	if !down {
		h.logger.Info("no longer: " + c.Broken)
	} else if remedy := s.WhatToDo(); remedy != "" {
		h.logger.Warn(c.Broken, "error", s.Why, "remedy", remedy)
	} else {
		h.logger.Warn(c.Broken, "error", s.Why)
	}
}

// passed reports whether the last runs of all checks with this effect or a stronger one have
// passed. h.mu is held.
func (h *Health) passed(effect Effect) bool {
	for i, c := range h.checks {
		if s := &h.states[i]; c.Effect >= effect && (!s.ran || s.last != nil) {
			return false
		}
	}
	return true
}

// logReadiness logs that the node has become ready or not ready, or that the reasons have
// changed. unready = the node may be called not ready by now.
func (h *Health) logReadiness(unready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, last := h.readiness(), h.reported
	if now.Draining || !now.Ready && !unready || now.Ready == last.Ready && (now.Ready || maps.Equal(now.Checks, last.Checks)) {
		return
	}
	h.reported = now
	if now.Ready {
		h.logger.Info("ready")
	} else {
		h.logger.Warn("not ready", "checks", now.Checks)
	}
}

// Readiness returns what the last checks found. It does not wait.
func (h *Health) Readiness() Readiness {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readiness()
}

func (h *Health) readiness() Readiness {
	r := Readiness{Ready: h.ready(), Draining: h.draining.Load(), Mode: h.mode(), Checks: map[string]string{}}
	for i, c := range h.checks {
		text := "ok"
		switch s := &h.states[i]; {
		case !s.ran:
			text = "not checked yet"
		case s.last != nil:
			now := s.CheckState
			now.Why, now.Remedy = c.explain(s.last)
			if text = now.Why; now.WhatToDo() != "" {
				text += ": " + now.WhatToDo()
			}
		}
		r.Checks[strings.ToLower(c.Name)] = text
	}
	return r
}

// Ready reports whether the node is ready, by the results of the last checks.
func (h *Health) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready()
}

func (h *Health) ready() bool { return h.started.Load() && !h.draining.Load() && h.passed(Always) }

// Drain makes the node permanently not ready: it is about to stop.
func (h *Health) Drain() { h.draining.Store(true) }

// States are the states of all checks, in their order.
func (h *Health) States() []CheckState {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]CheckState, len(h.states))
	for i, s := range h.states {
		all[i] = s.CheckState
		all[i].Follows = s.Why != "" && slices.ContainsFunc(h.states, func(o checkState) bool { return o.Why != "" && slices.Contains(h.checks[i].After, o.Name) })
	}
	return all
}

// Metrics are what the checks found, each in the words of /readyz.
func (h *Health) Metrics() (known []metrics.Check) {
	for _, s := range h.States() {
		if s.Checked {
			known = append(known, metrics.Check{Name: strings.ToLower(s.Name), Up: s.Up})
		}
	}
	return known
}
