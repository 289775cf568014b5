package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
)

// Two thirds of what Redis can do, on keys that hardly ever come twice: nearly no
// request is decided alone, and again so within a second after Redis stood still.
func TestManySparseKeysOnABusyRedis(t *testing.T) {
	t.Parallel()
	const nodes, perSecond, keys = 3, 4_000, 2_000
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 37))
		v := newVirtual()
		v.oneWay.Store(int64(100 * time.Microsecond))
		v.perCall = 32 * time.Microsecond
		all := fleet(t, v, nodes)
		p := policy(t, 50, 100)
		buckets := make([][nodes]*Bucket, keys)
		for k := range buckets {
			for n := range all {
				buckets[k][n] = all[n].Bucket(KeyBucket("w", fmt.Sprint(k)), p)
			}
		}
		var requests sync.WaitGroup
		alone := func(span time.Duration) float64 {
			var mu sync.Mutex
			alone, asked := 0, 0
			for end := time.Now().Add(span); time.Now().Before(end); {
				boottimetest.Pass(time.Millisecond)
				for range perSecond / 1000 {
					n, k := random.IntN(nodes), random.IntN(keys)
					asked++
					requests.Go(func() {
						if take(all[n], buckets[k][n], nil).Source == SourceLocalFallback {
							mu.Lock()
							alone++
							mu.Unlock()
						}
					})
				}
			}
			requests.Wait()
			return float64(alone) / float64(asked)
		}
		alone(500 * time.Millisecond)
		before := alone(time.Second)
		v.mood.Store(int32(frozen))
		stopped := alone(2 * time.Second)
		v.mood.Store(int32(well))
		first := alone(time.Second)
		then := alone(time.Second)
		t.Logf("%d/s on %d keys, decided alone: %.2f %%; while Redis stands still %.0f %%; in the first second after %.0f %%, in the next %.2f %%",
			perSecond, keys, 100*before, 100*stopped, 100*first, 100*then)
		if before > .01 || then > .01 {
			t.Error("more than one in a hundred is decided alone")
		}
	})
}
