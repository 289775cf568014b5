package freshness

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestByAge(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		age, ttl, maxStale time.Duration
		want               State
	}{
		{0, 2 * s, 5 * s, Fresh},
		{2*s - 1, 2 * s, 5 * s, Fresh},
		{2 * s, 2 * s, 5 * s, Stale},
		{7*s - 1, 2 * s, 5 * s, Stale},
		{7 * s, 2 * s, 5 * s, Expired},
		{1000 * time.Hour, 2 * s, 5 * s, Expired},
		{0, 0, 5 * s, Stale}, // nothing is ever fresh
		{5 * s, 0, 5 * s, Expired},
		{2*s - 1, 2 * s, 0, Fresh}, // nothing is ever stale
		{2 * s, 2 * s, 0, Expired},
		{0, 0, 0, Expired},
	} {
		if got := ByAge(c.age, c.ttl, c.maxStale); got != c.want {
			t.Errorf("age %v, ttl %v, maxStale %v: %d, want %d", c.age, c.ttl, c.maxStale, got, c.want)
		}
	}
}

// A page only ever gets worse with age, and the bounds are kept.
func TestByAgeIsMonotone(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	some := func() time.Duration { return time.Duration(random.Int64N(int64(1) << random.IntN(50))) }
	for range 20_000 {
		ttl, maxStale, younger := some(), some(), some()
		older := younger + some()
		a, b := ByAge(younger, ttl, maxStale), ByAge(older, ttl, maxStale)
		if a > b {
			t.Fatalf("ttl %v, maxStale %v: %d at %v, but %d at %v", ttl, maxStale, a, younger, b, older)
		}
		if b == Fresh && older >= ttl || b != Expired && older >= ttl+maxStale {
			t.Fatalf("ttl %v, maxStale %v: %d at %v", ttl, maxStale, b, older)
		}
	}
}
