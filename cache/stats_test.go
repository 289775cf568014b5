package cache

import (
	"testing"
	"time"
)

func TestLag(t *testing.T) {
	var l lag
	now := time.Now()
	for _, d := range []time.Duration{-time.Second, time.Millisecond, time.Millisecond + 1, 30 * time.Millisecond, time.Minute} {
		l.observe(now.Add(-d), now)
	}
	h := l.histogram()
	if h.Count != 5 || h.Buckets[0.001] != 2 || h.Buckets[0.0025] != 3 || h.Buckets[0.025] != 3 || h.Buckets[0.05] != 4 || h.Buckets[10] != 4 || h.Sum < 60 || h.Sum > 60.1 {
		t.Errorf("%+v", h)
	}
	if len(l.counts) != len(lagBounds)+1 {
		t.Error("a count for each bucket, and one beyond")
	}
}
