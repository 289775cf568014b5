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

// distant is a store a fifth of a millisecond away, which counts who comes.
type distant struct {
	inner        *localStore
	mu           sync.Mutex // guards all below
	trips, calls int
}

func (d *distant) visit(ctx context.Context, calls []call) error {
	d.mu.Lock()
	d.trips++
	d.calls += len(calls)
	d.mu.Unlock()
	time.Sleep(200 * time.Microsecond)
	return d.inner.visit(ctx, calls)
}

// Two thousand keys of 50/s on three nodes, dispatchers and all, in virtual
// time. A call a request is what keys cost that a node sees less than twice in
// the life of a lease; all that want one at a moment share a trip.
func TestTwoThousandKeys(t *testing.T) {
	t.Parallel()
	const keys, nodes, warm, measured = 2_000, 3, 10 * time.Second, 10 * time.Second
	for _, c := range []struct {
		what         string
		perSecond    float64
		zipf         bool
		calls, trips float64 // at most, per request
	}{
		{"all alike", 1_000, false, .9, .85},
		{"some of them much more than others", 1_000, true, .5, .5},
		{"all alike", 10_000, false, .35, .35},
		{"some of them much more than others", 10_000, true, .3, .3},
	}[:keyLoads] {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			random := rand.New(rand.NewPCG(1, 29))
			zipf := rand.NewZipf(random, 1.1, 1, keys-1)
			s := &distant{inner: newLocalStore(func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }, 1<<20)}
			var fleet [nodes]*Limiter
			var buckets [nodes][keys]*Bucket
			p := policy(t, 50, 100)
			for n := range fleet {
				fleet[n] = newLimiter(Options{})
				fleet[n].openStore(s)
				defer fleet[n].Close(context.Background())
				for k := range keys {
					buckets[n][k] = fleet[n].Bucket(KeyBucket("w", fmt.Sprint(k)), p)
				}
			}
			var all sync.WaitGroup
			requests := 0
			from := distant{}
			for time.Since(began) < warm+measured {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / c.perSecond))
				if from.trips == 0 && time.Since(began) > warm {
					s.mu.Lock()
					from.trips, from.calls, requests = s.trips, s.calls, 0
					s.mu.Unlock()
				}
				n, k := random.IntN(nodes), random.IntN(keys)
				if c.zipf {
					k = int(zipf.Uint64())
				}
				requests++
				all.Go(func() { fleet[n].Take(buckets[n][k], nil) })
			}
			all.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			calls, trips := float64(s.calls-from.calls)/float64(requests), float64(s.trips-from.trips)/float64(requests)
			t.Logf("%d keys, %s, %.0f/s in all on %d nodes: %.3f calls and %.3f trips a request", keys, c.what, c.perSecond, nodes, calls, trips)
			if calls > c.calls || trips > c.trips {
				t.Errorf("at most %v and %v expected", c.calls, c.trips)
			}
		})
	}
}
