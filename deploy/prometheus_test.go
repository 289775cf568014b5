package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// prometheus is a real one with the configuration and the rules of the stack,
// and the addresses of this machine.
type prometheus struct{ url, targets string }

// prometheusNodes is how it finds the nodes of the stack. Here it has no name that
// leads to them: it asks the resolver of the machine.
const prometheusNodes = `    dns_sd_configs:
      # Docker answers with the addresses of all nodes.
      - names: [node]
        type: A
        port: 9090
        refresh_interval: 5s
`

// hastened are the rules with a twentieth of their durations, but no patience below 3 s. They alert at 32 MiB of WAL.
// Alerts end as they do with anybody: nodes recover no faster here.
func hastened(t *testing.T) string {
	t.Helper()
	durations := regexp.MustCompile(`(\bfor: |\[)(\d+)([smhd])`)
	return durations.ReplaceAllStringFunc(replaced(t, rulesFile, "> 512 * 1024", "> 32 * 1024",
		"for: 30s\n        keep_firing_for: 90s", "for: 30s"), // Prometheus that starts knows no node yet
		func(found string) string {
			part := durations.FindStringSubmatch(found)
			unit := map[string]int{"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[part[3]]
			duration := must1(strconv.Atoi(part[2])) * unit / 20
			if part[1] != "[" {
				duration = max(duration, 3000)
			}
			return part[1] + strconv.Itoa(duration) + "ms"
		})
}

func startPrometheus(t *testing.T, f *fleet, a *alertmanager, features ...string) *prometheus {
	t.Helper()
	p := &prometheus{url: "127.0.0.1:" + freePort(), targets: filepath.Join(t.TempDir(), "nodes.json")}
	p.find(f)
	config := write(t, "prometheus.yml", replaced(t, "prometheus/prometheus.yml",
		"\n    scrape_native_histograms: true\n    always_scrape_classic_histograms: true", "", // which older versions do not know
		"rules/*.yml", write(t, "rules.yml", hastened(t)), "'alertmanager:9093'", "'"+a.url+"'",
		prometheusNodes, "    file_sd_configs: [{files: ['"+p.targets+"']}]\n",
		`'([^:]+):\d+'`, "'(.+)'", // nodes of this machine differ by their ports
		"'localhost:9090'", "'"+p.url+"'", "'haproxy:8404'", "'127.0.0.1:"+f.stats+"'",
		"scrape_interval: 5s", "scrape_interval: 1s", "evaluation_interval: 5s", "evaluation_interval: 1s", "scrape_timeout: 4s", "scrape_timeout: 1s"))
	startProgram(t, exec.Command(tool("prometheus"), "--config.file="+config, "--enable-feature="+strings.Join(features, ","),
		"--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+p.url))
	within(t, patience, "Prometheus is ready", func() bool {
		status, _, err := get("http://"+p.url+"/-/ready", "")
		return err == nil && status == http.StatusOK
	})
	return p
}

// find tells Prometheus which nodes to watch.
func (p *prometheus) find(f *fleet) {
	targets := []string{}
	for _, n := range f.nodes {
		targets = append(targets, n.admin)
	}
	must(os.WriteFile(p.targets, must1(json.Marshal([]map[string][]string{{"targets": targets}})), 0o644))
}

// sample is one of a query's result: its labels, and its time and value.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// ask returns the result of a query.
func (p *prometheus) ask(t *testing.T, query string) []sample {
	t.Helper()
	_, body, err := get("http://"+p.url+"/api/v1/query?query="+url.QueryEscape(query), "")
	must(err)
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", query, err, answer.Error)
	}
	return answer.Data.Result
}

// firing lists the alerts that fire, each once.
func (p *prometheus) firing(t *testing.T) (names []string) {
	t.Helper()
	for _, alert := range p.ask(t, `count by (alertname) (ALERTS{alertstate="firing"})`) {
		names = append(names, alert.Metric["alertname"])
	}
	slices.Sort(names)
	return names
}

var inLegend = regexp.MustCompile(`\{\{(\w+)\}\}`)

// askPanels sends Prometheus those queries of the dashboard that are chosen, as Grafana would.
// It fails the test if one has no answer.
func (p *prometheus) askPanels(t *testing.T, chosen func(expr string) bool) {
	t.Helper()
	fill := strings.NewReplacer("$__rate_interval", "15s", "$job", "listedge", "$instance", ".*")
	for _, panel := range panels(t) {
		for _, q := range panel.Targets {
			if !chosen(q.Expr) {
				continue
			}
			samples := p.ask(t, fill.Replace(q.Expr))
			if len(samples) == 0 {
				t.Errorf("%q shows nothing: %s", panel.Title, q.Expr)
			}
			for _, m := range inLegend.FindAllStringSubmatch(q.LegendFormat, -1) {
				if len(samples) > 0 && samples[0].Metric[m[1]] == "" {
					t.Errorf("%q shows a label %s, which %s does not have", panel.Title, m[1], q.Expr)
				}
			}
		}
	}
}

// anyValue stands for a label's value that is not known before the fact.
const anyValue = "\x00"

// variables are what Grafana puts into queries, as something that parses.
var variables = strings.NewReplacer("$__rate_interval", "5m", `="$job"`, `=~".*"`, "$instance", ".*")

// judge parses a query and holds it against what is exported: every selector finds a series,
// each of the words of a=~"b|c" does, and rate is taken of counters and of nothing else.
func (e exported) judge(query string) (err error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(query))
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok || err != nil {
			return nil
		}
		rated := slices.ContainsFunc(path, func(above parser.Node) bool {
			c, ok := above.(*parser.Call)
			return ok && slices.Contains([]string{"rate", "irate", "increase"}, c.Func.Name)
		})
		if kind, known := e.kind[s.Name]; known && rated != (kind == dto.MetricType_COUNTER) {
			err = fmt.Errorf("%s: %s is a %s, and rated is %v", query, s.Name, strings.ToLower(kind.String()), rated)
		}
		for _, matchers := range alternatives(s.LabelMatchers) {
			if !slices.ContainsFunc(e.series[s.Name], func(l labels.Labels) bool { return matchesAll(matchers, l) }) {
				err = fmt.Errorf("%s: no series of %s is %v", query, s.Name, matchers)
			}
		}
		return nil
	})
	return err
}

