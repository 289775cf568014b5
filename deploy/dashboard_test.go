package deploy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files that are made from others")

const dashboardFile = "grafana/dashboards/listedge.json"

// object is a piece of Grafana's JSON, whose fields are in its documentation
// under "dashboard JSON model".
type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// selectors replaces {~, {% and [~] in the expression of a panel by the selectors they stand for.
func selectors(expr string) string {
	return strings.NewReplacer("{~", `{job="$job", instance=~"$instance"`, "{%", `{job="$job"`, "[~]", "[$__rate_interval]").Replace(expr)
}

// thresholds are the steps of a panel's colours.
func (p panel) thresholds() []object {
	steps := []object{{"color": "green", "value": nil}}
	for _, s := range p.steps {
		if s.from <= -1e9 {
			steps[0]["color"] = s.color
			continue
		}
		steps = append(steps, object{"color": s.color, "value": s.from})
	}
	return steps
}

// draw makes a panel at a place of Grafana's grid, which is 24 wide.
func (p panel) draw(id, x, y, w, h int) object {
	targets := []object{}
	for i, q := range p.queries {
		target := object{"refId": string(rune('A' + i)), "datasource": source, "expr": selectors(q.expr), "legendFormat": q.legend}
		if p.kind == "table" {
			target["instant"], target["format"] = true, "table"
		}
		if p.kind == "heatmap" {
			target["format"] = "heatmap"
		}
		targets = append(targets, target)
	}
	field := object{"unit": p.unit, "thresholds": object{"mode": "absolute", "steps": p.thresholds()}, "color": object{"mode": "palette-classic"}}
	if p.most > 0 {
		field["min"], field["max"] = 0, p.most
	}
	options := object{}
	switch p.kind {
	case "stat":
		field["color"] = object{"mode": "thresholds"}
		options = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "graphMode": "area", "colorMode": "value"}
		if p.steps == nil {
			options["colorMode"] = "none"
		}
	case "timeseries":
		custom := object{"fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "spanNulls": false}
		if p.steps != nil {
			custom["thresholdsStyle"] = object{"mode": "dashed"}
		}
		field["custom"] = custom
		if p.most == 0 {
			field["min"] = 0
		}
		options = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	case "state-timeline":
		states := object{}
		for i, s := range p.steps {
			states[strconv.FormatFloat(s.from, 'f', -1, 64)] = object{"text": s.name, "color": s.color, "index": i}
		}
		field["mappings"] = []object{{"type": "value", "options": states}}
		options = object{"showValue": "auto", "mergeValues": true, "legend": object{"displayMode": "list", "placement": "bottom", "showLegend": false}}
	}
	overrides, transformations := []object{}, []object{}
	switch p.kind {
	case "heatmap":
		field["custom"] = object{"hideFrom": object{"legend": false, "tooltip": false, "viz": false}, "scaleDistribution": object{"type": "linear"}}
		options = object{"calculate": false, "cellGap": 0, "color": object{"mode": "scheme", "scheme": "Turbo", "exponent": 0.5, "steps": 64},
			"yAxis": object{"unit": p.unit, "axisPlacement": "left"}, "rowsFrame": object{"layout": "auto"}, "tooltip": object{"mode": "single", "yHistogram": true},
			"legend": object{"show": true}}
	case "table":
		if len(p.queries) < 2 {
			break
		}
		// One line for each instance, with the results of the queries as its columns.
		names := object{}
		for i, q := range p.queries {
			names["Value #"+string(rune('A'+i))] = q.legend
			if unit := columnUnits[q.legend]; unit != "" {
				overrides = append(overrides, object{"matcher": object{"id": "byName", "options": q.legend}, "properties": []object{{"id": "unit", "value": unit}}})
			}
		}
		transformations = []object{{"id": "merge", "options": object{}},
			{"id": "organize", "options": object{"excludeByName": object{"Time": true, "Value #A": true}, "renameByName": names}}}
	}
	drawn := object{"id": id, "type": p.kind, "title": p.title, "description": p.about, "datasource": source, "targets": targets,
		"gridPos": object{"x": x, "y": y, "w": w, "h": h}, "fieldConfig": object{"defaults": field, "overrides": overrides}, "options": options}
	if len(transformations) > 0 {
		drawn["transformations"] = transformations
	}
	return drawn
}

// layOut puts the rows below each other: numbers eight to a line, the rest three, and a
// table of several columns two thirds of one.
func layOut(rows []row) (panels []object) {
	id, y := 0, 0
	next := func() int { id++; return id }
	for _, r := range rows {
		panels = append(panels, object{"id": next(), "type": "row", "title": r.title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, height := 0, 0
		for _, p := range r.panels {
			w, h := 8, 8
			switch {
			case p.kind == "stat":
				w, h = 3, 4
			case p.kind == "table" && len(p.queries) > 1:
				w = 16
			}
			if x+w > 24 || (height != 0 && h != height) {
				x, y = 0, y+height
			}
			panels = append(panels, p.draw(next(), x, y, w, h))
			x, height = x+w, h
		}
		y += height
	}
	return panels
}

func drawDashboard() []byte {
	choice := func(name, label, query string, several bool) object {
		v := object{"type": "query", "name": name, "label": label, "datasource": source, "query": object{"query": query, "refId": name}, "refresh": 2, "sort": 1}
		if several {
			v["multi"], v["includeAll"], v["allValue"], v["current"] = true, true, ".*", object{"text": []string{"All"}, "value": []string{"$__all"}}
		}
		return v
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid": "listedge", "title": "listedge", "tags": []string{"listedge"}, "schemaVersion": 39, "editable": true, "graphTooltip": 1,
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "10s", "timezone": "browser",
		"templating": object{"list": []object{
			{"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
			choice("job", "Fleet", "label_values(listedge_build_info, job)", false),
			choice("instance", "Node", `label_values(listedge_build_info{job="$job"}, instance)`, true),
		}},
		"annotations": object{"list": []object{{
			"name": "Alerts", "enable": true, "datasource": source, "iconColor": "red", "titleFormat": "{{alertname}}", "textFormat": "{{instance}}",
			"expr": `ALERTS{job="$job", alertname=~"Listedge.*", alertstate="firing"}`, "step": "30s",
		}}},
		"panels": layOut(dashboard),
	})
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestDashboardIsTheTables(t *testing.T) {
	made := drawDashboard()
	if *update {
		must(os.WriteFile(dashboardFile, made, 0o644))
	}
	if kept, err := os.ReadFile(dashboardFile); err != nil || !bytes.Equal(kept, made) {
		t.Errorf("%s is not what the table of panels makes (%v); run with -update", dashboardFile, err)
	}
}

func TestDashboardAsksForWhatIsExported(t *testing.T) {
	e := exportWithRules(t)
	titles := map[string]bool{}
	for _, r := range dashboard {
		for _, p := range r.panels {
			if titles[p.title] || p.about == "" || p.unit == "" || len(p.queries) == 0 {
				t.Errorf("%q is there twice, or has no description, no unit or no query", p.title)
			}
			titles[p.title] = true
			for _, q := range p.queries {
				if err := e.judge(selectors(q.expr)); err != nil {
					t.Errorf("%q: %v", p.title, err)
				}
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
