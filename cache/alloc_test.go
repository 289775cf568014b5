//go:build !race

package cache

import (
	"testing"
	"time"
)

// The race detector allocates, too, hence the build tag.
func TestHitAllocatesNothing(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	key, missing := keyOf("q"), keyOf("missing")
	forward(t, c, key, brings("page"))
	now := time.Now()
	for what, f := range map[string]func(){
		"hit": func() {
			if _, ok := c.Hit(key, now); !ok {
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
	var scratch [128]byte
	if n := testing.AllocsPerRun(1_000, func() { AppendKey(scratch[:0], [16]byte{1}, key, missing) }); n != 0 {
		t.Errorf("AppendKey: %v allocations", n)
	}
}

func TestFollowedHitAllocatesNothing(t *testing.T) {
	b := startFollower(t)
	c, _ := b.open(Options{TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour})
	eventually(t, "trusted", mode(c, ModeFollowed))
	if _, err := c.Forward(keyOf("q"), listA, b.brings("page")); err != nil {
		t.Fatal(err)
	}
	b.stop() // the goroutines that write heartbeats and read the log allocate
	b.done.Wait()
	key, now := keyOf("q"), time.Now()
	if n := testing.AllocsPerRun(5_000, func() {
		if _, ok := c.Hit(key, now); !ok {
			t.Error("no hit")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
