package deploy_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// prometheus is a real one with the configuration and the rules of the stack,
// and the addresses of this machine.
type prometheus struct{ url string }

// prometheusNodes is how it finds the nodes of the stack. Here it has no name that
// leads to them: it asks the resolver of the machine.
const prometheusNodes = `    dns_sd_configs:
      # Docker answers with the addresses of all nodes.
      - names: [node]
        type: A
        port: 9090
        refresh_interval: 5s
`

func startPrometheus(t *testing.T, f *fleet, a *alertmanager, features ...string) *prometheus {
	t.Helper()
	// Causes outlast their consequences by seconds instead of minutes.
	rules := write(t, "rules.yml", replaced(t, rulesFile, "keep_firing_for: 6m", "keep_firing_for: 20s", "keep_firing_for: 8m", "keep_firing_for: 40s"))
	targets := []string{}
	for _, n := range f.nodes {
		targets = append(targets, "'"+n.admin+"'")
	}
	p := &prometheus{url: "127.0.0.1:" + freePort(t)}
	config := write(t, "prometheus.yml", replaced(t, "prometheus/prometheus.yml",
		"\n    always_scrape_classic_histograms: true", "", // which older versions do not know
		"rules/*.yml", rules, "'alertmanager:9093'", "'"+a.url+"'",
		prometheusNodes, "    static_configs: [{targets: ["+strings.Join(targets, ", ")+"]}]\n",
		`'([^:]+):\d+'`, "'(.+)'", // nodes of this machine differ by their ports
		"['localhost:9090']", "['"+p.url+"']", "['haproxy:8404']", "[]",
		"scrape_interval: 5s", "scrape_interval: 1s", "evaluation_interval: 5s", "evaluation_interval: 1s", "scrape_timeout: 4s", "scrape_timeout: 1s"))
	startProgram(t, exec.Command(tool(t, "prometheus"), "--config.file="+config, "--enable-feature="+strings.Join(features, ","), "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+p.url))
	within(t, patience, "Prometheus is ready", func() bool {
		status, _, err := get("http://"+p.url+"/-/ready", "")
		return err == nil && status == http.StatusOK
	})
	return p
}

// ask returns the samples of a query's result, by their labels.
func (p *prometheus) ask(t *testing.T, query string) (samples []map[string]string) {
	t.Helper()
	_, body, err := get("http://"+p.url+"/api/v1/query?query="+url.QueryEscape(query), "")
	must(err)
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", query, err, answer.Error)
	}
	for _, r := range answer.Data.Result {
		samples = append(samples, r.Metric)
	}
	return samples
}

// firing lists the alerts that fire, each once.
func (p *prometheus) firing(t *testing.T) (names []string) {
	t.Helper()
	for _, alert := range p.ask(t, `count by (alertname) (ALERTS{alertstate="firing"})`) {
		names = append(names, alert["alertname"])
	}
	slices.Sort(names)
	return names
}

// One outage is one notification, which names its cause, from its beginning until all
// that follows from it has ended.
func TestOneOutageOfRedisIsOneAlert(t *testing.T) {
	t.Parallel()
	f, a := startFleet(t, 2), startAlertmanager(t)
	p := startPrometheus(t, f, a)
	// The version that distributions have stores either kind of buckets, not both.
	native := startPrometheus(t, f, startAlertmanager(t), "native-histograms")
	stop := f.load(t)
	defer stop()
	within(t, patience, "both nodes watched", func() bool { return len(p.ask(t, `up{job="listedge"} == 1`)) == 2 })
	// A busy machine may miss the objective of latency while all is well, and after it.
	besides := func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "ListedgeErrorBudget") })
	}
	if names := besides(p.firing(t)); len(names) > 0 {
		t.Fatalf("%v fire while all is well", names)
	}
	must(f.redis.Kill())
	consequences := []string{"ListedgeFreshnessUntrusted", "ListedgeLimiterDegraded", "ListedgeNoFollower"}
	within(t, patience, "what follows from it fires, and a notification names Redis", func() bool {
		_, inhibited := a.state(t)
		missing := slices.ContainsFunc(consequences, func(name string) bool { return !slices.Contains(inhibited, name) })
		return !missing && len(a.notifications()) > 0
	})
	if active, _ := a.state(t); !slices.Equal(active, []string{"ListedgeRedisDown"}) {
		t.Errorf("%v are not inhibited", active)
	}
	// Each panel shows something, and best while something is wrong.
	p.askPanels(t, func(expr string) bool { return !strings.Contains(expr, "quota_used") }) // no workspace here has a quota
	native.askPanels(t, func(expr string) bool { return strings.Contains(expr, "_duration_seconds{") })
	for _, latency := range []string{duration, queryDuration} {
		if p99 := native.value(t, "histogram_quantile(0.99, sum (rate("+latency+`{job="listedge"}[30s])))`); !(p99 > 0 && p99 < 60) {
			t.Errorf("by native histograms, 99 of 100 %s are below %v", latency, p99)
		}
	}
	must(f.redis.Restart(t.Context()))
	within(t, patience, "the alerts end", func() bool { return len(besides(p.firing(t))) == 0 })
	if names := besides(a.notifications()); !slices.Equal(names, []string{"ListedgeRedisDown"}) {
		t.Errorf("notifications went out for %v", names)
	}
}

// value is a query's result, which is one number.
func (p *prometheus) value(t *testing.T, query string) float64 {
	t.Helper()
	_, body, err := get("http://"+p.url+"/api/v1/query?query="+url.QueryEscape(query), "")
	must(err)
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Data.Result) != 1 {
		t.Fatalf("%s: %v %s", query, err, body)
	}
	n := must1(strconv.ParseFloat(answer.Data.Result[0].Value[1].(string), 64))
	return n
}

// askPanels puts the queries of the dashboard to it, as Grafana would, those that are
// chosen.
func (p *prometheus) askPanels(t *testing.T, chosen func(expr string) bool) {
	t.Helper()
	fill := strings.NewReplacer("$__rate_interval", "15s", "$job", "listedge", "$instance", ".*")
	for _, r := range dashboard {
		for _, panel := range r.panels {
			for _, q := range panel.queries {
				if chosen(q.expr) && len(p.ask(t, fill.Replace(selectors(q.expr)))) == 0 {
					t.Errorf("%q shows nothing: %s", panel.title, q.expr)
				}
			}
		}
	}
}

// load asks every node for pages, some of them wrong, until stopped.
func (f *fleet) load(t *testing.T) (stop func()) {
	ended, end := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, n := range f.nodes {
				for _, path := range []string{"/v1/items", "/v1/contacts", "/v1/items?limit=1", "/v1/none"} {
					_, _, _ = get("http://"+n.public+path, f.key)
				}
			}
			select {
			case <-end:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() { close(end); <-ended }
}
