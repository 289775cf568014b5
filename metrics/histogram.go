package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"listedge/internal/histogram"
)

// The bounds of the classic buckets. Each bucket is one more series for every combination of
// labels, so there are few; native histograms have the resolution. The objective in
// deploy/prometheus/rules uses 100 ms.
var (
	requestBounds = histogram.Classic[:3]
	queryBounds   = histogram.Classic[1:3]
	redisBounds   = histogram.Classic[1:2]
	lagBounds     = histogram.Classic[:]
)

// timings is a histogram as a metric's value.
type timings struct {
	histogram.Snapshot
	bounds []time.Duration // of its classic buckets
}

// histogramMetric is a histogram with both kinds of buckets: scrapers that negotiate
// protobuf may store the native ones, all others see the classic ones.
type histogramMetric struct {
	desc    *prometheus.Desc
	labels  []string
	started time.Time // when counting began
	timings
}

// Desc implements prometheus.Metric.
func (m *histogramMetric) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m *histogramMetric) Write(out *dto.Metric) error {
	zero, buckets := m.Native()
	native, err := prometheus.NewConstNativeHistogram(m.desc, m.Count, m.Sum.Seconds(), buckets, nil, zero,
		histogram.Schema, histogram.ZeroThreshold, m.started, m.labels...)
	if err != nil {
		return err
	}
	if err := native.Write(out); err != nil {
		return err
	}
	var classic dto.Metric
	if err := prometheus.MustNewConstHistogram(m.desc, m.Count, m.Sum.Seconds(), m.Cumulative(m.bounds), m.labels...).Write(&classic); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.Histogram.Bucket
	return nil
}
