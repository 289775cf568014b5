package metrics

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// latencyBounds: hits take microseconds, fills milliseconds.
var latencyBounds = [...]time.Duration{
	25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// stripes: connections take turns at so many sets of counters. One set would be
// written by all processors at every request, each waiting for the line the
// other has just had.
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
	_         [64]byte                                 // nobody else's line
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

// Answered records one answer, that took so long from its request's arrival.
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

// LookedUp records where a page was found, and whether another request's
// look-up brought it.
func (s *Stripe) LookedUp(tier Tier, collapsed bool) {
	s.pages[tier].Add(1)
	if collapsed {
		s.collapsed.Add(1)
	}
}

// ConnectionOpened counts a connection and returns how many are open.
func (e *Edge) ConnectionOpened() int64 { return e.connections.Add(1) }

// ConnectionClosed counts it out again.
func (e *Edge) ConnectionClosed() { e.connections.Add(-1) }

// LimitConnections records how many may be open.
func (e *Edge) LimitConnections(n int64) { e.limit.Store(n) }

var (
	requestsDesc = prometheus.NewDesc("listedge_http_requests_total",
		"Requests answered, by route and status.", []string{"route", "status"}, nil)
	secondsDesc = prometheus.NewDesc("listedge_http_request_duration_seconds",
		"Time from a request's arrival to its answer being ready to send, by route and outcome.", []string{"route", "outcome"}, nil)
	pagesDesc = prometheus.NewDesc("listedge_cache_requests_total",
		"Pages looked up, by where they were found; stale ones stood in for a failing origin.", []string{"tier"}, nil)
	collapsedDesc = prometheus.NewDesc("listedge_cache_collapsed_total",
		"Pages that another request's look-up brought.", nil, nil)
	connectionsDesc = prometheus.NewDesc("listedge_http_connections",
		"Open connections of the public listener.", nil, nil)
	connectionLimitDesc = prometheus.NewDesc("listedge_http_connections_limit",
		"Connections of the public listener that may be open at once; above, clients are refused.", nil, nil)
)

// Describe implements prometheus.Collector.
func (e *Edge) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, secondsDesc, pagesDesc, collapsedDesc, connectionsDesc, connectionLimitDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector: it adds the stripes up.
func (e *Edge) Collect(to chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, of func(*Stripe) *atomic.Uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(e.sum(of)), labels...)
	}
	for route := range routes {
		for i := range len(statuses) + 1 {
			status := "other"
			if i < len(statuses) {
				status = strconv.Itoa(statuses[i])
			}
			counter(requestsDesc, func(s *Stripe) *atomic.Uint64 { return &s.answers[route][i] }, route.String(), status)
		}
		for outcome := range outcomes {
			to <- e.histogram(route, outcome)
		}
	}
	for tier := range tiers {
		counter(pagesDesc, func(s *Stripe) *atomic.Uint64 { return &s.pages[tier] }, tier.String())
	}
	counter(collapsedDesc, func(s *Stripe) *atomic.Uint64 { return &s.collapsed })
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(e.connections.Load()))
	to <- prometheus.MustNewConstMetric(connectionLimitDesc, prometheus.GaugeValue, float64(e.limit.Load()))
}

func (e *Edge) sum(of func(*Stripe) *atomic.Uint64) (n uint64) {
	for i := range e.stripes {
		n += of(&e.stripes[i]).Load()
	}
	return n
}

func (e *Edge) histogram(route Route, outcome Outcome) prometheus.Metric {
	n, buckets, sum := uint64(0), map[float64]uint64{}, time.Duration(0)
	for i := range len(latencyBounds) + 1 {
		n += e.sum(func(s *Stripe) *atomic.Uint64 { return &s.latencies[route][outcome].counts[i] })
		if i < len(latencyBounds) {
			buckets[latencyBounds[i].Seconds()] = n
		}
	}
	for i := range e.stripes {
		sum += time.Duration(e.stripes[i].latencies[route][outcome].sum.Load())
	}
	return prometheus.MustNewConstHistogram(secondsDesc, n, sum.Seconds(), buckets, route.String(), outcome.String())
}
