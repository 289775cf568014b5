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

	// The series of the lists' routes, kept because to look one up takes longer than to count.
	answers   [lists.Collections][len(statuses) + 1]prometheus.Counter // by index in statuses; the last one is of all others
	latencies [lists.Collections][OutcomeError + 1]prometheus.Observer // by outcome; nil = no page, so it is looked up
	tiers     [tiers]prometheus.Counter

	// Connections returns how many connections are open, and how many may be. The server sets it.
	Connections func() (open, limit int64)
}

// begin makes the series of lists, so that the first response of a kind is an increase. Series of
// other routes, most of which never occur, begin with their first response.
func (e *Edge) begin() {
	for _, c := range lists.All {
		for i := range e.answers[c] {
			e.answers[c][i] = e.requests.WithLabelValues(c.String(), statusLabel(i))
		}
		for outcome := OutcomeMemory; outcome <= OutcomeNotModified; outcome++ {
			e.latencies[c][outcome] = e.durations.WithLabelValues(c.String(), outcome.String())
		}
	}
	for tier := range tiers {
		e.tiers[tier] = e.pages.WithLabelValues(tier.String())
	}
	e.collapsed.WithLabelValues()
}

// statusLabel is the label of statuses[i]; other behind its end.
func statusLabel(i int) string {
	if i == len(statuses) {
		return "other"
	}
	return strconv.Itoa(statuses[i])
}

// Answered records one response, and the time from the arrival of its request.
func (e *Edge) Answered(route Route, outcome Outcome, status int, took time.Duration) {
	i := slices.Index(statuses[:], status)
	if i < 0 {
		i = len(statuses)
	}
	var latency prometheus.Observer
	if route >= routeLists {
		e.answers[route-routeLists][i].Inc()
		latency = e.latencies[route-routeLists][outcome]
	} else {
		e.requests.WithLabelValues(route.String(), statusLabel(i)).Inc()
	}
	if latency == nil {
		latency = e.durations.WithLabelValues(route.String(), outcome.String())
	}
	latency.Observe(took.Seconds())
}

// LookedUp records where a page was found, and whether the request shared the
// look-up of another.
func (e *Edge) LookedUp(tier Tier, collapsed bool) {
	e.tiers[tier].Inc()
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
		Pages: total(e.pages), Hits: total(e.pages, TierMemory.String(), TierRedis.String())}
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
