package admin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/remedy"
)

// Effect is what a failing check means for readiness.
type Effect int

const (
	// Reported: /readyz names the failing check, and the node stays ready.
	Reported Effect = iota
	// Starts: the node becomes ready only after all such checks have passed. A later failure
	// is reported, but the node stays ready: every node would see the failure, and a
	// fleet that serves its stored pages is better than no fleet.
	Starts
	// Always: the node is not ready while the check fails. It is for what is wrong with this
	// node alone.
	Always
)

// Check is one row of the table of what a node needs. /readyz, the log, the status page and
// the doctor show it, each in its form.
type Check struct {
	Name    string                      `json:"name"` // as people call it: Redis, Replica 10.0.0.9:5432; /readyz has it in lower case
	Run     func(context.Context) error `json:"-"`    // asks a server, or what another server has said; nil = all is well
	Known   func() error                `json:"-"`    // instead of Run: a failure that the node has met while it served
	Ask     func(context.Context) error `json:"-"`    // what the doctor runs instead of Run; without Run or Known the check is the doctor's alone
	Every   time.Duration               `json:"-"`    // the least time until it runs again after it has passed
	Effect  Effect                      `json:"effect"`
	Broken  string                      `json:"broken"`  // what its failure means
	Fine    string                      `json:"-"`       // what the doctor says if it passes; empty = nothing
	Runbook string                      `json:"runbook"` // the section of the runbook about its failure
	Light   bool                        `json:"light"`   // it is a server or the follower: the status page has a light for it
	After   []string                    `json:"-"`       // the checks whose failure explains this one's
}

// CheckState is a check with what its last runs found. It is down after two failures in a row:
// one may have waited for a connection.
type CheckState struct {
	Check
	Checked bool      `json:"checked"` // false: nothing is known yet
	Up      bool      `json:"up"`
	Since   time.Time `json:"since"`             // when it became up or down
	Why     string    `json:"why,omitempty"`     // the failure, while it is down
	Advice  string    `json:"advice,omitempty"`  // what could be better although it is up; Remedy says how
	Remedy  string    `json:"remedy,omitempty"`  // what to do about it; empty = the runbook says so
	Follows bool      `json:"follows,omitempty"` // the failure of another check explains it
	Err     error     `json:"-"`                 // the last failure

	ran, failed time.Time // when the pass began in which it last ran, and when it failed
	failing     time.Time // when the first of the failures in a row began; zero = it passed last
	logged      string    // what the log said last: "down", "advised", or that neither is
}

// advice is what a check returns that passes.
type advice struct{ error }

func (a advice) Unwrap() error { return a.error }

// Advise makes of an error, if there is one, a check's advice: the check passes, and says what could be better.
func Advise(err error) error {
	if err == nil {
		return nil
	}
	return advice{err}
}

// stance is what the log has to say of the check.
func (s *CheckState) stance() string {
	switch {
	case s.Why != "":
		return "down"
	case s.Advice != "":
		return "advised"
	}
	return ""
}

// WhatToDo returns the remedy of a failure, or the section of the runbook that has it.
func (s *CheckState) WhatToDo() string {
	if s.Remedy == "" && s.Runbook != "" {
		return "see " + s.Runbook + " in the runbook"
	}
	return s.Remedy
}

// Health runs the checks of a node in the background, and says whether this node should
// be sent requests, and why. It runs them independently of requests: a hung server delays
// no probe, and an idle node also knows what is down.
type Health struct {
	mode     func() string
	logger   *slog.Logger
	timeout  time.Duration // of a run of a check
	atStart  time.Duration // of a run that a start waits for
	started  atomic.Bool   // all checks that are needed to start have passed
	draining atomic.Bool

	mu     sync.Mutex // guards states, which only Run writes
	states []CheckState

	reported string // whether it is ready, as the log said last; only Run uses it
}

const (
	checkTimeout = time.Second
	// startTimeout bounds what a start waits for. There everything is new, connections, plans and what
	// the server itself keeps, and a check that is cut off starts over: a busy server would never finish one.
	startTimeout = 5 * time.Second
	// examineTimeout is longer than the statement_timeouts of keys and of the doctor's pages together.
	examineTimeout = 2500 * time.Millisecond
	// checkInterval is the time between two runs of a check; startInterval, until the node
	// has started.
	checkInterval = time.Second
	startInterval = 200 * time.Millisecond
	// reportAfter is how long a start may take before the log says that the node is not ready.
	reportAfter = time.Second
	// outageLinger is how long after a server failed a failing use of it is put down to that:
	// breakers stay open for a moment, and usage is written every five seconds.
	outageLinger = 10 * time.Second
)

// NewHealth makes the health of a node that has checked nothing yet. mode returns how pages
// are kept fresh.
func NewHealth(logger *slog.Logger, mode func() string, checks ...Check) *Health {
	h := &Health{logger: logger, mode: mode, timeout: checkTimeout, atStart: startTimeout}
	for _, c := range checks {
		if c.Known != nil {
			c.Run = func(context.Context) error { return c.Known() }
		}
		if c.Run != nil {
			h.states = append(h.states, CheckState{Check: c})
		}
	}
	return h
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"`
	Mode     string            `json:"mode"`
	Checks   map[string]string `json:"checks"` // name -> "ok", "ok: " and advice, or what is wrong and what to do
}

