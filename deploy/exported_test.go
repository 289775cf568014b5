package deploy_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

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
