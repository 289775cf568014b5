//go:build !race

package world_test

import (
	"strings"
	"testing"

	"listedge/internal/world"
)

// worldsInTests are the seeds of the fixed set.
const worldsInTests = 120

// The same seed gives the same trace. The race detector has goroutines take turns in another order each time, on purpose.
func TestTheSameSeedGivesTheSameTrace(t *testing.T) {
	for name, g := range map[string]game{"pages": playPages, "limits": playLimits} {
		t.Run(name, func(t *testing.T) { g.repeat(t) })
	}
}

func (g game) repeat(t *testing.T) {
	defer alone()()
	for seed := uint64(1); seed <= 8; seed++ {
		var traces [2]strings.Builder
		for i := range traces {
			g.play(t, world.Play{Seed: seed, Steps: 400, Log: &traces[i]})
		}
		a, b := strings.Split(traces[0].String(), "\n"), strings.Split(traces[1].String(), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("seed %d, line %d of %d:\n%s\n%s", seed, i, len(a), a[i], b[i])
			}
		}
		if len(a) != len(b) || len(a) < 100 {
			t.Errorf("seed %d: %d and %d lines", seed, len(a), len(b))
		}
	}
}
