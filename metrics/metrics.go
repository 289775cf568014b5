// Package metrics gives every number of the service its name, its help text
// and its labels. What happens per request is recorded here by edge, with
// every series resolved at the start; what the layers count for themselves is
// collected from their Stats when Prometheus asks.
//
// Labels have fixed, small sets of values: never a workspace, a key or a path.
package metrics

import (
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Route is where a request went.
type Route uint8

// The routes; RouteNone is a request that went nowhere.
const (
	RouteNone Route = iota
	RouteItems
	RouteContacts
	RouteOpenAPI
	RouteDocs
	routes
)

// Paged says whether the route answers with pages of a list.
func (r Route) Paged() bool { return r == RouteItems || r == RouteContacts }

func (r Route) String() string {
	return [...]string{"none", "items", "contacts", "openapi", "docs"}[r]
}

// Outcome is how a request ended.
type Outcome uint8

// The outcomes; OutcomeOther is an answer that is no page, of the
// documentation for one.
const (
	OutcomeOther Outcome = iota
	OutcomeMemory
	OutcomeRedis
	OutcomeOrigin
	OutcomeStale
	OutcomeNotModified
	OutcomeLimited
	OutcomeError
	outcomes
)

func (o Outcome) String() string {
	return [...]string{"other", "memory", "redis", "origin", "stale", "not_modified", "limited", "error"}[o]
}

// Tier is where a page was found.
type Tier uint8

// The tiers; TierStale is a page that stood in for a failing origin.
const (
	TierMemory Tier = iota
	TierRedis
	TierOrigin
	TierStale
	tiers
)

func (t Tier) String() string { return [...]string{"memory", "redis", "origin", "stale"}[t] }

// statuses are all the server can answer with.
var statuses = [...]int{200, 304, 400, 401, 403, 404, 405, 408, 413, 429, 431, 500, 503}

// latencyBuckets, in seconds: hits take microseconds, fills milliseconds.
var latencyBuckets = []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5}

// Registry is a node's metrics.
type Registry struct {
	registry *prometheus.Registry
	Edge     *Edge
}

// New makes the registry of a node with what needs no layer to be counted.
func New(version string) *Registry {
	r := &Registry{registry: prometheus.NewRegistry()}
	r.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(version),
	)
	r.Edge = newEdge(r.registry)
	return r
}

// Handler serves the metrics in the format the scraper asks for.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

func buildInfo(version string) prometheus.Collector {
	revision, goVersion := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				revision = setting.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "listedge_build_info",
		Help:        "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": goVersion},
	}, func() float64 { return 1 })
}

// Edge records requests.
type Edge struct {
	requests    [routes][len(statuses) + 1]prometheus.Counter // the last: any other status
	seconds     [routes][outcomes]prometheus.Observer
	pages       [tiers]prometheus.Counter
	collapsed   prometheus.Counter
	connections atomic.Int64
}

func newEdge(registry *prometheus.Registry) *Edge {
	e := &Edge{}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "listedge_http_requests_total",
		Help: "Requests answered, by route and status.",
	}, []string{"route", "status"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "listedge_http_request_duration_seconds",
		Help:    "Time from a request's arrival to its answer being ready to send, by route and outcome.",
		Buckets: latencyBuckets,
	}, []string{"route", "outcome"})
	pages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "listedge_cache_requests_total",
		Help: "Pages looked up, by where they were found; stale ones stood in for a failing origin.",
	}, []string{"tier"})
	e.collapsed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "listedge_cache_collapsed_total",
		Help: "Pages that another request's look-up brought.",
	})
	connections := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "listedge_http_connections",
		Help: "Open connections of the public listener.",
	}, func() float64 { return float64(e.connections.Load()) })
	registry.MustRegister(requests, seconds, pages, e.collapsed, connections)
	for route := range routes {
		for i, status := range statuses {
			e.requests[route][i] = requests.WithLabelValues(route.String(), strconv.Itoa(status))
		}
		e.requests[route][len(statuses)] = requests.WithLabelValues(route.String(), "other")
		for outcome := range outcomes {
			e.seconds[route][outcome] = seconds.WithLabelValues(route.String(), outcome.String())
		}
	}
	for tier := range tiers {
		e.pages[tier] = pages.WithLabelValues(tier.String())
	}
	return e
}

// Answered records one answer to a request that arrived at began.
func (e *Edge) Answered(route Route, outcome Outcome, status int, began time.Time) {
	i := slices.Index(statuses[:], status)
	if i < 0 {
		i = len(statuses)
	}
	e.requests[route][i].Inc()
	e.seconds[route][outcome].Observe(time.Since(began).Seconds())
}

// LookedUp records where a page was found, and whether another request's
// look-up brought it.
func (e *Edge) LookedUp(tier Tier, collapsed bool) {
	e.pages[tier].Inc()
	if collapsed {
		e.collapsed.Inc()
	}
}

// ConnectionOpened counts a connection and returns how many are open.
func (e *Edge) ConnectionOpened() int64 { return e.connections.Add(1) }

// ConnectionClosed counts it out again.
func (e *Edge) ConnectionClosed() { e.connections.Add(-1) }
