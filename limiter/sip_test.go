package limiter

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// In process, whether requests are sparse, dense or both in turn: a bucket in
// which every admitted request is debited at once has a token for each of them,
// and where the burst is too small to be leased from, for no other.
func TestSparseRequestsAreAsExactAsOthers(t *testing.T) {
	limits := []struct {
		rate  float64
		burst int64
	}{{5.0 / 60, 5}, {50, 15}, {3, 1}, {100, 16}, {20, 40}, {1_000, 100}, {1_000, 2_000}}
	for seed := range uint64(simSeeds) {
		random := rand.New(rand.NewPCG(seed, 17))
		limit := limits[seed%uint64(len(limits))]
		p := policy(t, limit.rate, limit.burst)
		time := new(clock)
		l := newLimiter(Options{Clock: time.now})
		l.openMemory(0)
		b := l.Bucket("b", p)
		reference := fullState(p, l.now())
		for step, gap := 0, int64(1); step < 600; step++ {
			if step%50 == 0 { // another pace: from dense to a few times what a token takes
				gap = 1 + random.Int64N([...]int64{1_000, 2 * apart, 4 * p.p / p.r}[random.IntN(3)])
			}
			time.advance(micros(random.Int64N(gap)))
			moment := time.now()
			exact := limit.burst < leastLeased
			switch random.IntN(40) {
			case 0:
				if exact {
					p = policy(t, limit.rate*(.5+random.Float64()), 1+random.Int64N(leastLeased-1))
					p.Version = int64(step)
					b.SetPolicy(p)
				}
			case 1:
				if !exact {
					moment = moment.Add(-micros(random.Int64N(100_000))) // read a while ago
				}
			}
			took, want := l.TakeAt(moment, b, nil), call{policy: p, need: 1}
			before := reference
			reference.visit(&want, l.now())
			if took.Allowed && want.granted == 0 {
				t.Fatalf("seed %d, step %d: %+v, but the bucket has %+v", seed, step, took, want.reply)
			}
			if !took.Allowed && want.granted == 1 {
				if reference = before; exact {
					t.Fatalf("seed %d, step %d: %+v, but the bucket had %+v", seed, step, took, want.reply)
				}
			}
			if left := b.LevelAt(moment).Remaining; exact && left != max(0, reference.level)/reference.policy.p {
				t.Fatalf("seed %d, step %d: %d left is shown, of %+v", seed, step, left, reference)
			}
			if took.Allowed && random.IntN(10) == 0 {
				l.Return(b, nil)
				reference.visit(&call{policy: p, ret: 1}, l.now())
			}
		}
		_ = l.Close(t.Context())
	}
}

// A key that is forgotten and comes back finds its bucket as it was left, and
// one that was full by then left nothing.
func TestABucketOutlivesItsHandle(t *testing.T) {
	time := new(clock)
	l := open(t, Options{Clock: time.now})
	slow, quick := policy(t, 0.001, 3), policy(t, 1_000, 3)
	for range 3 {
		time.advance(micros(apart))
		if !l.Take(l.Bucket("slow", slow), nil).Allowed {
			t.Fatal("refused within the burst")
		}
	}
	var handles []*Bucket
	for i := range 1_000 {
		handles = append(handles, l.Bucket(fmt.Sprint(i), quick))
		l.Take(handles[i], nil)
	}
	time.advance(micros(apart)) // and only then may they be collected
	runtime.KeepAlive(handles)
	eventually(t, "full ones are dropped with their handles", func() bool {
		runtime.GC()
		return l.Stats().Buckets < 10
	})
	if l.Take(l.Bucket("slow", slow), nil).Allowed {
		t.Fatal("it came back full")
	}
}

// That its bucket was dropped, as another handle's, does not part a handle from it.
func TestADroppedBucketIsFoundAgain(t *testing.T) {
	time := new(clock)
	l := open(t, Options{Clock: time.now})
	p := policy(t, 0.001, 3)
	b := l.Bucket("b", p)
	l.Take(b, nil)
	l.Return(b, nil)
	l.local.leave("b") // full
	if n := l.Stats().Buckets; n != 0 {
		t.Fatalf("%d buckets held", n)
	}
	for range 3 {
		time.advance(micros(apart))
		l.Take(b, nil)
	}
	l.local.leave("b")
	if c := l.local.find(&call{key: "b", policy: p}); c.state.level >= p.p {
		t.Fatalf("taken from nowhere: %+v", c.state)
	}
}
