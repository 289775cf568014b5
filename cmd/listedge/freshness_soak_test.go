//go:build soak

package main

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

// The soak: faults in a random order that a seed decides, until time is up.
//
//	make soak SOAK=10m SEED=7
var (
	soakFor  = flag.Duration("soak", 10*time.Minute, "how long to go on")
	soakSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "decides the order")
)

func TestSoakFreshness(t *testing.T) {
	t.Logf("seed %d", *soakSeed)
	r := rand.New(rand.NewPCG(*soakSeed, 0))
	f := startFleet(t, 3)
	o := newOracle(t, f)
	played := map[string]int{}
	for ends := time.Now().Add(*soakFor); time.Now().Before(ends) && !t.Failed(); {
		x, also := faults[r.IntN(len(faults))], faults[r.IntN(len(faults))]
		if r.IntN(3) == 0 && x.name != also.name { // two at once
			x = together(x, also)
		}
		played[x.name]++
		o.play(t, x)
	}
	o.standbyWasTried(t)
	t.Logf("played %v", played)
}

// together is two faults, the second of which begins in the middle of the first.
func together(a, b fault) fault {
	return fault{name: a.name + " and " + b.name, lasts: a.lasts + b.lasts, forms: append(a.forms, b.forms...),
		happens: func(t *testing.T, f *fleet) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(a.lasts / 4)
				b.happens(t, f)
			}()
			a.happens(t, f)
			<-done
		}}
}
