package cache

import (
	"slices"
	"time"
)

// lagBounds are the upper bounds of the histogram's buckets, in seconds.
var lagBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10}

// Histogram counts durations, in seconds.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64 // how many were at most so long
}

// lag is how long after their commits changes were applied here. It compares
// the primary's clock with this machine's, as nothing else does.
type lag struct {
	counts [13]uint64 // by lagBounds, and beyond
	sum    float64
}

func (l *lag) observe(committed, now time.Time) {
	seconds := max(0, now.Sub(committed).Seconds())
	i, _ := slices.BinarySearch(lagBounds, seconds)
	l.counts[i]++
	l.sum += seconds
}

func (l *lag) histogram() Histogram {
	h := Histogram{Sum: l.sum, Buckets: map[float64]uint64{}}
	for i, n := range l.counts {
		h.Count += n
		if i < len(lagBounds) {
			h.Buckets[lagBounds[i]] = h.Count
		}
	}
	return h
}
