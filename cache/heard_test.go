//go:build !race

package cache

import (
	"fmt"
	"testing"
	"time"
)

// The race detector has pools, by which ristretto hears of hits, lose what is
// in them; hence the build tag.

// A page that is found by a spot alone is one that memory knows to be in demand.
func TestMemoryHearsOfHitsBySpots(t *testing.T) {
	m := openMemory(t, 1<<20)
	var s Spot
	now, wanted := time.Now(), keyOf("wanted")
	m.holds(wanted, newEntryAt(rows(10_000), "", now))
	ask := func() bool {
		h := m.again(&s, wanted, now)
		if h != nil {
			h.asked.Add(1)
		}
		return h != nil && s.holder.Load() == h
	}
	for range 50_000 { // ristretto is told by the batch
		if !ask() {
			t.Fatal("not kept")
		}
	}
	for i := range 400 { // of which memory holds a fifth
		for range 3 {
			if key := keyOf(fmt.Sprint("other", i)); m.get(key) == nil {
				m.holds(key, newEntryAt(rows(10_000), "", now))
			}
		}
		for range 100 {
			if !ask() {
				t.Fatalf("given up after %d other pages", i)
			}
		}
	}
}
