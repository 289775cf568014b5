package apikey

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"listedge/internal/boottime/boottimetest"
)

// flood looks up so many invented keys in each millisecond until stopped.
func (r *ring) flood(t *testing.T, perTick int) (stop func()) {
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		for n := 1 << 32; ctx.Err() == nil; {
			for range perTick {
				n++
				hash := hashNumber(n)
				all.Go(func() {
					if _, err := r.load(ctx, hash, suspectKey); !errors.Is(err, ErrUnknown) && ctx.Err() == nil {
						t.Error(err)
					}
				})
			}
			boottimetest.Pass(time.Millisecond)
		}
	})
	return func() { cancel(); all.Wait() }
}

// Ten thousand invented keys a second with right checksums: Postgres gets no
// more than the stated number of queries, and a key that exists is found soon.
func TestAFloodOfUnknownKeysIsBoundedAndLocksNobodyOut(t *testing.T) {
	const good = 50
	table := newKeyTable(good + 1)
	table.delay = 3 * time.Millisecond
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		must1(r.use(good))
		stop := r.flood(t, 10)
		began := time.Now()
		boottimetest.Pass(5 * time.Second)
		for n := range good {
			asked := time.Now()
			if k, err := r.load(t.Context(), hashNumber(n), []lookupPriority{suspectKey, ordinaryKey}[n%2]); err != nil || k.Key.ID != number(n) {
				t.Errorf("key %d: %v", n, err)
			}
			if took := time.Since(asked); took > 50*time.Millisecond {
				t.Errorf("key %d after %s", n, took)
			}
		}
		boottimetest.Pass(5 * time.Second)
		span := time.Since(began).Seconds()
		stop()
		bound := unknownQueryBurst + int(unknownQueriesPerSecond*span) + int(span/refreshEvery.Seconds()) + 2
		if n := table.queryCount(); n > bound {
			t.Errorf("%d queries in %.1f s, more than %d", n, span, bound)
		}
	})
}

func TestAQueryHasAShareForEachPriority(t *testing.T) {
	for _, c := range []struct{ waiting, taken [lookupPriorities]int }{
		{[lookupPriorities]int{0, 0, 0}, [lookupPriorities]int{0, 0, 0}},
		{[lookupPriorities]int{0, 0, 2000}, [lookupPriorities]int{0, 0, 1000}},
		{[lookupPriorities]int{2000, 2000, 2000}, [lookupPriorities]int{500, 250, 250}},
		{[lookupPriorities]int{2000, 0, 10}, [lookupPriorities]int{990, 0, 10}},
		{[lookupPriorities]int{10, 2000, 2000}, [lookupPriorities]int{10, 740, 250}},
		{[lookupPriorities]int{10, 20, 30}, [lookupPriorities]int{10, 20, 30}},
	} {
		q, n := lookupQueue{calls: map[Hash]*lookupCall{}}, 0
		of := map[*lookupCall]lookupPriority{}
		for p, waiting := range c.waiting {
			for range waiting {
				n++
				of[q.join(hashNumber(n), lookupPriority(p))] = lookupPriority(p)
			}
		}
		var taken [lookupPriorities]int
		_, calls := q.next()
		for _, call := range calls {
			taken[of[call]]++
		}
		if taken != c.taken || len(q.calls) != n-taken[knownKey]-taken[ordinaryKey]-taken[suspectKey] {
			t.Errorf("of %v: %v, want %v; %d stay", c.waiting, taken, c.taken, len(q.calls))
		}
	}
}
