package metrics

import (
	"maps"
	"math"
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

	// The series of lists. To look a series up takes longer than to count.
	answers   [lists.Collections][len(statuses) + 1]prometheus.Counter // the last one is of all other statuses
	latencies [lists.Collections][OutcomeError + 1]prometheus.Observer // nil = looked up: it is no page
	tiers     [tiers]prometheus.Counter

	// Connections returns how many connections are open, and how many may be. The server sets it.
	Connections func() (open, limit int64)
}

// begin makes the series of lists, so that the first response of a kind is an increase. Those of
// other routes, of which most can never be, begin with their first response.
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

// statusLabel is the status of that number in statuses.
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
	Requests, Refused, Failed uint64             // all; answered with 429; answered with 500 or 503
	Pages, Hits               uint64             // looked up; of these, found in memory or in Redis
	Latencies                 map[string]Buckets // of pages, by outcome
}

// Totals reads the counters.
func (e *Edge) Totals() Totals {
	t := Totals{Latencies: map[string]Buckets{}}
	read(e.requests, func(m *dto.Metric) {
		n := uint64(m.Counter.GetValue())
		t.Requests += n
		switch m.Label[1].GetValue() { // route, status
		case "429":
			t.Refused += n
		case "500", "503":
			t.Failed += n
		}
	})
	read(e.pages, func(m *dto.Metric) {
		n := uint64(m.Counter.GetValue())
		t.Pages += n
		if tier := m.Label[0].GetValue(); tier == TierMemory.String() || tier == TierRedis.String() {
			t.Hits += n
		}
	})
	for outcome := OutcomeMemory; outcome <= OutcomeNotModified; outcome++ {
		t.Latencies[outcome.String()] = Buckets{}
	}
	read(e.durations, func(m *dto.Metric) {
		if b := t.Latencies[m.Label[0].GetValue()]; b != nil { // outcome, route
			b.add(m.Histogram)
		}
	})
	return t
}

// read calls do for each series of a metric. Its labels are in the order of their names.
func read(metric prometheus.Collector, do func(*dto.Metric)) {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		metric.Collect(series)
	}()
	for s := range series {
		var m dto.Metric
		if s.Write(&m) == nil {
			do(&m)
		}
	}
}

// Buckets are the counts of a native histogram, by the bucket's index. Bucket i ends at
// 2^(i/4) seconds.
type Buckets map[int]int64

func (b Buckets) add(h *dto.Histogram) {
	bucket, n, deltas := 0, int64(0), h.PositiveDelta
	for _, span := range h.PositiveSpan {
		bucket += int(span.GetOffset())
		for range span.GetLength() {
			n += deltas[0]
			b[bucket] += n
			bucket, deltas = bucket+1, deltas[1:]
		}
	}
}

// Add adds the difference of two counts.
func (b Buckets) Add(after, before Buckets) {
	for i, n := range after {
		b[i] += n - before[i]
	}
}

// Quantile returns the duration in seconds that the share q of all durations does not exceed, up
// to half a bucket more or less. It reports false if there are none.
func (b Buckets) Quantile(q float64) (seconds float64, ok bool) {
	var all int64
	for _, n := range b {
		all += n
	}
	rank := q * float64(all)
	for _, i := range slices.Sorted(maps.Keys(b)) {
		if rank -= float64(b[i]); rank <= 0 && all > 0 {
			return math.Exp2((float64(i) - .5) / 4), true
		}
	}
	return 0, false
}
