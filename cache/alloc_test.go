//go:build !race

package cache_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"listedge/cache"
)

// The race detector allocates, too, hence the build tag.
func TestHitAllocatesNothing(t *testing.T) {
	c := open(t, cache.Options{TTL: time.Hour})
	q, missing := queryOf("q"), queryOf("missing")
	forward(t, c, q, brings("page"))
	now := time.Now()
	for what, f := range map[string]func(){
		"hit": func() {
			if _, ok := c.Hit(q, now); !ok {
				t.Error("no hit")
			}
		},
		"miss": func() { c.Hit(missing, now) },
	} {
		// Ristretto processes counts in batches, which costs less than one allocation per access.
		if n := testing.AllocsPerRun(5_000, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// A change elsewhere in the list makes a hit compare the page's rows with the replica's.
func TestFollowedHitAllocatesNothing(t *testing.T) {
	c := open(t, cache.Options{TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour})
	q := queryOf("q")
	f := follow(c)
	e := forward(t, c, q, f.reads(shows("a", "b", "c", "d"))).Entry
	least := uint64(math.MaxUint64) // of goroutines in the background, too
	for i := range 100 {
		f.change(q, rowAt(3, fmt.Sprint(i)))
		f.beat()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, ok := c.Hit(q, time.Now())
		runtime.ReadMemStats(&after)
		if !ok || r.Entry != e {
			t.Fatal("no hit, or of another entry")
		}
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least != 0 {
		t.Errorf("%d allocations", least)
	}
}
