package metrics

import (
	"slices"
	"sync/atomic"
	"time"

	"listedge/internal/histogram"
)

// stripes is how many sets of counters connections are spread over. With one set,
// all processors would write the same cache lines at every request.
const stripes = 32

// Edge records requests.
type Edge struct {
	stripes [stripes]Stripe
	next    atomic.Uint32

	// Connections returns how many connections are open, and how many may be. The server sets it.
	Connections func() (open, limit int64)
}

// Stripe counts the requests of some connections.
type Stripe struct {
	_         [64]byte                                 // keeps stripes in separate cache lines
	answers   [routes][len(statuses) + 1]atomic.Uint64 // by status; the last element counts all others
	latencies [routes][outcomes]histogram.Histogram
	pages     [tiers]atomic.Uint64
	collapsed atomic.Uint64
}

// Stripe returns the counters for a new connection.
func (e *Edge) Stripe() *Stripe { return &e.stripes[e.next.Add(1)%stripes] }

// Answered records one response, and the time from the arrival of its request.
func (s *Stripe) Answered(route Route, outcome Outcome, status int, took time.Duration) {
	i := slices.Index(statuses[:], status)
	if i < 0 {
		i = len(statuses)
	}
	s.answers[route][i].Add(1)
	s.latencies[route][outcome].Observe(took)
}

// LookedUp records where a page was found, and whether the request shared the
// look-up of another.
func (s *Stripe) LookedUp(tier Tier, collapsed bool) {
	s.pages[tier].Add(1)
	if collapsed {
		s.collapsed.Add(1)
	}
}

// sum returns the sum of a counter over the stripes.
func (e *Edge) sum(of func(*Stripe) *atomic.Uint64) (n uint64) {
	for i := range e.stripes {
		n += of(&e.stripes[i]).Load()
	}
	return n
}

// Latency adds up the histograms of a route and an outcome.
func (e *Edge) Latency(route Route, outcome Outcome) (s histogram.Snapshot) {
	for i := range e.stripes {
		s.Add(&e.stripes[i].latencies[route][outcome])
	}
	return s
}
