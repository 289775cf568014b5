package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// busy is a store that works off one call after the other, as Redis does, and
// that may be stopped. It is a tenth of a millisecond away.
type busy struct {
	inner   *localStore
	perCall time.Duration

	mu      sync.Mutex // guards all below
	free    time.Time  // when it has done what has come
	stopped chan struct{}
}

const busyOneWay = 100 * time.Microsecond

func (b *busy) visit(ctx context.Context, calls []call) error {
	time.Sleep(busyOneWay)
	b.mu.Lock()
	stopped := b.stopped
	b.mu.Unlock()
	if stopped != nil {
		select {
		case <-stopped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.mu.Lock()
	if now := time.Now(); b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(time.Duration(len(calls)) * b.perCall)
	done := time.Until(b.free)
	b.mu.Unlock()
	select {
	case <-time.After(done + busyOneWay):
		return b.inner.visit(ctx, calls)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *busy) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = make(chan struct{})
}

func (b *busy) goOn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.stopped)
	b.stopped = nil
}

// Two thirds of what Redis can do, on keys that hardly ever come twice: nearly no
// request is decided alone, and again so a second after Redis stood still.
func TestManySparseKeysOnABusyRedis(t *testing.T) {
	t.Parallel()
	const nodes = 3
	perSecond, keys := 20_000, 20_000
	if keyLoads == 1 {
		perSecond, keys = 4_000, 2_000
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		random := rand.New(rand.NewPCG(1, 37))
		s := &busy{inner: newLocalStore(func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }, 1<<20), perCall: 32 * time.Microsecond}
		var fleet [nodes]*Limiter
		p := policy(t, 50, 100)
		for n := range fleet {
			fleet[n] = newLimiter(Options{})
			fleet[n].fleet = fleetOf(nodes)
			fleet[n].openStore(s)
			defer func() {
				fleet[n].fleet = nil
				_ = fleet[n].Close(context.Background())
			}()
		}
		buckets := make([][nodes]*Bucket, keys)
		for k := range buckets {
			for n := range fleet {
				buckets[k][n] = fleet[n].Bucket(KeyBucket("w", fmt.Sprint(k)), p)
			}
		}
		var all sync.WaitGroup
		alone := func(span time.Duration) float64 {
			var mu sync.Mutex
			alone, requests := 0, 0
			for end := time.Now().Add(span); time.Now().Before(end); {
				time.Sleep(time.Millisecond)
				for range perSecond / 1000 {
					n, k := random.IntN(nodes), random.IntN(keys)
					requests++
					all.Go(func() {
						if fleet[n].Take(buckets[k][n], nil).Source == SourceLocalFallback {
							mu.Lock()
							alone++
							mu.Unlock()
						}
					})
				}
			}
			all.Wait()
			return float64(alone) / float64(requests)
		}
		alone(500 * time.Millisecond)
		well := alone(time.Second)
		s.stop()
		stopped := alone(2 * time.Second)
		s.goOn()
		first := alone(time.Second)
		then := alone(time.Second)
		t.Logf("%d/s on %d keys, decided alone: %.2f %%; while Redis stands still %.0f %%; in the first second after %.0f %%, in the next %.2f %%", perSecond, keys, 100*well, 100*stopped, 100*first, 100*then)
		if well > .01 || then > .01 {
			t.Error("more than one in a hundred is decided alone")
		}
	})
}
