// Package histogram counts durations so that Prometheus can have them in two ways:
// native histograms, whose buckets grow by 19 %, and a few classic buckets.
//
//	durations ──► cells ──┬─► native buckets: each is one or two cells
//	                      └─► classic buckets: each is all cells up to its bound
//
// A cell is the interval between two neighbours of all bounds, native and classic. So
// one counter per observation is enough for both.
package histogram

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// Schema is that of Prometheus' native histograms: bucket i ends at 2^(i/4) seconds.
	Schema = 2
	// The native buckets: the first ends at 9 µs, the last at 16 s.
	firstBucket, lastBucket = -67, 16
	nativeBounds            = lastBucket - firstBucket + 2 // and the end of the zero bucket
)

// ZeroThreshold is where the zero bucket ends, in seconds. Shorter durations are not
// distinguished.
var ZeroThreshold = math.Exp2(float64(firstBucket-1) / (1 << Schema))

// Classic are the upper bounds that classic buckets may have.
var Classic = [...]time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

const cells = nativeBounds + len(Classic) + 1 // the last: longer than all bounds

// bounds are the upper bounds of all cells but the last, ascending.
var bounds = func() (all [cells - 1]time.Duration) {
	for i := range nativeBounds {
		all[i] = nativeBound(firstBucket - 1 + i)
	}
	copy(all[nativeBounds:], Classic[:])
	slices.Sort(all[:])
	return all
}()

// nativeOf are the native buckets of the cells.
var nativeOf = func() (all [cells]int) {
	native := firstBucket - 1
	for i, bound := range bounds {
		if all[i] = native; bound == nativeBound(native) {
			native++
		}
	}
	all[len(bounds)] = lastBucket + 1
	return all
}()

func nativeBound(i int) time.Duration {
	return time.Duration(math.Exp2(float64(i)/(1<<Schema)) * float64(time.Second))
}

// cellOf returns the index of the duration's cell: the first whose bound is not below it.
func cellOf(d time.Duration) int {
	i, _ := slices.BinarySearch(bounds[:], d)
	return i
}

// Histogram counts durations. Its zero value is empty.
type Histogram struct {
	counts [cells]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	h.counts[cellOf(d)].Add(1)
	h.sum.Add(int64(d))
}

// Snapshot is the sum of the counts of histograms.
type Snapshot struct {
	Count  uint64
	Sum    time.Duration
	counts [cells]uint64
}

// Add adds what the histogram has counted so far.
func (s *Snapshot) Add(h *Histogram) {
	for i := range h.counts {
		n := h.counts[i].Load()
		s.counts[i] += n
		s.Count += n
	}
	s.Sum += time.Duration(h.sum.Load())
}

// Merge adds another snapshot.
func (s *Snapshot) Merge(o *Snapshot) {
	for i, n := range o.counts {
		s.counts[i] += n
	}
	s.Count += o.Count
	s.Sum += o.Sum
}

// Since is what was counted after an earlier snapshot of the same histograms.
func (s Snapshot) Since(earlier *Snapshot) Snapshot {
	for i, n := range earlier.counts {
		s.counts[i] -= n
	}
	s.Count -= earlier.Count
	s.Sum -= earlier.Sum
	return s
}

// Cumulative returns how many were at most as long as each of the limits, in seconds.
// The limits are some of Classic.
func (s *Snapshot) Cumulative(limits []time.Duration) map[float64]uint64 {
	all := make(map[float64]uint64, len(limits))
	for _, bound := range limits {
		var n uint64
		for i := 0; i < len(bounds) && bounds[i] <= bound; i++ {
			n += s.counts[i]
		}
		all[bound.Seconds()] = n
	}
	return all
}

// Native returns the counts of the zero bucket and of the native buckets by their
// indices. What is longer than all bounds counts in one bucket more.
func (s *Snapshot) Native() (zero uint64, buckets map[int]int64) {
	buckets = map[int]int64{}
	for i, n := range s.counts {
		switch native := nativeOf[i]; {
		case n == 0:
		case native < firstBucket:
			zero += n
		default:
			buckets[native] += int64(n)
		}
	}
	return zero, buckets
}

// Quantile returns the duration that the share q of all durations does not exceed,
// interpolated within its cell; 0 if there are none.
func (s *Snapshot) Quantile(q float64) time.Duration {
	rank := q * float64(s.Count)
	var below float64
	var lower time.Duration
	for i, n := range s.counts {
		if i == len(bounds) {
			break
		}
		if n > 0 && below+float64(n) >= rank {
			return lower + time.Duration(float64(bounds[i]-lower)*(rank-below)/float64(n))
		}
		below += float64(n)
		lower = bounds[i]
	}
	if s.Count == 0 {
		return 0
	}
	return lower
}