var words = regexp.MustCompile(`^\w+(\|\w+)+$`)

// alternatives are the matchers, and each word of a=~"b|c" by itself.
func alternatives(all []*labels.Matcher) [][]*labels.Matcher {
	ways := [][]*labels.Matcher{all}
	for _, m := range all {
		if words.MatchString(m.Value) {
			for word := range strings.SplitSeq(m.Value, "|") {
				ways = append(ways, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, m.Name, word)})
			}
		}
	}
	return ways
}

// matchesAll says whether a series has the labels. One that it lacks matches nothing.
func matchesAll(matchers []*labels.Matcher, l labels.Labels) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
		value := l.Get(m.Name)
		return m.Name != model.MetricNameLabel && value != anyValue && (value == "" || !m.Matches(value))
	})
}

// exported is what a node that answers requests shows at /metrics, as
// Prometheus would store it.
type exported struct {
	kind   map[string]dto.MetricType // by name of the series
	series map[string][]labels.Labels
	lines  int // series of the node that has most
}

var (
	readExported sync.Once
	found        exported
)

// export starts two nodes, once for all tests, and reads what they export.
func export(t *testing.T) exported {
	t.Helper()
	readExported.Do(func() {
		f := startServers(t)
		// A replica that is none, for its series: the primary.
		f.env = append(f.env, "LISTEDGE_REPLICA_URL="+f.postgres.URL("postgres"))
		e := &exported{kind: map[string]dto.MetricType{}, series: map[string][]labels.Labels{}}
		for _, n := range []*node{f.add(t), f.add(t)} {
			n.awaitMode(t, "followed")
			within(t, patience, "every dependency has been checked", func() bool {
				_, text, err := get("http://"+n.admin+"/metrics", "")
				return err == nil && bytes.Contains(text, []byte(`{check="redis eviction"}`)) && bytes.Contains(text, []byte(`{check="replica `))
			})
			for _, path := range []string{"/v1/items", "/v1/items", "/v1/contacts?limit=5", "/v1/items?limit=0", "/v1/none", "/docs", "/docs/none", "/openapi.json",
				"/"} {
				for _, key := range []string{f.key, "none", ""} {
					if _, _, err := get("http://"+n.public+path, key); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, text, err := get("http://"+n.admin+"/metrics", "")
			must(err)
			e.lines = max(e.lines, bytes.Count(text, []byte("\n"))-bytes.Count(text, []byte("\n#"))-1) // the first is a comment
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families := must1(parser.TextToMetricFamilies(bytes.NewReader(text)))
			for name, family := range families {
				for _, m := range family.Metric {
					e.add(name, n.admin, family.GetType(), m)
				}
			}
		}
		// What Prometheus itself adds.
		e.put("up", dto.MetricType_GAUGE, labels.FromStrings("job", "listedge", "instance", "x"))
		e.put("ALERTS", dto.MetricType_GAUGE, labels.FromStrings("job", "listedge", "instance", "x", "alertname", anyValue, "alertstate", "firing", "severity",
			"page"))
		// What its configuration adds to the load balancer's.
		e.put("up", dto.MetricType_GAUGE, labels.FromStrings("job", "haproxy", "fleet", "listedge"))
		e.put("haproxy_backend_active_servers", dto.MetricType_GAUGE, labels.FromStrings("job", "haproxy", "fleet", "listedge", "proxy", "nodes"))
		// What TLS adds.
		e.put("listedge_check_up", dto.MetricType_GAUGE, labels.FromStrings("job", "listedge", "instance", "x", "check", "certificate"))
		// What a workspace with a quota adds.
		e.put("listedge_limiter_quota_used_ratio", dto.MetricType_GAUGE, labels.FromStrings("job", "listedge", "instance", "x", "workspace", "x"))
		found = *e
	})
	if len(found.series) == 0 {
		t.Fatal("nothing was exported")
	}
	return found
}

// add stores one series; of a histogram or a summary, its several series.
func (e exported) add(name, instance string, kind dto.MetricType, m *dto.Metric) {
	b := labels.NewBuilder(labels.FromStrings("job", "listedge", "instance", instance))
	for _, l := range m.Label {
		b.Set(l.GetName(), l.GetValue())
	}
	switch kind {
	case dto.MetricType_HISTOGRAM:
		e.put(name, dto.MetricType_COUNTER, b.Labels()) // where native histograms are stored
		for _, bucket := range m.Histogram.Bucket {
			b.Set("le", strings.TrimSuffix(model.SampleValue(bucket.GetUpperBound()).String(), ".0"))
			e.put(name+"_bucket", dto.MetricType_COUNTER, b.Labels())
		}
		b.Del("le")
	case dto.MetricType_SUMMARY:
		for _, q := range m.Summary.Quantile {
			b.Set("quantile", model.SampleValue(q.GetQuantile()).String())
			e.put(name, dto.MetricType_GAUGE, b.Labels())
		}
		b.Del("quantile")
	default:
		e.put(name, kind, b.Labels())
		return
	}
	e.put(name+"_sum", dto.MetricType_COUNTER, b.Labels())
	e.put(name+"_count", dto.MetricType_COUNTER, b.Labels())
}

func (e exported) put(name string, kind dto.MetricType, l labels.Labels) {
	e.kind[name] = kind
	e.series[name] = append(e.series[name], l)
}

// Each series of each node costs whoever stores them.
func TestARealNodeHasAtMost400Series(t *testing.T) {
	if n := export(t).lines; n > 400 || n < 200 {
		t.Errorf("%d series", n)
	} else {
		t.Logf("%d series", n)
	}
}
