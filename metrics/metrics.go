// Package metrics gives every number of the service its name, its help text
// and its labels. What happens per request is recorded here by edge, in plain
// counters; what the layers count for themselves is collected from their Stats
// when Prometheus asks.
//
// Labels have fixed, small sets of values: never a workspace, a key or a path.
package metrics

import (
	"net/http"
	"runtime"

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

// Registry is a node's metrics.
type Registry struct {
	registry *prometheus.Registry
	Edge     *Edge
}

// New makes the registry of a node with what needs no layer to be counted.
func New(version, revision string) *Registry {
	r := &Registry{registry: prometheus.NewRegistry(), Edge: &Edge{}}
	r.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(version, revision),
	)
	r.registry.MustRegister(r.Edge)
	return r
}

// Handler serves the metrics in the format the scraper asks for.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

func buildInfo(version, revision string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "listedge_build_info",
		Help:        "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
