package limiter_test

import (
	"testing"
	"time"

	. "listedge/limiter"
)

// leasedBucket is one that a node of a fleet has leased many tokens of.
func leasedBucket(t testing.TB) (*Limiter, *Bucket) {
	v := newVirtual()
	l := newLimiter(Options{}, v)
	t.Cleanup(func() { closeLimiter(t, l) })
	p := must1(NewPolicy(1e9, 1e9))
	b := l.Bucket("leased", p)
	for deadline := time.Now().Add(patient); take(l, b, nil).Source != SourceLease; {
		if time.Now().After(deadline) {
			t.Fatal("no lease")
		}
	}
	return l, b
}

// A decision by leased tokens, of a quota or not, and the headers' numbers with it, allocates
// nothing. What calls to Redis allocate is shared by the requests that they serve.
func TestAllocationsOfALeasedDecision(t *testing.T) {
	l, key := leasedBucket(t)
	for name, quota := range map[string]*Counter{"a rate": nil, "a quota": l.Quota("w", "month", 4_000_000_000, time.Now().Add(time.Hour))} {
		t.Run(name, func(t *testing.T) {
			take := func() Decision { return l.Take(time.Now(), key, nil, quota) }
			eventually(t, "a lease", func() bool { return take().Source == SourceLease })
			if n := testing.AllocsPerRun(20_000, func() { take() }); n != 0 {
				t.Errorf("%v allocations a decision", n)
			}
		})
	}
}

func BenchmarkLeasedDecision(b *testing.B) {
	l, bucket := leasedBucket(b)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		l.Take(now, bucket, nil, nil)
	}
}
