//go:build !race

package cache

import (
	"testing"
	"time"
)

// The race detector allocates on its own account, hence the build tag.
func TestHitAllocatesNothing(t *testing.T) {
	c := open(t, Options{TTL: time.Hour})
	key, missing := keyOf("q"), keyOf("missing")
	var spot Spot
	forward(t, c, key, brings("page"))
	now := time.Now()
	for what, f := range map[string]func(){
		"hit": func() {
			if _, ok := c.hitOf(key, now); !ok {
				t.Error("no hit")
			}
		},
		"hit again": func() {
			if _, ok := c.Hit(&spot, key, now); !ok {
				t.Error("no hit")
			}
		},
		"miss": func() { c.hitOf(missing, now) },
	} {
		// Ristretto takes up its counts by the batch: less than one in an access.
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
	b := startBeater(t)
	c, _ := b.open(Options{TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour})
	eventually(t, "trusted", mode(c, ModeFollowed))
	if _, err := c.Forward(keyOf("q"), listA, b.brings("page")); err != nil {
		t.Fatal(err)
	}
	b.stop() // what beats and what reads allocate
	b.done.Wait()
	key, now := keyOf("q"), time.Now()
	if n := testing.AllocsPerRun(5_000, func() {
		if _, ok := c.hitOf(key, now); !ok {
			t.Error("no hit")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A Set of ristretto's allocates, as does awaiting it.
func TestAPageThatReplacesOneLikeItTakesNoSet(t *testing.T) {
	m := openMemory(t, 8<<20)
	key, body, pages := keyOf("q"), rows(1000), make([]Entry, 1_002) // one to begin with, and one that AllocsPerRun does not count
	next := func() {
		p := &pages[0]
		p.Body, pages = body[:len(body)-len(pages)%10], pages[1:]
		m.put(key, p, time.Hour)
	}
	next()
	if n := testing.AllocsPerRun(1_000, next); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
