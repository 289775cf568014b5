package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clock is virtual time for an in-process limiter.
type clock struct{ micros atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_000_000, 0).Add(micros(c.micros.Load())) }
func (c *clock) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// TestLimiters is the suite over the whole decision, in both places.
func TestLimiters(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		limiterSuite(t, SourceMemory, func(t *testing.T) *Limiter { return open(t, Options{}) })
	})
	t.Run("redis", func(t *testing.T) {
		_, client := startRedis(t)
		limiterSuite(t, SourceRedis, func(t *testing.T) *Limiter {
			return open(t, Options{Redis: client, Budget: patient})
		})
	})
}

func limiterSuite(t *testing.T, source Source, open func(*testing.T) *Limiter) {
	l := open(t)
	made := 0
	pair := func(t *testing.T, keyBurst, workspaceBurst int64) (*Bucket, *Bucket) {
		made++
		name := fmt.Sprint("ws", made)
		return l.Bucket(KeyBucket(name, "a"), policy(t, 0.001, keyBurst)),
			l.Bucket(WorkspaceBucket(name), policy(t, 0.001, workspaceBurst))
	}
	// left is what a bucket holds: it is emptied to find out.
	left := func(b *Bucket) (n int64) {
		for l.Take(b, nil).Allowed {
			n++
		}
		return n
	}

	t.Run("the tighter bucket decides, the other pays nothing", func(t *testing.T) {
		key, workspace := pair(t, 5, 3)
		for i := range int64(3) {
			d := l.Take(key, workspace)
			if !d.Allowed || key.Level().Remaining != 4-i || workspace.Level().Remaining != 2-i || d.Source != source || d.Refused != Neither {
				t.Fatalf("take %d: %+v", i, d)
			}
		}
		for range 20 {
			d := l.Take(key, workspace)
			if d.Allowed || d.Refused != Workspace || key.Level().Remaining != 2 || workspace.Level().Remaining != 0 {
				t.Fatalf("%+v", d)
			}
			if d.RetryAfter < 900*time.Second || d.RetryAfter > 1000*time.Second {
				t.Fatalf("retry after %v", d.RetryAfter)
			}
		}
		if n := left(key); n != 2 {
			t.Fatalf("the key has %d left", n)
		}
	})
	t.Run("the key refuses, the workspace pays nothing", func(t *testing.T) {
		key, workspace := pair(t, 1, 9)
		l.Take(key, workspace)
		for range 20 {
			if d := l.Take(key, workspace); d.Allowed || d.Refused != Key || workspace.Level().Remaining != 8 {
				t.Fatalf("%+v", d)
			}
		}
		if n := left(workspace); n != 8 {
			t.Fatalf("the workspace has %d left", n)
		}
	})
	t.Run("a refused request asks for nothing more", func(t *testing.T) {
		key, workspace := pair(t, 1, 9)
		l.Take(key, nil)
		key.lease.deny.Store(0) // as after a token came back, which another took
		if d := l.Take(key, workspace); d.Allowed {
			t.Fatalf("%+v", d)
		}
		if s := l.Stats(); workspace.lease.local != nil || s.OffLedger != 0 {
			t.Fatalf("this node decided alone, nobody being away: %+v", s)
		}
	})
	t.Run("of two refusals the longer wait counts", func(t *testing.T) {
		key, workspace := pair(t, 1, 1)
		slower := policy(t, 0.0001, 1)
		workspace.SetPolicy(slower)
		l.Take(key, workspace)
		if d := l.Take(key, workspace); d.Allowed || d.Refused != Workspace || d.RetryAfter < 9_900*time.Second {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("all or none under concurrency", func(t *testing.T) {
		key, workspace := pair(t, 300, 120)
		other := l.Bucket(key.key+"2", policy(t, 0.001, 300))
		var allowed [2]atomic.Int64
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for range 50 {
					if l.Take([]*Bucket{key, other}[g%2], workspace).Allowed {
						allowed[g%2].Add(1)
					}
				}
			})
		}
		all.Wait()
		a, b := allowed[0].Load(), allowed[1].Load()
		if w := left(workspace); a+b+w != 120 {
			t.Fatalf("%d and %d admitted, and the workspace has %d of 120", a, b, w)
		}
		if k := left(key); a+k != 300 {
			t.Fatalf("%d admitted and the key has %d of 300", a, k)
		}
		if k := left(other); b+k != 300 {
			t.Fatalf("%d admitted and the other key has %d of 300", b, k)
		}
	})
	t.Run("no bucket is no limit", func(t *testing.T) {
		if d := l.Take(nil, nil); !d.Allowed || d.Source != SourceUnlimited {
			t.Fatalf("%+v", d)
		}
		_, workspace := pair(t, 1, 1)
		if d := l.Take(nil, workspace); !d.Allowed || workspace.Level().Remaining != 0 || (*Bucket)(nil).Level() != (Level{}) {
			t.Fatalf("%+v", d)
		}
		if d := l.Take(nil, workspace); d.Allowed || d.Refused != Workspace {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("one bucket given twice pays once", func(t *testing.T) {
		key, _ := pair(t, 3, 1)
		if d := l.Take(key, key); !d.Allowed || key.Level().Remaining != 2 {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("rate 0 is blocked without a trip", func(t *testing.T) {
		key, workspace := pair(t, 1, 1)
		key.SetPolicy(policy(t, 0, 1))
		before := l.Stats()
		d := l.Take(key, workspace)
		if d.Allowed || d.Source != SourceBlocked || d.Refused != Key || d.RetryAfter <= 0 {
			t.Fatalf("%+v", d)
		}
		l.Return(key, nil)
		if d := l.Take(l.Bucket("never compiled", Policy{}), nil); d.Allowed || d.Source != SourceBlocked {
			t.Fatalf("%+v", d)
		}
		if after := l.Stats(); after.RedisCalls != before.RedisCalls || after.Refused.Blocked != before.Refused.Blocked+2 {
			t.Fatalf("%+v", after)
		}
		if n := left(workspace); n != 1 {
			t.Fatalf("the workspace has %d left", n)
		}
	})
	t.Run("a returned token can be taken again", func(t *testing.T) {
		key, workspace := pair(t, 2, 5)
		l.Take(key, workspace)
		l.Take(key, workspace)
		before := l.Stats().Returned
		l.Return(key, workspace)
		eventually(t, "the tokens' return", func() bool { return l.Stats().Returned == before+2 })
		if d := l.Take(key, workspace); !d.Allowed || key.Level().Remaining != 0 || workspace.Level().Remaining != 3 {
			t.Fatalf("%+v", d)
		}
		for range 9 { // more than were taken
			l.Return(key, workspace)
		}
		eventually(t, "the tokens' return", func() bool { return l.Stats().Returned == before+20 })
		if k, w := left(key), left(workspace); k != 2 || w != 5 {
			t.Fatalf("%d and %d after too many returns", k, w)
		}
	})
	t.Run("a policy change rescales", func(t *testing.T) {
		key, _ := pair(t, 100, 1)
		for range 75 {
			l.Take(key, nil)
		}
		narrow := policy(t, 0.001, 20)
		narrow.Version = 1
		key.SetPolicy(narrow)
		if d := l.Take(key, nil); !d.Allowed || key.Level().Remaining != 4 {
			t.Fatalf("a quarter of 20, less one: %+v", d)
		}
	})
	t.Run("decisions are counted", func(t *testing.T) {
		key, _ := pair(t, 2, 1)
		before := l.Stats()
		for range 5 {
			l.Take(key, nil)
		}
		after := l.Stats()
		all := func(s BySource) uint64 { return s.Memory + s.Redis + s.Lease }
		allowed, refused := all(after.Allowed)-all(before.Allowed), all(after.Refused)-all(before.Refused)
		if allowed != 2 || refused != 3 || after.RedisErrors+after.RedisTimeouts+after.ReturnsDropped != 0 {
			t.Fatalf("%+v", after)
		}
	})
}

// Eight goroutines hammer two keys and their workspace between steps of virtual
// time; the oracle sees every admission.
func TestInProcessNeverOverUnderConcurrency(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 13))
		time := new(clock)
		l := open(t, Options{Clock: time.now})
		var checks []*oracle
		var buckets []*Bucket
		for i := range 3 {
			p := policy(t, []float64{50, 5.0 / 60, 333}[random.IntN(3)], []int64{1, 5, 60}[random.IntN(3)])
			checks = append(checks, &oracle{p: p})
			buckets = append(buckets, l.Bucket(fmt.Sprint("b", i), p))
		}
		stop := make(chan struct{})
		var sweeping sync.WaitGroup
		sweeping.Go(func() { // as the sweeps would, only more often
			for {
				select {
				case <-stop:
					return
				default:
					l.router.sweep()
				}
			}
		})
		for range 150 {
			now := time.micros.Load()
			var allowed [2]atomic.Int64
			var all sync.WaitGroup
			for g := range 8 {
				n := random.IntN(12)
				all.Go(func() {
					for range n {
						if l.Take(buckets[g%2], buckets[2]).Allowed {
							allowed[g%2].Add(1)
						}
					}
				})
			}
			all.Wait()
			for k := range 2 {
				for range allowed[k].Load() {
					if !checks[k].admit(now) || !checks[2].admit(now) {
						t.Fatalf("seed %d: too much by %d us: %+v", seed, now, checks)
					}
				}
			}
			time.advance(micros(random.Int64N(100_000)))
			if random.IntN(30) == 0 {
				time.advance(micros(random.Int64N(100_000_000)))
			}
		}
		close(stop)
		sweeping.Wait()
	}
}

// Two nodes and one Redis, in real time: the fleet keeps the promise.
func TestFleetNeverOver(t *testing.T) {
	_, client := startRedis(t)
	var allowed atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range 2 {
		node := open(t, Options{Redis: client, Budget: patient})
		key := node.Bucket(KeyBucket("fleet", "k"), policy(t, 500, 40))
		workspace := node.Bucket(WorkspaceBucket("fleet"), policy(t, 400, 60))
		for range 3 {
			all.Go(func() {
				for time.Since(began) < 500*time.Millisecond {
					if node.Take(key, workspace).Allowed {
						allowed.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	span := time.Since(began).Seconds()
	if n := float64(allowed.Load()); n > 40+500*span || n > 60+400*span || n < 100 {
		t.Fatalf("%v admitted in %.3f s", n, span)
	}
}

func TestInProcessStoreStaysBounded(t *testing.T) {
	t.Parallel()
	time := new(clock)
	l := open(t, Options{Clock: time.now, MaxBuckets: 6_400})
	p := policy(t, 10, 5) // full again after 100 ms
	for i := range 40_000 {
		l.Take(l.Bucket(fmt.Sprint("k", i), p), nil)
		if i%100 == 99 {
			time.advance(micros(10_000))
		}
	}
	// About 1,000 buckets are not full at a time; a shard holds twice that, or 64.
	eventually(t, "full buckets that have no handle are dropped", func() bool {
		runtime.GC()
		return l.Stats().Buckets <= 64*shards
	})

	slow := policy(t, 0.001, 5) // never full again
	tight := l.Bucket("tight", slow)
	for range 5 {
		l.Take(tight, nil)
	}
	for i := range 20_000 {
		l.Take(l.Bucket(fmt.Sprint("s", i), slow), nil)
	}
	if n := l.Stats().Buckets; n > 6_400 {
		t.Fatalf("%d buckets held, 6,400 allowed", n)
	}
	if l.Take(tight, nil).Allowed {
		t.Fatal("the emptiest bucket was dropped before fuller ones, and came back full")
	}
}

func TestCloseLeavesTakeWorking(t *testing.T) {
	_, client := startRedis(t)
	l := New(Options{Redis: client, Budget: patient})
	counted(t, l, 1)
	key := l.Bucket(KeyBucket("w", "k"), policy(t, 0.001, 3))
	l.Take(key, nil)
	for range 2 {
		if err := l.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if d := l.Take(key, nil); !d.Allowed || d.Source != SourceLocalFallback || key.Level().Remaining != 1 {
		t.Fatalf("%+v", d)
	}
	l.Return(key, nil)
}

// Versions begin anew: a row's xmin wraps, and a restored database counts from
// the start. The limit holds all the same once nobody has gone by the old one for
// an epoch.
func TestALimitOfASmallerVersionHolds(t *testing.T) {
	c := &clock{}
	l := open(t, Options{Clock: c.now})
	before, after := policy(t, 1000, 1000), policy(t, 10, 20)
	before.Version, after.Version = 1<<32-10, 700
	b := l.Bucket(KeyBucket("w", "k"), before)
	l.Take(b, nil)
	b.SetPolicy(after)
	admitted := 0
	for n := range 100_000 {
		c.advance(time.Millisecond)
		if d := l.Take(b, nil); d.Allowed && n >= int(2*leaseLife/1000) {
			admitted++
		}
	}
	if admitted > 20+10*80 {
		t.Errorf("%d admitted in 80 s, burst + rate*t is 820", admitted)
	}
}
