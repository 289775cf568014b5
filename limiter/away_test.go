package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The first half of this file is about a real Redis that is stopped, killed or
// read-only; the second, in virtual time, about a store that fails as told.

// steady is a budget that a busy machine keeps as long as Redis is well; the
// 10 ms of the service are tested in virtual time.
const steady = 150 * time.Millisecond

// slowKey is a bucket of 50 whose refill (a token in 1,000 s) does not matter.
func slowKey(t *testing.T, l *Limiter) *Bucket {
	return l.Bucket(KeyBucket("w", t.Name()), policy(t, 0.001, 50))
}

func takes(t *testing.T, l *Limiter, b *Bucket, n int, want Source) {
	t.Helper()
	for range n {
		if d := l.Take(b, nil); !d.Allowed || d.Source != want {
			t.Fatalf("%+v, want a token from %v", d, want)
		}
	}
}

func TestHungRedisCostsNextToNothing(t *testing.T) {
	server, client := startRedis(t)
	l := open(t, Options{Redis: client, Budget: steady})
	key := slowKey(t, l)
	takes(t, l, key, 30, SourceRedis)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	takes(t, l, key, 5, SourceLocalFallback)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				if l.Take(key, nil).Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if spent := time.Since(began); spent > 2*time.Second {
		t.Fatalf("205 decisions took %v while Redis hung", spent)
	}
	// 20 were left when it froze, and this node knew.
	if allowed.Load() != 15 {
		t.Fatalf("%d admitted after the first five, 15 were left", allowed.Load())
	}
	s := l.Stats()
	if s.Breaker == "closed" || s.RedisTimeouts < 3 || s.Degraded <= 0 || s.Owing != 1 || s.Allowed.LocalFallback != 20 {
		t.Fatalf("%+v", s)
	}
	if d := l.Take(key, nil); d.Allowed || d.RetryAfter < 900*time.Second || d.Refused != Key {
		t.Fatalf("%+v", d)
	}

	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis' return", func() bool {
		s := l.Stats()
		return s.Breaker == "closed" && s.Owing == 0 && s.DebtSettled == 20
	})
	if d := l.Take(key, nil); d.Allowed || d.Source != SourceRedis {
		t.Fatalf("spent locally, and yet Redis has it: %+v", d)
	}
}

