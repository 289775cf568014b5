//go:build soak

package limiter

import "testing"

func TestSoakNeverOverAtSpending(t *testing.T) {
	for seed := range uint64(20_000) {
		if over := storm(t, seed, nil); over > 0 {
			t.Fatalf("seed %d: %d admitted above the promise", seed, over)
		}
	}
}
