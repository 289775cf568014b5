package deploy_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// outage is something that people are paged for.
type outage struct {
	name       string
	pages      string // the alerts that name it
	follows    string // alerts that fire, too, and are inhibited
	begin, end func(t *testing.T)
	meanwhile  func(t *testing.T, p *prometheus) // looks at it; nil = nothing
	calms      bool                              // all alerts have to end after the outage, too: that takes minutes
}

const withoutRedis = "LimiterDegraded NoFollower FreshnessUntrusted"

// Each outage is one page, which names its cause. The soak has all others.
func TestEachOutageIsOnePage(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
	f.startHAProxy(t)
	f.play(t, []outage{{"Redis is killed", "RedisDown", withoutRedis, does(f.redis.Kill), func(t *testing.T) { must(f.redis.Restart(t.Context())) },
		f.seesPanels, false}})
}

// seesPanels asks for all panels of the dashboard, which show most while something is wrong.
func (f *fleet) seesPanels(t *testing.T, p *prometheus) {
	t.Helper()
	p.askPanels(t, func(expr string) bool { return !strings.Contains(expr, "quota_used") }) // no workspace here has a quota
	// The version that distributions have stores either kind of buckets, not both.
	native := startPrometheus(t, f, &alertmanager{url: "127.0.0.1:" + freePort()}, "native-histograms") // it tells nobody
	const duration, queryDuration = "listedge_http_request_duration_seconds", "listedge_origin_query_duration_seconds"
	by := func(latency string) string {
		return "histogram_quantile(0.99, sum (rate(" + latency + `{job="listedge"}[30s]))) > 0`
	}
	within(t, patience, "native histograms are stored", func() bool { return len(native.ask(t, by(duration)))+len(native.ask(t, by(queryDuration))) == 2 })
	native.askPanels(t, func(expr string) bool { return strings.Contains(expr, "_duration_seconds{") })
	for _, latency := range []string{duration, queryDuration} {
		if p99 := native.ask(t, by(latency)); len(p99) != 1 || must1(strconv.ParseFloat(p99[0].Value[1].(string), 64)) > 60 {
			t.Errorf("by native histograms, 99 of 100 %s are below %v", latency, p99)
		}
	}
}

// does makes a step of an outage from what may fail.
func does(do func() error) func(*testing.T) { return func(*testing.T) { must(do()) } }

// besides drops the watchdog, and the alerts on objectives (error budgets): a busy machine may
// miss one while all is well.
func besides(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "ListedgeErrorBudget") || name == "ListedgeWatchdog"
	})
}

// play begins and ends each outage. Each has a Prometheus and an Alertmanager of its own,
// which know nothing of the one before.
func (f *fleet) play(t *testing.T, outages []outage) {
	t.Helper()
	stop := load("127.0.0.1:"+f.public, f.key, 200*time.Millisecond)
	defer stop()
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			for _, n := range f.nodes {
				n.awaitMode(t, "followed")
			}
			a := startAlertmanager(t)
			p := startPrometheus(t, f, a)
			within(t, patience, "all is well", func() bool {
				return len(p.ask(t, `listedge:slo_all:rate5m{slo="availability"} > 1`)) == 1 && len(besides(p.firing(t))) == 0
			})
			end := sync.OnceFunc(func() { o.end(t) })
			defer end()
			defer func() {
				if active, inhibited := a.state(t); t.Failed() {
					t.Logf("active are %v, inhibited %v, sent %v", active, inhibited, a.notifications())
				}
			}()
			o.begin(t)
			p.find(f)
			pages, follows := alertsOf(o.pages), alertsOf(o.follows)
			within(t, patience, "what follows from it fires, and notifications name the cause", func() bool {
				_, inhibited := a.state(t)
				missing := slices.ContainsFunc(follows, func(name string) bool { return !slices.Contains(inhibited, name) })
				return !missing && len(besides(a.notifications())) >= len(pages)
			})
			if active, _ := a.state(t); !slices.Equal(besides(active), pages) {
				t.Errorf("%v are not inhibited", active)
			}
			if o.meanwhile != nil {
				o.meanwhile(t, p)
			}
			end()
			if o.calms {
				within(t, patience, "the alerts end", func() bool { return len(besides(p.firing(t))) == 0 })
			}
			if sent := besides(a.notifications()); !slices.Equal(sent, pages) {
				t.Errorf("notifications went out for %v", sent)
			}
		})
	}
}

// alertsOf returns the names of alerts that text gives without their prefix Listedge.
func alertsOf(text string) (names []string) {
	for name := range strings.FieldsSeq(text) {
		names = append(names, "Listedge"+name)
	}
	return names
}