func TestLocalSpendingIsDebited(t *testing.T) {
	server, client := startRedis(t)
	l := open(t, Options{Redis: client, Budget: steady})
	key, workspace := slowKey(t, l), l.Bucket(WorkspaceBucket("w"), policy(t, 0.001, 100))
	for range 10 {
		l.Take(key, workspace)
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	for i := range int64(12) {
		d := l.Take(key, workspace)
		if !d.Allowed || d.Source != SourceLocalFallback || d.Key.Remaining != 39-i || d.Workspace.Remaining != 89-i {
			t.Fatalf("local take %d: %+v", i, d)
		}
	}
	l.Return(key, workspace) // a 304 among them
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the debts' settlement", func() bool { return l.Stats().DebtSettled == 22 })
	// Another node asks Redis. The three calls that Redis may have carried out
	// after their requests had given up are lost at worst, never spent twice.
	other := open(t, Options{Redis: client, Budget: patient})
	d := other.Take(other.Bucket(key.key, key.Policy()), other.Bucket(workspace.key, workspace.Policy()))
	if k, w := d.Key.Remaining, d.Workspace.Remaining; k > 28 || k < 25 || w > 78 || w < 75 {
		t.Fatalf("%d and %d left, want 28 and 78 less at most three", k, w)
	}
}

func TestKilledAndRestartedRedis(t *testing.T) {
	server, client := startRedis(t)
	l := open(t, Options{Redis: client, Budget: steady})
	key := slowKey(t, l)
	takes(t, l, key, 45, SourceRedis)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	takes(t, l, key, 5, SourceLocalFallback)
	for range 100 {
		if l.Take(key, nil).Allowed {
			t.Fatal("more than the last level seen")
		}
	}
	if spent := time.Since(began); spent > 2*time.Second {
		t.Fatalf("105 decisions took %v while Redis was dead", spent)
	}
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis' return", func() bool { return l.Stats().DebtSettled == 5 && l.Stats().Breaker == "closed" })
	// It came back empty, so the bucket is full again, but for what it is owed.
	if d := l.Take(key, nil); !d.Allowed || d.Source != SourceRedis || d.Key.Remaining != 44 {
		t.Fatalf("%+v", d)
	}
}

// A replica that was never promoted answers, and still cannot count.
func TestReadOnlyRedisCountsAsAway(t *testing.T) {
	_, client := startRedis(t)
	ctx := context.Background()
	l := open(t, Options{Redis: client, Budget: steady})
	key := slowKey(t, l)
	takes(t, l, key, 1, SourceRedis)
	if err := client.ReplicaOf(ctx, "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	takes(t, l, key, 3, SourceLocalFallback)
	if s := l.Stats(); s.Breaker != "open" || s.RedisErrors != 3 {
		t.Fatalf("%+v", s)
	}
	for range 3 {
		l.Return(key, nil) // no debt is left to try Redis with: the probe must write of itself
	}
	eventually(t, "a probe that fails", func() bool { return l.Stats().RedisErrors == 4 })
	takes(t, l, key, 1, SourceLocalFallback)
	if err := client.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis' return", func() bool { return l.Stats().Breaker == "closed" && l.Stats().Owing == 0 })
	if d := l.Take(key, nil); d.Source != SourceRedis || d.Key.Remaining != 47 {
		t.Fatalf("%+v", d)
	}
}

// mood is what a moody store does with a visit.
type mood int32

const (
	well     mood = iota
	hung          // no answer, and nothing done
	stubborn      // no answer, whatever the context says
	late          // done, and answered after the budget
	lost          // done, and the answer lost
	broken        // refused at once
	slowOnce      // done after half the budget; well from the next visit on
)

type moody struct {
	inner *localStore
	mood  atomic.Int32
	calls atomic.Int64
}

var errMoody = errors.New("not today")

func (m *moody) visit(ctx context.Context, calls []call) error {
	m.calls.Add(int64(len(calls)))
	switch mood(m.mood.Load()) {
	case hung:
		<-ctx.Done()
		return ctx.Err()
	case stubborn:
		time.Sleep(3 * time.Second)
		return errMoody
	case late:
		time.Sleep(DefaultBudget + time.Millisecond)
		return m.inner.visit(ctx, calls)
	case lost:
		_ = m.inner.visit(ctx, calls)
		return errMoody
	case broken:
		return errMoody
	case slowOnce:
		m.mood.Store(int32(well))
		time.Sleep(DefaultBudget / 2)
	}
	return m.inner.visit(ctx, calls)
}

// inVirtualTime runs f with a limiter on a moody store in a synctest bubble.
func inVirtualTime(t *testing.T, f func(t *testing.T, l *Limiter, m *moody)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := &moody{inner: newLocalStore(func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }, 1<<20)}
		l := newLimiter(Options{}, m)
		defer func() {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		f(t, l, m)
	})
}

func (m *moody) left(b *Bucket) int64 {
	calls := []call{{bucket: b, policy: b.Policy()}}
	_ = m.inner.visit(context.Background(), calls)
	return calls[0].remaining
}

func TestBudgetAndBreakerToTheMillisecond(t *testing.T) {
	for _, how := range []mood{hung, stubborn} {
		inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
			key := slowKey(t, l)
			takes(t, l, key, 1, SourceRedis)
			m.mood.Store(int32(how))
			for i := range 100 {
				began := time.Now()
				l.Take(key, nil)
				want := DefaultBudget
				if i >= tripAfter {
					want = 0
				}
				if spent := time.Since(began); spent != want {
					t.Fatalf("take %d waited %v, want %v", i, spent, want)
				}
			}
			if how == stubborn {
				return
			}
			// The keeper alone probes, every 250 ms and the time a probe takes.
			before := m.calls.Load()
			for range 10_000 {
				time.Sleep(time.Millisecond)
				l.Take(key, nil)
			}
			if probes := m.calls.Load() - before; probes < 15 || probes > 40 {
				t.Fatalf("%d visits to a hung store in 10 s", probes)
			}
			m.mood.Store(int32(well))
			time.Sleep(2*probeEvery + flightTimeout)
			if s := l.Stats(); s.Breaker != "closed" || s.Degraded < 10*time.Second || s.Owing != 0 {
				t.Fatalf("%+v", s)
			}
			if d := l.Take(key, nil); d.Allowed || d.Source != SourceRedis {
				t.Fatalf("%+v", d)
			}
		})
	}
}

