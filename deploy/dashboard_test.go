package deploy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files that are made from others")

const dashboardFile = "grafana/dashboards/listedge.json"

// panel is what the tests read of a panel of the dashboard, which is edited in Grafana and exported.
type panel struct {
	Type, Title, Description string
	Targets                  []struct{ Expr, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

// panels are those of the dashboard, without the titles of its rows.
func panels(t *testing.T) (all []panel) {
	t.Helper()
	var dashboard struct{ Panels []panel }
	must(json.Unmarshal(must1(os.ReadFile(dashboardFile)), &dashboard))
	for _, p := range dashboard.Panels {
		if p.Type != "row" {
			all = append(all, p)
		}
	}
	return all
}

func TestDashboardAsksForWhatIsExported(t *testing.T) {
	e := exportWithRules(t)
	titles := map[string]bool{}
	for _, p := range panels(t) {
		if titles[p.Title] || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%q is there twice, or has no description, no unit or no query", p.Title)
		}
		titles[p.Title] = true
		for _, q := range p.Targets {
			if err := e.judge(q.Expr); err != nil {
				t.Errorf("%q: %v", p.Title, err)
			}
		}
	}
}

// A metric that nobody looks at was not worth exporting, or was forgotten here.
func TestDashboardShowsEveryMetric(t *testing.T) {
	text := must1(os.ReadFile(dashboardFile))
	for name := range export(t).series {
		metric := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if strings.HasPrefix(name, "listedge_") && !bytes.Contains(text, []byte(metric)) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
