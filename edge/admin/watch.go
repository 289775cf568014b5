package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"listedge/metrics"
)

// Dependency is a server, or a service of the fleet, that the node needs.
type Dependency struct {
	Name    string // as people call it: Postgres, Redis, follower, replica 10.0.0.9:5432
	Runbook string // the section of the runbook that is about its failure
	Check   func(context.Context) error
	Metric  metrics.Dependency // without Up; zero = other metrics describe it
}

// DependencyState is what the last checks of a dependency found.
type DependencyState struct {
	Name    string    `json:"name"`
	Runbook string    `json:"runbook"`
	Checked bool      `json:"checked"` // false: nothing is known yet
	Up      bool      `json:"up"`
	Since   time.Time `json:"since"`           // when it became up or down
	Why     string    `json:"why,omitempty"`   // the error, in a few words
	Error   string    `json:"error,omitempty"` // all of it
}

// Watch checks dependencies every second, independently of requests, so that an idle node
// also knows what is down. It checks them concurrently, so that a hung dependency does
// not delay the checks of others.
type Watch struct {
	dependencies []Dependency

	mu     sync.Mutex // guards states
	states []watched
}

// watched is a dependency's state and how many checks failed in a row.
type watched struct {
	DependencyState
	failures int
	failing  time.Time // when the first of them began
}

const (
	watchInterval = time.Second
	// downAfter is how many checks in a row fail before a dependency counts as down:
	// one may have waited for a connection.
	downAfter = 2
)

// NewWatch makes a watch that has checked nothing yet.
func NewWatch(dependencies ...Dependency) *Watch {
	w := &Watch{dependencies: dependencies, states: make([]watched, len(dependencies))}
	for i, d := range dependencies {
		w.states[i].Name, w.states[i].Runbook = d.Name, d.Runbook
	}
	return w
}

// Run checks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	var checking sync.WaitGroup
	defer checking.Wait()
	for i := range w.dependencies {
		checking.Go(func() {
			tick := time.NewTicker(watchInterval)
			defer tick.Stop()
			for {
				w.check(ctx, i)
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

func (w *Watch) check(ctx context.Context, i int) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	err := w.dependencies[i].Check(limited)
	cancel()
	if ctx.Err() != nil { // the node stops
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.states[i]
	if err == nil {
		if !s.Up {
			s.Up, s.Since = true, began
		}
		s.Checked, s.failures, s.Why, s.Error = true, 0, "", ""
		return
	}
	if s.failures++; s.failures == 1 {
		s.failing = began
	}
	if s.failures < downAfter {
		return
	}
	if s.Up || !s.Checked {
		s.Checked, s.Up, s.Since = true, false, s.failing
	}
	s.Why, s.Error = inFewWords(err), oneLine(err.Error())
}

// States are all dependencies, in their order.
func (w *Watch) States() []DependencyState {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]DependencyState, len(w.states))
	for i := range w.states {
		all[i] = w.states[i].DependencyState
	}
	return all
}

// Metrics are the metrics of the dependencies that have been checked.
func (w *Watch) Metrics() (known []metrics.Dependency) {
	for i, s := range w.States() {
		if m := w.dependencies[i].Metric; s.Checked && m != (metrics.Dependency{}) {
			m.Up = s.Up
			known = append(known, m)
		}
	}
	return known
}

// maxWhy bounds what a status line says of an error, in bytes.
const maxWhy = 160

// inFewWords returns the innermost reason of an error, in words for an operator.
func inFewWords(err error) string {
	var errno syscall.Errno
	var name *net.DNSError
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &name):
		return fmt.Sprintf("the name %s does not resolve", name.Name)
	case isTimeout(err):
		return "no answer in time"
	}
	text := oneLine(err.Error())
	if len(text) > maxWhy {
		text = "…" + text[len(text)-maxWhy:]
	}
	return text
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
