package histogram

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// some are durations of all sizes, among them every bound and its neighbours.
func some() (all []time.Duration) {
	all = []time.Duration{-time.Second, 0, 1, time.Hour, math.MaxInt64}
	for _, b := range bounds {
		all = append(all, b-1, b, b+1)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		all = append(all, time.Duration(math.Exp(random.Float64()*26)))
	}
	return all
}

func TestEveryDurationIsInItsBuckets(t *testing.T) {
	for _, d := range some() {
		var h Histogram
		h.Observe(d)
		var s Snapshot
		s.Add(&h)
		for bound, n := range s.Cumulative(Classic[:]) {
			if want := d.Seconds() <= bound; (n == 1) != want {
				t.Fatalf("%d ns: %d in the bucket up to %v s", d, n, bound)
			}
		}
		zero, buckets := s.Native()
		var total int64
		for i, n := range buckets {
			total += n
			upper, lower := nativeBound(i), nativeBound(i-1)
			if d <= lower || d > upper && i <= lastBucket {
				t.Fatalf("%d ns is in bucket %d, from %s to %s", d, i, lower, upper)
			}
		}
		if s.Count != 1 || s.Sum != d || total+int64(zero) != 1 || (zero == 1) != (d <= nativeBound(firstBucket-1)) {
			t.Fatalf("%d ns: count %d, sum %s, zero %d, buckets %v", d, s.Count, s.Sum, zero, buckets)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var h Histogram
	var s Snapshot
	if q := s.Quantile(.5); q != 0 {
		t.Errorf("of nothing: %s", q)
	}
	for i := range 1000 {
		h.Observe(time.Duration(i+1) * time.Millisecond)
	}
	s.Add(&h)
	for q, want := range map[float64]time.Duration{.01: 10 * time.Millisecond, .5: 500 * time.Millisecond, .99: 990 * time.Millisecond} {
		if got := s.Quantile(q); math.Abs(float64(got-want)) > .1*float64(want) {
			t.Errorf("p%v is %s, want about %s", 100*q, got, want)
		}
	}
	earlier := s
	h.Observe(20 * time.Microsecond)
	var later Snapshot
	later.Add(&h)
	if between := later.Since(&earlier); between.Count != 1 || between.Sum != 20*time.Microsecond || between.Quantile(1) > 25*time.Microsecond {
		t.Errorf("one more: %d, %s, %s", between.Count, between.Sum, between.Quantile(1))
	}
}

func TestObservingAllocatesNothing(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(1000, func() { h.Observe(20 * time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