// One slow answer: the request is decided here, the breaker stays closed, the
// late token goes back, and the next Take pays what was spent here.
func TestLateTokensAreNotSpent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		key := slowKey(t, l)
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(late))
		takes(t, l, key, 1, SourceLocalFallback)
		m.mood.Store(int32(well))
		if d := l.Take(key, nil); d.Source != SourceRedis || d.Key.Remaining != 47 {
			t.Fatalf("the debt did not travel with the next Take: %+v", d)
		}
		time.Sleep(time.Second)
		if n := m.left(key); n != 47 {
			t.Fatalf("%d left of 50 after three requests", n)
		}
		if s := l.Stats(); s.DebtSettled != 1 || s.Owing != 0 || s.Returned != 1 {
			t.Fatalf("%+v", s)
		}
	})
}

// While a debt is on its way Redis shows tokens that are spent: who comes next
// waits for it.
func TestNobodyOvertakesADebt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		key := slowKey(t, l)
		takes(t, l, key, 48, SourceRedis)
		m.mood.Store(int32(broken))
		takes(t, l, key, 1, SourceLocalFallback)
		m.mood.Store(int32(slowOnce))
		var allowed atomic.Int64
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if l.Take(key, nil).Allowed {
					allowed.Add(1)
				}
			})
			synctest.Wait() // the first is in the store by now, its debt with it
		}
		all.Wait()
		if allowed.Load() != 1 || l.Stats().DebtSettled != 1 {
			t.Fatalf("%d admitted, one token was left: %+v", allowed.Load(), l.Stats())
		}
	})
}

func TestHandleRemembersTheLatestAnswer(t *testing.T) {
	p := policy(t, 0.001, 50)
	b := &Bucket{key: "k"}
	answer := func(tokens, at int64) {
		b.note(&call{policy: p, reply: reply{level: tokens * p.p, now: at}}, 0)
	}
	left := func() int64 { return b.seen.level / p.p }
	answer(10, 70_000_000)
	answer(11, 69_999_000)
	if left() != 10 {
		t.Fatalf("%d left: an answer that was overtaken counts", left())
	}
	answer(9, 70_000_001)
	answer(50, 60_000_000) // another Redis, whose clock is behind
	if left() != 50 {
		t.Fatalf("%d left: the clock that stepped back is not believed", left())
	}
}

func TestHandleKeepsWhatIsOnItsWay(t *testing.T) {
	p := policy(t, 0.001, 50)
	b := &Bucket{key: "k"}
	b.visitLocal(&call{policy: p, need: 20}, 0)
	d, _ := b.claim(0)
	if d.tokens != 20 {
		t.Fatalf("claims %d", d.tokens)
	}
	if _, busy := b.claim(0); busy == nil {
		t.Fatal("claimed twice")
	}
	b.settled(debt{}) // a visit that left before the outage comes home
	if b.local == nil {
		t.Fatal("20 tokens spent here are forgotten while Redis does not know of them")
	}
	b.unclaim(d, 0)
	if d, _ = b.claim(0); d.tokens != 20 {
		t.Fatalf("claims %d again", d.tokens)
	}
	b.settled(d)
	if b.local != nil {
		t.Fatal("nothing is owed, and yet the local bucket lives")
	}
	b.visitLocal(&call{policy: p, need: 5}, 0)
	d, _ = b.claim(0)
	b.unclaim(d, 0)
	b.settledLate(d, 0) // it did arrive
	if d, _ = b.claim(0); d.tokens != 0 {
		t.Fatalf("%d tokens would be debited twice", d.tokens)
	}
}

func TestDebtSurvivesLostAnswersWithoutGrowing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 0.0013, 50)) // fractions of a token pass meanwhile
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(broken))
		takes(t, l, key, 10, SourceLocalFallback)
		time.Sleep(20 * time.Second) // some 80 probes fail
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		if s := l.Stats(); s.DebtSettled != 10 || s.Owing != 0 {
			t.Fatalf("%+v", s)
		}
		if n := m.left(key); n != 39 {
			t.Fatalf("%d left of 50 after 11 requests", n)
		}
	})
}

// After an hour alone a bucket owes what is missing from it, not the hour.
func TestLongOutageOwesAtMostWhatIsMissing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 10, 50))
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(broken))
		for range 3600 * 5 { // half the rate
			takes(t, l, key, 1, SourceLocalFallback)
			time.Sleep(200 * time.Millisecond)
		}
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		if s := l.Stats(); s.DebtSettled > 2 || s.Owing != 0 {
			t.Fatalf("%+v", s)
		}
		if n := m.left(key); n < 48 {
			t.Fatalf("%d left of 50", n)
		}
	})
}

