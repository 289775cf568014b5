package metrics

import (
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Reading is a node's /metrics at one moment, by name.
type Reading map[string]*dto.MetricFamily

// Read reads what Handler writes.
func Read(from io.Reader) (Reading, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(from)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// Sum returns the sum of the name's series, gauges and counters; 0 if there are none.
func (r Reading) Sum(name string) (sum float64) {
	for _, m := range r[name].GetMetric() {
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return sum
}

// Label returns a label's value in the name's series whose value is 1, which is the form
// of info metrics and of modes; empty = there is none.
func (r Reading) Label(name, label string) string {
	for _, m := range r[name].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label && m.GetGauge().GetValue() == 1 {
				return l.GetValue()
			}
		}
	}
	return ""
}
