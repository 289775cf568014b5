package limiter

import (
	"testing"
	"time"
)

// leasedBucket is one that a node of a fleet has leased many tokens of.
func leasedBucket(t testing.TB) (*Limiter, *Bucket) {
	v := newVirtual()
	l := newLimiter(Options{}, v)
	t.Cleanup(func() { closeLimiter(t, l) })
	p, err := NewPolicy(1e9, 1e9)
	if err != nil {
		t.Fatal(err)
	}
	b := l.Bucket("leased", p)
	for deadline := time.Now().Add(patient); l.take(b, nil).Source != SourceLease; {
		if time.Now().After(deadline) {
			t.Fatal("no lease")
		}
	}
	return l, b
}

// A decision by leased tokens, and the headers' numbers with it, allocates nothing.
// What calls to Redis allocate is shared by the requests that they serve.
func TestAllocationsOfALeasedDecision(t *testing.T) {
	l, b := leasedBucket(t)
	admitted := 0
	if n := testing.AllocsPerRun(20_000, func() {
		if l.Take(time.Now(), b, nil, nil).Allowed {
			admitted++
		}
	}); n != 0 || admitted == 0 {
		t.Errorf("%v allocations a decision, %d admitted", n, admitted)
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