func TestBucketNeverSeenStartsFull(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		m.mood.Store(int32(broken))
		key := slowKey(t, l)
		takes(t, l, key, 50, SourceLocalFallback)
		if d := l.Take(key, nil); d.Allowed {
			t.Fatalf("%+v", d)
		}
		key.SetPolicy(policy(t, 0, 1)) // blocked while it owes: the debt is paid all the same
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		if s := l.Stats(); s.DebtSettled != 50 || s.Owing != 0 || s.Breaker != "closed" {
			t.Fatalf("%+v", s)
		}
	})
}

func TestReturnNeverWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		key, workspace := slowKey(t, l), l.Bucket(WorkspaceBucket("w"), policy(t, 0.001, 50))
		for range 20 {
			l.Take(key, workspace)
		}
		m.mood.Store(int32(hung))
		began := time.Now()
		const given = 2 * returnQueue
		for range given {
			l.Return(key, workspace)
		}
		if spent := time.Since(began); spent != 0 {
			t.Fatalf("returning took %v", spent)
		}
		time.Sleep(3 * time.Second)
		if s := l.Stats(); s.ReturnsDropped != 2*given || s.Returned != 0 {
			t.Fatalf("a token is neither returned nor counted as dropped: %+v", s)
		}
		m.mood.Store(int32(well))
		time.Sleep(3 * time.Second)
		l.Return(key, workspace)
		synctest.Wait()
		if k, w := m.left(key), m.left(workspace); k != 31 || w != 31 {
			t.Fatalf("%d and %d left, want 31", k, w)
		}
	})
}

// A single node keeps the promise through any weather: the oracle sees every
// admission, whoever decided it.
func TestNeverOverThroughOutages(t *testing.T) {
	for seed := range uint64(150) {
		inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
			random := rand.New(rand.NewPCG(seed, 17))
			began := time.Now()
			var buckets [2]*Bucket
			var checks [2]*oracle
			for i := range buckets {
				p := randomPolicy(t, random)
				buckets[i], checks[i] = l.Bucket([]string{"k", "w"}[i], p), &oracle{p: p}
			}
			for range 400 {
				if random.IntN(25) == 0 {
					m.mood.Store(int32([]mood{well, well, hung, late, lost, broken}[random.IntN(6)]))
				}
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.Int64N(40_000)) * time.Microsecond)
				}
				if random.IntN(60) == 0 {
					time.Sleep(time.Duration(random.Int64N(3_000_000)) * time.Microsecond)
				}
				d := l.Take(buckets[0], buckets[1])
				if !d.Allowed {
					continue
				}
				now := int64(time.Since(began) / time.Microsecond)
				for i := range checks {
					if !checks[i].admit(now) {
						t.Fatalf("seed %d: bucket %d, %+v: one too many after %d us, %v", seed, i, checks[i].p, now, d.Source)
					}
				}
			}
		})
	}
}

// Many keys of one workspace while the store's mood swings: no Take waits
// longer than the budget, none waits for another for ever, and in the end
// nothing is owed. Requests under way when the weather turns may be admitted on
// both sides of it, and no others.
func TestManyRequestsThroughOutages(t *testing.T) {
	const goroutines, burst, swings = 8, 400, 40
	inVirtualTime(t, func(t *testing.T, l *Limiter, m *moody) {
		random := rand.New(rand.NewPCG(19, 20))
		workspace := l.Bucket(WorkspaceBucket("w"), policy(t, 0.001, burst))
		var allowed atomic.Int64
		var all sync.WaitGroup
		for g := range goroutines {
			key := l.Bucket(KeyBucket("w", string(rune('a'+g/2))), policy(t, 100, 50))
			pace := time.Duration(5+random.IntN(20)) * time.Millisecond
			all.Go(func() {
				for range 1_000 {
					began := time.Now()
					if l.Take(key, workspace).Allowed {
						allowed.Add(1)
					}
					if spent := time.Since(began); spent > DefaultBudget {
						t.Errorf("a Take took %v", spent)
					}
					time.Sleep(pace)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		for range swings {
			m.mood.Store(int32([]mood{well, hung, late, lost, broken}[random.IntN(5)]))
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		}
		m.mood.Store(int32(well))
		all.Wait()
		time.Sleep(2 * time.Second)
		if s := l.Stats(); s.Owing != 0 || s.Breaker != "closed" || s.Allowed.LocalFallback == 0 || s.Allowed.Redis == 0 {
			t.Fatalf("%+v", s)
		}
		if n := allowed.Load(); n < burst/2 || n > burst+burst/10 {
			t.Fatalf("%d admitted of a burst of %d", n, burst)
		}
		t.Logf("%d admitted of a burst of %d", allowed.Load(), burst)
	})
}