// Run runs the checks until ctx ends. It logs when one goes down or up, or readiness changes.
func (h *Health) Run(ctx context.Context) {
	for began := time.Now(); ctx.Err() == nil; {
		pass := time.Now()
		pause := time.After(checkInterval)
		h.runAll(ctx, pass)
		h.log(time.Since(began) >= reportAfter)
		if !h.started.Load() {
			pause = time.After(startInterval)
		}
		select {
		case <-ctx.Done():
		case <-pause:
		}
	}
}

// Examine returns what a node would know by the checks that ask servers.
func Examine(checks []Check) []CheckState {
	h := Health{logger: slog.New(slog.DiscardHandler), timeout: examineTimeout, atStart: examineTimeout}
	for _, c := range checks {
		if c.Ask != nil {
			c.Run = c.Ask
		}
		if c.Run != nil {
			h.states = append(h.states, CheckState{Check: c, failing: time.Now()}) // one failure is enough
		}
	}
	h.runAll(context.Background(), time.Now())
	h.log(false)
	return h.States()
}

// runAll runs each check that is due, in a pass that began then.
func (h *Health) runAll(ctx context.Context, began time.Time) {
	var running sync.WaitGroup
	for i := range h.states {
		running.Go(func() { h.run(ctx, &h.states[i], began) })
	}
	running.Wait()
}

func (h *Health) run(ctx context.Context, s *CheckState, began time.Time) {
	if s.Up && s.failing.IsZero() && began.Sub(s.ran) < s.Every {
		return
	}
	timeout := h.timeout
	if s.Effect == Starts && !h.started.Load() {
		timeout = h.atStart
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	err := s.Run(limited)
	cancel()
	if ctx.Err() != nil { // the node stops
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.ran = began
	advises := errors.As(err, new(advice))
	if err == nil || advises {
		if !s.Up {
			s.Checked, s.Up, s.Since = true, true, began
		}
		s.failing, s.Why, s.Advice, s.Remedy = time.Time{}, "", "", ""
		if advises {
			s.Advice, s.Remedy = remedy.Explain(err)
		}
		return
	}
	s.failed = time.Now()
	if s.failing.IsZero() {
		s.failing = began
		return
	}
	s.Checked, s.Up, s.Since, s.Err, s.Advice = true, false, s.failing, err, ""
	s.Why, s.Remedy = remedy.Explain(err)
}

// log says which checks have gone down or up or have advice, and whether the node has become ready or not
// ready. A failure is logged once, also if its reason changes, and not before the checks that may explain
// it have run since it began. late = a start may be complained of.
func (h *Health) log(late bool) {
	if h.passed(Starts) {
		h.started.Store(true)
	}
	now, level := "ready", slog.LevelInfo
	if !h.Ready() {
		now, level = "not ready", slog.LevelWarn
	}
	unknown := slices.ContainsFunc(h.States(), func(s CheckState) bool { return !s.Checked }) // as one that hangs
	late = late && !unknown || h.started.Load()
	h.mu.Lock()
	defer h.mu.Unlock()
	var failing []string
	for i := range h.states {
		s := &h.states[i]
		down, looked := s.Why != "", true // looked: what may explain it has run since it began
		s.Follows = false
		for _, o := range h.states {
			if down && slices.Contains(s.After, o.Name) {
				s.Follows = s.Follows || time.Since(o.failed) < outageLinger
				looked = looked && !o.ran.Before(s.failing)
			}
		}
		if down {
			failing = append(failing, strings.ToLower(s.Name))
		}
		stance := s.stance()
		if stance == s.logged || s.Follows || !looked || !late {
			continue
		}
		s.logged = stance
		switch stance {
		case "down":
			h.logger.Warn(s.Broken, "error", s.Why, "remedy", s.WhatToDo())
		case "advised":
			h.logger.Warn(s.Broken, "advice", s.Advice, "remedy", s.Remedy)
		default:
			h.logger.Info("no longer: " + s.Broken)
		}
	}
	if late && now != h.reported && !h.draining.Load() {
		h.logger.Log(context.Background(), level, now, "failing", cmp.Or(strings.Join(failing, ", "), "none"))
		h.reported = now
	}
}

// passed reports whether all checks with this effect or a stronger one are up.
func (h *Health) passed(effect Effect) bool {
	return !slices.ContainsFunc(h.States(), func(s CheckState) bool { return s.Effect >= effect && !s.Up })
}

// Readiness returns what the last checks found. It does not wait.
func (h *Health) Readiness() Readiness {
	r := Readiness{Ready: h.Ready(), Draining: h.draining.Load(), Mode: h.mode(), Checks: map[string]string{}}
	for _, s := range h.States() {
		text := "ok"
		switch {
		case !s.Checked:
			text = "not checked yet"
		case s.Why != "":
			text = strings.TrimSuffix(s.Why+": "+s.WhatToDo(), ": ")
		case s.Advice != "":
			text = strings.TrimSuffix("ok: "+s.Advice+": "+s.Remedy, ": ")
		}
		r.Checks[strings.ToLower(s.Name)] = text
	}
	return r
}

// Ready reports whether the node is ready, by the results of the last checks.
func (h *Health) Ready() bool { return h.started.Load() && !h.draining.Load() && h.passed(Always) }

// Drain makes the node permanently not ready: it is about to stop.
func (h *Health) Drain() { h.draining.Store(true) }

// States are the states of all checks, in their order.
func (h *Health) States() []CheckState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.states)
}

// Metrics says which checks are up, by their names in /readyz, once that is known.
func (h *Health) Metrics() map[string]bool {
	known := map[string]bool{}
	for _, s := range h.States() {
		if s.Checked {
			known[strings.ToLower(s.Name)] = s.Up
		}
	}
	return known
}
