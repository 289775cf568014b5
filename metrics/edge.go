package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"listedge/internal/lists"
)

// Edge records requests.
type Edge struct {
	requests  *prometheus.CounterVec   // by route and status
	durations *prometheus.HistogramVec // by route and outcome
	pages     *prometheus.CounterVec   // by tier
	collapsed *prometheus.CounterVec

	// Series of lists, kept because to look one up takes longer than to count; nil = it is looked up.
	answers   [routes][600]prometheus.Counter // by status
	latencies [routes][OutcomeError + 1]prometheus.Observer
	found     [OutcomeStale + 1]prometheus.Counter

	// Connections returns how many connections are open, and how many may be. The server sets it.
	Connections func() (open, limit int64)
}

// begin makes the series of lists, so that the first response of a kind is an increase. Series of
// other routes, most of which never occur, begin with their first response.
func (e *Edge) begin() {
	for _, c := range lists.All {
		route := RouteOf(c)
		for _, status := range []int{200, 304, 400, 401, 403, 405, 412, 413, 429, 500, 503, 504} {
			e.answers[route][status] = e.requests.WithLabelValues(route.String(), strconv.Itoa(status))
		}
		for outcome := OutcomeMemory; outcome <= OutcomeNotModified; outcome++ {
			e.latencies[route][outcome] = e.durations.WithLabelValues(route.String(), outcome.String())
		}
	}
	for tier := OutcomeMemory; tier <= OutcomeStale; tier++ {
		e.found[tier] = e.pages.WithLabelValues(tier.String())
	}
	e.collapsed.WithLabelValues()
}

// Answered records one response, and the time from the arrival of its request.
func (e *Edge) Answered(route Route, outcome Outcome, status int, took time.Duration) {
	answers, latency := e.answers[route][status], e.latencies[route][outcome]
	if answers == nil {
		answers = e.requests.WithLabelValues(route.String(), strconv.Itoa(status))
	}
	if latency == nil {
		latency = e.durations.WithLabelValues(route.String(), outcome.String())
	}
	answers.Inc()
	latency.Observe(took.Seconds())
}

// LookedUp records where a page was found (OutcomeMemory to OutcomeStale), and whether the request
// shared the look-up of another.
func (e *Edge) LookedUp(tier Outcome, collapsed bool) {
	e.found[tier].Inc()
	if collapsed {
		e.collapsed.WithLabelValues().Inc()
	}
}

// Totals are the numbers of requests since the start that the status page shows.
type Totals struct {
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"` // of these, answered with 429
	Failed   uint64 `json:"failed"`  // of these, answered with 500 or 503
	Pages    uint64 `json:"pages"`   // that were looked up
	Hits     uint64 `json:"hits"`    // of these, found in memory or in Redis
}

// Totals adds the counters of Edge up.
func (e *Edge) Totals() Totals {
	return Totals{Requests: total(e.requests), Refused: total(e.requests, "429"), Failed: total(e.requests, "500", "503"),
		Pages: total(e.pages), Hits: total(e.pages, OutcomeMemory.String(), OutcomeRedis.String())}
}

// total adds up the counters of a metric whose last label has one of the values; without any, all.
func total(metric prometheus.Collector, values ...string) (n uint64) {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		metric.Collect(series)
	}()
	for s := range series {
		var m dto.Metric
		if s.Write(&m) == nil && (len(values) == 0 || slices.Contains(values, m.Label[len(m.Label)-1].GetValue())) {
			n += uint64(m.Counter.GetValue())
		}
	}
	return n
}
