package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"sigs.k8s.io/yaml"
)

const rulesFile = "prometheus/rules/listedge.yml"

type rule struct {
	Record, Alert, Expr, For string
	KeepFiringFor            string `json:"keep_firing_for"`
	Labels, Annotations      map[string]string
}

// rules are all rules of rulesFile, in the order in which they are evaluated.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	mustRead(t, rulesFile, &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// mustRead reads a YAML or JSON file that may have no field beyond v's.
func mustRead(t *testing.T, file string, v any) {
	t.Helper()
	text := must1(os.ReadFile(file))
	if err := yaml.UnmarshalStrict(text, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// exportWithRules is what a node exports and what the rules record of it.
func exportWithRules(t *testing.T) exported {
	t.Helper()
	e := export(t)
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		if err := e.judge(r.Expr); err != nil {
			t.Errorf("%s: %v", r.Record, err)
		}
		b := labels.NewBuilder(labels.FromStrings("job", anyValue, "slo", anyValue, "alertname", anyValue))
		for name, value := range r.Labels {
			b.Set(name, value)
		}
		if !slices.ContainsFunc(e.series[r.Record], func(l labels.Labels) bool { return labels.Equal(l, b.Labels()) }) {
			e.put(r.Record, dto.MetricType_GAUGE, b.Labels())
		}
	}
	return e
}

func TestRulesAskForWhatIsExported(t *testing.T) {
	e := exportWithRules(t)
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if err := e.judge(r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if s := r.Labels["severity"]; s != "page" && s != "ticket" && (s != "none" || r.Alert != "ListedgeWatchdog") {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
	}
}

// promtool runs Prometheus' own checker.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	c := exec.Command(tool("promtool"), args...)
	c.Env = append(os.Environ(), "GOGC=400") // which takes a third off its time
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// alertCase is what a case of promtool expects of an alert.
type alertCase struct {
	Alert string `json:"alertname"`
	Want  []struct {
		Labels map[string]string `json:"exp_labels"`
	} `json:"exp_alerts"`
}

func alertCases(t *testing.T) (all []alertCase) {
	t.Helper()
	for _, name := range must1(filepath.Glob("prometheus/tests/*.yml")) {
		var file struct {
			Tests []struct {
				Alerts []alertCase `json:"alert_rule_test"`
			}
		}
		must(yaml.Unmarshal(must1(os.ReadFile(name)), &file))
		for _, test := range file.Tests {
			all = append(all, test.Alerts...)
		}
	}
	return all
}

func TestRulesDoWhatTheirCasesSay(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("prometheus/tests/*.yml")
	if err != nil || len(cases) == 0 {
		t.Fatal(cases, err)
	}
	folder := must1(filepath.Abs("prometheus/rules"))
	promtool(t, "check", "config", write(t, "prometheus.yml", replaced(t, "prometheus/prometheus.yml", "rules/*.yml", folder+"/*.yml",
		"\n    scrape_native_histograms: true\n    always_scrape_classic_histograms: true", ""))) // which older versions do not know
	promtool(t, append([]string{"test", "rules"}, cases...)...)

	// Each alert has been seen quiet and firing.
	quiet, firing := map[string]bool{}, map[string]bool{}
	for _, c := range alertCases(t) {
		quiet[c.Alert] = quiet[c.Alert] || len(c.Want) == 0
		firing[c.Alert] = firing[c.Alert] || len(c.Want) > 0
	}
	for _, r := range rules(t) {
		if always := r.Labels["severity"] == "none"; r.Alert != "" && !((quiet[r.Alert] || always) && firing[r.Alert]) {
			t.Errorf("%s has no case in which it is quiet, or none in which it fires", r.Alert)
		}
	}
}
