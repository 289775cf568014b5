package deploy_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// value returns the result of a query, which is one number.
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

var inLegend = regexp.MustCompile(`\{\{(\w+)\}\}`)

// askPanels sends Prometheus those queries of the dashboard that are chosen, as Grafana would.
// It fails the test if one has no answer.
func (p *prometheus) askPanels(t *testing.T, chosen func(expr string) bool) {
	t.Helper()
	fill := strings.NewReplacer("$__rate_interval", "15s", "$job", "listedge", "$instance", ".*")
	for _, r := range dashboard {
		for _, panel := range r.panels {
			for _, q := range panel.queries {
				if !chosen(q.expr) {
					continue
				}
				samples := p.ask(t, fill.Replace(selectors(q.expr)))
				if len(samples) == 0 {
					t.Errorf("%q shows nothing: %s", panel.title, q.expr)
				}
				for _, m := range inLegend.FindAllStringSubmatch(q.legend, -1) {
					if len(samples) > 0 && samples[0][m[1]] == "" {
						t.Errorf("%q shows a label %s, which %s does not have", panel.title, m[1], q.expr)
					}
				}
			}
		}
	}
}
