// Package metrics gives every number of the service its name, its help text
// and its labels: all of them are in names.go.
//
//	edge, latencies ── recorded ───────────┐
//	                                       ├── names.go ──► /metrics
//	cache, limiter, origin, … ── Stats ────┘   (read at each scrape)
//
// Labels have small sets of values: never a key or a path, and of workspaces only those with the
// five fullest quotas.
package metrics

import (
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"listedge/cache"
)

// Route is what requests are for, as a label has it: a list, the documents, or nothing that exists. The
// series that are counted often are kept in it, because to look one up takes longer than to count.
type Route struct {
	name      string
	answers   [600]prometheus.Counter // by status; nil = it is looked up
	latencies [OutcomeError + 1]prometheus.Observer
}

func (r *Route) String() string { return r.name }

// Outcome is how a request ended.
type Outcome uint8

// The outcomes; OutcomeOther is a response that is not a page, such as the
// documentation. OutcomeMemory to OutcomeStale also say where a page was found.
const (
	OutcomeOther Outcome = iota
	OutcomeMemory
	OutcomeRedis
	OutcomeOrigin
	OutcomeStale  // served because the origin failed
	OutcomeBypass // read because the request said Cache-Control: no-cache; also a 304
	OutcomeNotModified
	OutcomeLimited
	OutcomeError
)

func (o Outcome) String() string {
	return [...]string{"other", "memory", "redis", "origin", "stale", "bypass", "not_modified", "limited", "error"}[o]
}

// Registry is a node's metrics.
type Registry struct {
	registry *prometheus.Registry
	Edge     *Edge

	commits, queries, redisCalls *prometheus.HistogramVec // of the layers below edge, which do not know Prometheus
}

// CommitApplied records how long after a commit this node applied it.
func (r *Registry) CommitApplied(lag time.Duration) {
	r.commits.WithLabelValues().Observe(lag.Seconds())
}

// Queried records a query for a page.
func (r *Registry) Queried(server, outcome string, took time.Duration) {
	r.queries.WithLabelValues(server, outcome).Observe(took.Seconds())
}

// RedisCalls returns a function that records the calls to Redis for one purpose.
func (r *Registry) RedisCalls(purpose string) func(took time.Duration) {
	calls := r.redisCalls.WithLabelValues(purpose)
	return func(took time.Duration) { calls.Observe(took.Seconds()) }
}

// New makes the registry of a node, with the metrics of edge and the build. Collect adds
// those of the other layers.
func New(version, revision string) *Registry {
	r := newRegistry()
	r.Edge.begin()
	r.commits.WithLabelValues()
	r.queries.WithLabelValues("primary", "ok")
	r.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collector(func(send scrape) {
			send.labelled("build_info", "Always 1; the labels say what is running.", "version", "revision", "goversion")(1, version, revision, runtime.Version())
		}))
	return r
}

// Handler serves the metrics in the format that the scraper accepts.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Collect registers the layers. read is called once for each scrape.
func (r *Registry) Collect(read func() Snapshot) {
	r.registry.MustRegister(collector(func(send scrape) { read().metrics(send) }))
}

// Edge records requests.
type Edge struct {
	requests  *prometheus.CounterVec   // by route and status
	durations *prometheus.HistogramVec // by route and outcome
	pages     *prometheus.CounterVec   // by tier
	collapsed *prometheus.CounterVec
	tracked   *prometheus.CounterVec // by kind and cause

	found [OutcomeStale + 1]prometheus.Counter // kept as those of Route
}

// begin makes the series that are of no route.
func (e *Edge) begin() {
	for tier := OutcomeMemory; tier <= OutcomeStale; tier++ {
		e.found[tier] = e.pages.WithLabelValues(tier.String())
	}
	e.collapsed.WithLabelValues()
	for kind := range cache.TrackedKinds {
		e.tracked.WithLabelValues(kind.String(), "")
	}
	for cause := cache.NotFull + 1; cause < cache.FullCauses; cause++ {
		e.tracked.WithLabelValues(cache.Full.String(), cause.String())
	}
}

// Route returns the route of a name. Its series, most of which never occur, begin with their first
// response.
func (e *Edge) Route(name string) *Route { return &Route{name: name} }

// List returns the route of the list of a name. It makes the series that lists have, so that the first
// response of a kind is an increase.
func (e *Edge) List(name string) *Route {
	route := e.Route(name)
	for _, status := range []int{200, 304, 400, 401, 403, 405, 412, 413, 429, 500, 503, 504} {
		route.answers[status] = e.requests.WithLabelValues(name, strconv.Itoa(status))
	}
	for outcome := OutcomeMemory; outcome <= OutcomeNotModified; outcome++ {
		route.latencies[outcome] = e.durations.WithLabelValues(name, outcome.String())
	}
	return route
}

// Answered records one response, and the time from the arrival of its request.
func (e *Edge) Answered(route *Route, outcome Outcome, status int, took time.Duration) {
	answers, latency := route.answers[status], route.latencies[outcome]
	if answers == nil {
		answers = e.requests.WithLabelValues(route.name, strconv.Itoa(status))
	}
	if latency == nil {
		latency = e.durations.WithLabelValues(route.name, outcome.String())
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

// Tracked records a page for a client that tracks a list.
func (e *Edge) Tracked(t *cache.Tracked) {
	e.tracked.WithLabelValues(t.Kind.String(), t.Cause.String()).Inc()
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

// collector sends metrics that are read at a scrape. It announces none of them, so the registry
// checks them at each scrape.
type collector func(send scrape)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// scrape is where metrics are sent.
type scrape chan<- prometheus.Metric

// value sends a metric without labels.
func (out scrape) value(name, help string, value any) { out.labelled(name, help)(value) }

// labelled returns a function that sends one series of a metric, given its value and those of its
// labels. A metric is a counter if its name ends in _total, and otherwise a gauge.
func (out scrape) labelled(name, help string, labels ...string) (series func(value any, of ...string)) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	desc := prometheus.NewDesc(prefix+name, help, labels, nil)
	return func(value any, of ...string) { out <- prometheus.MustNewConstMetric(desc, kind, number(value), of...) }
}

// series are the values of a metric by those of its one label.
type series map[string]any

// by sends a metric with one label.
func (out scrape) by(label, name, help string, values series) {
	send := out.labelled(name, help, label)
	for of, value := range values {
		send(value, of)
	}
}

// number converts a value for Prometheus: a time to seconds, a condition to 0 or 1.
func number(value any) float64 {
	switch v := value.(type) {
	case time.Duration:
		return v.Seconds()
	case bool:
		if v {
			return 1
		}
		return 0
	case float64:
		return v
	}
	v := reflect.ValueOf(value)
	if v.CanUint() {
		return float64(v.Uint())
	}
	return float64(v.Int())
}
