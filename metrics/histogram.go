package metrics

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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
	bounds    []time.Duration // of its classic buckets
	exemplars *exemplars      // nil = none
}

// exemplars are the last traced requests of a histogram, one for each of requestBounds
// and one for longer ones.
type exemplars [len(histogram.Classic) + 1]atomic.Pointer[exemplar]

type exemplar struct {
	trace string // its id
	took  time.Duration
	at    time.Time
}

// Traced records the trace of a request as an exemplar, by which a graph of latencies leads
// to it. It allocates: only a sample of requests is traced.
func (e *Edge) Traced(route Route, outcome Outcome, took time.Duration, trace string) {
	i, _ := slices.BinarySearch(requestBounds, took)
	e.exemplars[route][outcome][i].Store(&exemplar{trace, took, time.Now()})
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
	if m.exemplars != nil {
		m.addExemplars(out.Histogram)
	}
	return nil
}

// addExemplars gives each classic bucket its exemplar, and the native histogram all of
// them, the oldest first.
func (m *histogramMetric) addExemplars(to *dto.Histogram) {
	for i := range m.exemplars {
		e := m.exemplars[i].Load()
		if e == nil {
			continue
		}
		made := &dto.Exemplar{Value: proto.Float64(e.took.Seconds()), Timestamp: timestamppb.New(e.at),
			Label: []*dto.LabelPair{{Name: proto.String("trace_id"), Value: proto.String(e.trace)}}}
		if i == len(to.Bucket) { // the last has no bound
			to.Bucket = append(to.Bucket, &dto.Bucket{UpperBound: proto.Float64(math.Inf(1)), CumulativeCount: to.SampleCount})
		}
		to.Bucket[i].Exemplar = made
		to.Exemplars = append(to.Exemplars, made)
	}
	slices.SortFunc(to.Exemplars, func(a, b *dto.Exemplar) int { return a.Timestamp.AsTime().Compare(b.Timestamp.AsTime()) })
}
