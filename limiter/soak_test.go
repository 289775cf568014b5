//go:build soak

package limiter

import (
	"testing"
	"time"
)

// soakFor is how long each of the simulations below goes on, with seeds that no
// other test has: at some ten thousand requests a seed.
const soakFor = time.Minute

// Storms in virtual time, seed after seed:
//
//	go test -tags soak -run Soak -v -timeout 30m ./limiter
func TestSoakNeverOverAtSpending(t *testing.T) {
	var all hazards
	seeds, admitted := uint64(0), int64(0)
	for began := time.Now(); time.Since(began) < soakFor; seeds++ {
		o := storm{seed: 1_000_000 + seeds}.run(t)
		if o.over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", 1_000_000+seeds, o.over, o.worst)
		}
		all.add(o.tried)
		admitted += o.admitted
	}
	t.Logf("%d storms, %d admissions, none of them too many: %+v", seeds, admitted, all)
}

func TestSoakNeverOverAtTheEdgesOfEpochs(t *testing.T) {
	seeds := uint64(0)
	for began := time.Now(); time.Since(began) < soakFor; seeds++ {
		if over, worst := dormant(t, 1_000_000+seeds); over > 0 {
			t.Errorf("seed %d: %d admitted above the promise, by up to %d tokens", 1_000_000+seeds, over, worst)
		}
	}
	t.Logf("%d epochs' edges, none of them crossed", seeds)
}
