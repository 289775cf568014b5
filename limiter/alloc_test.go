//go:build !race

package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
)

// The race detector allocates on its own account, hence the build tag.
func TestInProcessTakeAllocatesNothing(t *testing.T) {
	l := open(t, Options{})
	key := l.Bucket(KeyBucket("w", "k"), policy(t, 1e6, 1000))
	workspace := l.Bucket(WorkspaceBucket("w"), policy(t, 5.0/60, 3))
	for what, f := range map[string]func(){
		"one bucket":              func() { l.Take(key, nil) },
		"two, the second refuses": func() { l.Take(key, workspace) },
		"no bucket":               func() { l.Take(nil, nil) },
		"given back":              func() { l.Take(key, nil); l.Return(key, nil) },
	} {
		f() // makes the bucket
		if n := testing.AllocsPerRun(2_000, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// Nor where many keys come in turn, whose buckets are full again each time.
func TestSparseTakesAllocateNothing(t *testing.T) {
	time := new(clock)
	l := open(t, Options{Clock: time.now})
	buckets := make([]*Bucket, 100*shards)
	for i := range buckets {
		buckets[i] = l.Bucket(KeyBucket("w", fmt.Sprint(i)), policy(t, 1e6, 1000))
		l.Take(buckets[i], nil)
		time.advance(micros(1_000))
	}
	i := 0
	if n := testing.AllocsPerRun(2*len(buckets), func() {
		time.advance(micros(apart))
		l.Take(buckets[i%len(buckets)], nil)
		i++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// leasing is a limiter on a real Redis whose two buckets are leased from by the
// hundred thousand.
func leasing(t testing.TB) (l *Limiter, key, workspace *Bucket) {
	_, client := startRedis(t)
	l = open(t, Options{Redis: client, Budget: patient})
	key = l.Bucket(KeyBucket("w", "k"), policy(t, 1e9, 1<<31))
	workspace = l.Bucket(WorkspaceBucket("w"), policy(t, 1e9, 1<<31))
	for key.lease.holds(l.now()) < 200_000 || workspace.lease.holds(l.now()) < 200_000 {
		l.Take(key, workspace)
	}
	return l, key, workspace
}

func TestLeasedDecisionAllocatesNothing(t *testing.T) {
	l, key, workspace := leasing(t)
	_, client := startRedis(t)
	strict := open(t, Options{Redis: client, Budget: patient})
	empty := strict.Bucket("empty", policy(t, 0.001, 20))
	for strict.Take(empty, nil).Allowed {
	}
	now := time.Now()
	for what, f := range map[string]func(){
		"one bucket":  func() { l.TakeAt(now, key, nil) },
		"two buckets": func() { l.TakeAt(now, key, workspace) },
		"given back":  func() { l.TakeAt(now, key, workspace); l.Return(key, workspace) },
		"refused":     func() { strict.TakeAt(time.Now(), empty, nil) },
		"shown":       func() { l.Stamp(now, key, workspace); key.LevelAt(now); workspace.LevelAt(now) },
	} {
		// The dispatcher's visits, now and then, are not the decision's: of a
		// few rounds the best counts.
		least := testing.AllocsPerRun(1_000, f)
		for range 4 {
			least = min(least, testing.AllocsPerRun(1_000, f))
		}
		if least != 0 {
			t.Errorf("%s: %v allocations", what, least)
		}
	}
}

// What a decision costs, and what it would without leases, side by side: the
// same script called for every request, and go-redis/redis_rate.
//
//	go test -run AllocAndCost -v ./limiter
func TestAllocAndCostOfADecision(t *testing.T) {
	l, key, workspace := leasing(t)
	_, client := startRedis(t)
	store, p := newRedisStore(client, new(redisStats)), policy(t, 1e9, 1<<31)
	rate, limit := redis_rate.NewLimiter(client), redis_rate.Limit{Rate: 1e9, Burst: 1 << 31, Period: time.Second}
	strict := open(t, Options{Redis: client, Budget: patient})
	empty := strict.Bucket("empty", policy(t, 0.001, 20))
	for strict.Take(empty, nil).Allowed {
	}
	const many, few = 20_000, 300 // decisions in a round: of a lease, and with Redis
	now := time.Now()
	hold := func() {
		for now = time.Now(); key.lease.holds(l.now()) < 2*many || workspace.lease.holds(l.now()) < 2*many; now = time.Now() {
			l.Take(key, workspace)
		}
	}
	script := func(buckets ...string) func() {
		calls := make([]call, len(buckets))
		return func() {
			for i, k := range buckets {
				calls[i] = call{key: k, policy: p, life: leaseLife, need: 1}
			}
			if err := store.visit(t.Context(), calls); err != nil || calls[0].granted != 1 {
				t.Fatal(err)
			}
		}
	}
	type cost struct {
		what   string
		rounds int
		f      func()
		ns     float64
		allocs float64
	}
	costs := []*cost{
		{what: "leased, one bucket", rounds: many, f: func() { l.TakeAt(now, key, nil) }},
		{what: "leased, two buckets", rounds: many, f: func() { l.TakeAt(now, key, workspace) }},
		{what: "leased, two buckets, clock read here", rounds: many, f: func() { l.Take(key, workspace) }},
		{what: "refused, Redis having said so", rounds: many, f: func() { strict.TakeAt(now, empty, nil) }},
		{what: "script per request, one bucket", rounds: few, f: script("a")},
		{what: "script per request, two buckets", rounds: few, f: script("a", "b")},
		{what: "redis_rate, one bucket", rounds: few, f: func() {
			if r, err := rate.Allow(t.Context(), "k", limit); err != nil || r.Allowed != 1 {
				t.Fatal(err)
			}
		}},
	}
	for range 30 { // in turn, so that a busy machine is busy for all; the best round counts
		for _, c := range costs {
			hold()
			began := time.Now()
			for range c.rounds {
				c.f()
			}
			if ns := float64(time.Since(began)) / float64(c.rounds); c.ns == 0 || ns < c.ns {
				c.ns = ns
			}
		}
	}
	for _, c := range costs {
		hold()
		c.allocs = testing.AllocsPerRun(few, c.f)
		t.Logf("%-36s %9.1f ns %3.0f allocations, %7.1f x the leased one", c.what, c.ns, c.allocs, c.ns/costs[0].ns)
	}
	for i, per := range []int{4, 5} {
		if c := costs[i]; costs[per].ns < 1_000*c.ns {
			t.Errorf("%s: the script per request takes %.0f times as long, not 1,000", c.what, costs[per].ns/c.ns)
		}
	}
}
