package metrics

import (
	"slices"
	"sync/atomic"
	"time"

	"listedge/cache"
)

// latencyBounds: hits take microseconds, fills milliseconds.
var latencyBounds = [...]time.Duration{
	25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// stripes is how many sets of counters connections are spread over. With one set,
// all processors would write the same cache lines at every request.
const stripes = 32

// Edge records requests.
type Edge struct {
	stripes     [stripes]Stripe
	next        atomic.Uint32
	connections atomic.Int64
	limit       atomic.Int64
}

// Stripe counts the requests of some connections.
type Stripe struct {
	_         [64]byte                                 // a cache line of its own
	answers   [routes][len(statuses) + 1]atomic.Uint64 // the last: any other status
	latencies [routes][outcomes]latencies
	pages     [tiers]atomic.Uint64
	collapsed atomic.Uint64
}

type latencies struct {
	counts [len(latencyBounds) + 1]atomic.Uint64 // the last: longer than all bounds
	sum    atomic.Int64                          // nanoseconds
}

// Stripe returns the counters for another connection.
func (e *Edge) Stripe() *Stripe { return &e.stripes[e.next.Add(1)%stripes] }

// Answered records one response, and the time from the arrival of its request.
func (s *Stripe) Answered(route Route, outcome Outcome, status int, took time.Duration) {
	i := slices.Index(statuses[:], status)
	if i < 0 {
		i = len(statuses)
	}
	s.answers[route][i].Add(1)
	l, bound := &s.latencies[route][outcome], 0
	for bound < len(latencyBounds) && took > latencyBounds[bound] {
		bound++
	}
	l.counts[bound].Add(1)
	l.sum.Add(int64(took))
}

// LookedUp records where a page was found, and whether the request shared the
// look-up of another.
func (s *Stripe) LookedUp(tier Tier, collapsed bool) {
	s.pages[tier].Add(1)
	if collapsed {
		s.collapsed.Add(1)
	}
}

// ConnectionOpened counts a connection and returns how many are open.
func (e *Edge) ConnectionOpened() int64 { return e.connections.Add(1) }

// ConnectionClosed counts a connection that was closed.
func (e *Edge) ConnectionClosed() { e.connections.Add(-1) }

// LimitConnections records how many may be open.
func (e *Edge) LimitConnections(n int64) { e.limit.Store(n) }

// sum adds a counter up over the stripes.
func (e *Edge) sum(of func(*Stripe) *atomic.Uint64) (n uint64) {
	for i := range e.stripes {
		n += of(&e.stripes[i]).Load()
	}
	return n
}

// latency is the histogram of a route and an outcome: buckets are cumulative, by
// their upper bounds in seconds.
func (e *Edge) latency(route Route, outcome Outcome) (h cache.Histogram) {
	h.Buckets = map[float64]uint64{}
	for i := range len(latencyBounds) + 1 {
		h.Count += e.sum(func(s *Stripe) *atomic.Uint64 { return &s.latencies[route][outcome].counts[i] })
		if i < len(latencyBounds) {
			h.Buckets[latencyBounds[i].Seconds()] = h.Count
		}
	}
	for i := range e.stripes {
		h.Sum += time.Duration(e.stripes[i].latencies[route][outcome].sum.Load()).Seconds()
	}
	return h
}
