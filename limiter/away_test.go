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

// This file is about the whole limiter, in virtual time, on a store that fails
// as it is told.

// mood is what a moody store does with a visit.
type mood int32

const (
	well   mood = iota
	hung        // no answer, and nothing done
	late        // done, and answered after the budget
	lost        // done, and the answer lost
	broken      // refused at once
	slow        // done after a third of the budget
	frozen      // done once it is well again, for those who still wait
)

type moody struct {
	inner *localStore
	mood  atomic.Int32
	calls atomic.Int64
	most  atomic.Int64 // calls in one visit
}

var errMoody = errors.New("not today")

func (m *moody) visit(ctx context.Context, calls []call) error {
	m.calls.Add(int64(len(calls)))
	m.most.Store(max(m.most.Load(), int64(len(calls))))
	switch mood(m.mood.Load()) {
	case hung:
		<-ctx.Done()
		return ctx.Err()
	case late:
		time.Sleep(DefaultBudget + time.Millisecond)
	case lost:
		_ = m.inner.visit(ctx, calls)
		return errMoody
	case broken:
		return errMoody
	case slow:
		time.Sleep(DefaultBudget / 3)
	case frozen:
		for mood(m.mood.Load()) == frozen {
			if time.Sleep(time.Millisecond); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return m.inner.visit(ctx, calls)
}

// inVirtualTime runs f with a limiter on a moody store in a synctest bubble.
func inVirtualTime(t *testing.T, o Options, f func(t *testing.T, l *Limiter, m *moody)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := &moody{inner: newLocalStore(func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }, 1<<20)}
		l := newLimiter(o)
		l.openStore(m)
		defer func() {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		f(t, l, m)
	})
}

// left is what the shared bucket has, what is held not counted.
func (m *moody) left(b *Bucket) int64 {
	calls := []call{{key: b.key, policy: b.Policy(), life: leaseLife}}
	_ = m.inner.visit(context.Background(), calls)
	return calls[0].remaining()
}

// smallKey is a bucket of 15, which is not leased from, whose refill (a token
// in 1,000 s) does not matter.
func smallKey(t *testing.T, l *Limiter) *Bucket {
	return l.Bucket(KeyBucket("w", t.Name()), policy(t, 0.001, 15))
}

// slowKey is one of 200, which is.
func slowKey(t *testing.T, l *Limiter) *Bucket {
	return l.Bucket(KeyBucket("w", t.Name()), policy(t, 0.001, 200))
}

func takes(t *testing.T, l *Limiter, b *Bucket, n int, want Source) {
	t.Helper()
	for range n {
		if d := l.Take(b, nil); !d.Allowed || d.Source != want {
			t.Fatalf("%+v, want a token from %v", d, want)
		}
	}
}

func TestBudgetAndBreakerToTheMillisecond(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := smallKey(t, l)
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(hung))
		for i := range 100 {
			began := time.Now()
			l.Take(key, nil)
			want := time.Duration(0)
			if i == 0 {
				want = DefaultBudget
			}
			if spent := time.Since(began); spent != want {
				t.Fatalf("take %d waited %v, want %v", i, spent, want)
			}
		}
		time.Sleep(2 * flightTimeout)
		if s := l.Stats(); s.Breaker == "closed" {
			t.Fatalf("%+v", s)
		}
		// The dispatcher alone probes, every 250 ms or so.
		before := m.calls.Load()
		for range 10_000 {
			time.Sleep(time.Millisecond)
			l.Take(key, nil)
		}
		if probes := m.calls.Load() - before; probes < 15 || probes > 40 {
			t.Fatalf("%d visits to a hung store in 10 s", probes)
		}
		m.mood.Store(int32(well))
		time.Sleep(2*probeEvery + flightTimeout + recovery)
		if s := l.Stats(); s.Breaker != "closed" || s.Degraded < 10*time.Second || s.Owing != 0 || s.OffLedger != 14 {
			t.Fatalf("%+v", s)
		}
		if d := l.Take(key, nil); d.Allowed || d.Source != SourceLease {
			t.Fatalf("Redis has been told, and said so: %+v", d)
		}
	})
}

// A lease goes on while the store hangs: its requests notice nothing.
func TestLeasesOutliveRedis(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 1_000, 1_000))
		for range 1_000 {
			l.Take(key, nil)
			time.Sleep(2 * time.Millisecond)
		}
		m.mood.Store(int32(hung))
		held := l.Stats().LeasedHeld
		if held < 20 {
			t.Fatalf("%d tokens held", held)
		}
		takes(t, l, key, int(held), SourceLease)
	})
}

// One slow answer: the request is decided here, the breaker stays closed, the
// late token goes back, and what was spent here is paid.
func TestLateTokensAreNotSpent(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := smallKey(t, l)
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(late))
		takes(t, l, key, 1, SourceLocalFallback)
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		if n := m.left(key); n != 13 {
			t.Fatalf("%d left of 15 after two requests", n)
		}
		if d := l.Take(key, nil); d.Source != SourceRedis || key.Level().Remaining != 12 {
			t.Fatalf("%+v", d)
		}
		if s := l.Stats(); s.DebtSettled != 0 || s.Owing != 0 || s.OffLedger != 1 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestFailureModes(t *testing.T) {
	for mode, want := range map[FailureMode]int{FailLocal: 14, FailAllow: 100, FailDeny: 0} {
		inVirtualTime(t, Options{FailureMode: mode}, func(t *testing.T, l *Limiter, m *moody) {
			key := smallKey(t, l)
			takes(t, l, key, 1, SourceRedis)
			m.mood.Store(int32(broken))
			allowed := 0
			for range 100 {
				d := l.Take(key, nil)
				if d.Allowed {
					allowed++
				} else if d.RetryAfter <= 0 || d.Refused != Key {
					t.Fatalf("%v: %+v", mode, d)
				}
				if key.Level().Remaining < 0 {
					t.Fatalf("%v: %+v", mode, d)
				}
			}
			if allowed != want || l.Stats().OffLedger != uint64(want) {
				t.Fatalf("%v: %d admitted, want %d", mode, allowed, want)
			}
			m.mood.Store(int32(well))
			time.Sleep(2 * time.Second)
			if left := m.left(key); left != max(0, 14-int64(want)) {
				t.Fatalf("%v: %d left in the end", mode, left)
			}
		})
	}
	for _, text := range []string{"local", "allow", "deny"} {
		var mode FailureMode
		if err := mode.UnmarshalText([]byte(text)); err != nil || mode.String() != text {
			t.Error(text, mode, err)
		}
	}
	if new(FailureMode).UnmarshalText([]byte("open")) == nil {
		t.Error("read")
	}
}

// fleetOf is what a node knows that has counted so many for a while.
func fleetOf(nodes int64) *fleet {
	f := &fleet{}
	for range f.counts {
		f.counted(nodes)
	}
	return f
}

// Three nodes that know of one another take a third each.
func TestPartsOfAFleet(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		l.fleet = fleetOf(3)
		defer func() { l.fleet = nil }()
		m.mood.Store(int32(broken))
		key := slowKey(t, l)
		takes(t, l, key, 66, SourceLocalFallback)
		if d := l.Take(key, nil); d.Allowed || d.RetryAfter < 900*time.Second {
			t.Fatalf("more than a third of 200: %+v", d)
		}
		single := l.Bucket("of one", policy(t, 1, 1))
		if l.Take(single, nil).Allowed { // a third of a token is none yet
			t.Fatal("a token for every node")
		}
		time.Sleep(2 * time.Second)
		if !l.Take(single, nil).Allowed {
			t.Fatal("nobody gets the token that has come since")
		}
	})
}

// Nodes that have never reached Redis do not know how many they are. Up to
// coldNodes of them keep the promise all the same, but that each has a token at
// a time where the burst is fewer than they are; n of them admit at most
// n/coldNodes of it.
func TestColdNodesKeepThePromise(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{5.0 / 60, 5}, {0.001, 5}, {50, 100}, {1_000, 1_000}} {
		for _, nodes := range []int{1, 3, coldNodes, 2 * coldNodes} {
			synctest.Test(t, func(t *testing.T) {
				m := &moody{}
				m.mood.Store(int32(broken))
				began, p := time.Now(), policy(t, limit.rate, limit.burst)
				check, admitted, over := oracle{p: p}, 0, int64(0)
				var buckets []*Bucket
				for range nodes {
					l := newLimiter(Options{})
					l.fleet = &fleet{}
					l.openStore(m)
					defer func() {
						l.fleet = nil
						_ = l.Close(context.Background())
					}()
					buckets = append(buckets, l.Bucket("k", p))
				}
				for range coldFloods { // a quarter of a second apart
					for _, b := range buckets {
						for b.owner.Take(b, nil).Allowed {
							admitted++
							now := int64(time.Since(began) / time.Microsecond)
							if !check.admit(now) {
								over = max(over, ceilDiv(check.admitted*p.p-now*p.r-check.lowest-p.units(), p.p))
							}
						}
					}
					time.Sleep(250 * time.Millisecond)
				}
				span := time.Since(began).Seconds()
				due := float64(limit.burst) + limit.rate*span
				t.Logf("%6.2f/s burst %4d, %2d cold nodes: %6d admitted of %7.0f, at most %d too many in any span", limit.rate, limit.burst, nodes, admitted, due, over)
				if nodes <= coldNodes && over > max(0, int64(nodes)-limit.burst) {
					t.Errorf("%d too many", over)
				}
				if most := float64(nodes) / coldNodes * due; float64(admitted) > most || float64(admitted) < .9*most-float64(nodes) {
					t.Errorf("about %.0f expected", most)
				}
			})
		}
	}
}

// Nodes that find Redis back at the same moment let nobody near it before all
// have told it what they owe: its buckets have filled up meanwhile.
func TestReturnTogether(t *testing.T) {
	t.Parallel()
	const nodes = 3
	for _, how := range []mood{broken, hung, lost, frozen} {
		for _, limit := range []struct {
			rate  float64
			burst int64
		}{{50, 100}, {333, 40}, {1_000, 1_000}} {
			synctest.Test(t, func(t *testing.T) {
				began, p := time.Now(), policy(t, limit.rate, limit.burst)
				now := func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }
				m := &moody{inner: newLocalStore(now, 1<<20)}
				var mu sync.Mutex
				check, admitted, over := oracle{p: p}, 0, int64(0)
				var all sync.WaitGroup
				stop := make(chan struct{})
				for range nodes {
					l := newLimiter(Options{})
					l.fleet = fleetOf(nodes)
					l.openStore(m)
					defer func() {
						l.fleet = nil
						_ = l.Close(context.Background())
					}()
					b := l.Bucket("k", p)
					all.Go(func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(time.Millisecond):
							}
							if !l.Take(b, nil).Allowed {
								continue
							}
							mu.Lock()
							admitted++
							if !check.admit(now()) {
								over = max(over, ceilDiv(check.admitted*p.p-now()*p.r-check.lowest-p.units(), p.p))
							}
							mu.Unlock()
						}
					})
				}
				time.Sleep(300 * time.Millisecond)
				m.mood.Store(int32(how))
				time.Sleep(3 * time.Second)
				m.mood.Store(int32(well))
				time.Sleep(2 * time.Second)
				close(stop)
				all.Wait()
				span := time.Since(began).Seconds()
				t.Logf("%v, %4.0f/s burst %4d: %5d admitted of %5.0f, at most %d too many in any span", how, limit.rate, limit.burst, admitted, float64(limit.burst)+limit.rate*span, over)
				// What a node saw last, and begins alone with, may be a little old.
				if most := nodes + int64(limit.rate*DefaultBudget.Seconds()) + limit.burst/40; over > most {
					t.Errorf("%d too many, %d at most", over, most)
				}
			})
		}
	}
}

func TestDebtSurvivesLostAnswersWithoutGrowing(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 0.0013, 15)) // fractions of a token pass meanwhile
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(broken))
		takes(t, l, key, 10, SourceLocalFallback)
		time.Sleep(20 * time.Second) // some 80 probes fail
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		if s := l.Stats(); s.DebtSettled != 10 || s.Owing != 0 {
			t.Fatalf("%+v", s)
		}
		if n := m.left(key); n != 4 {
			t.Fatalf("%d left of 15 after 11 requests", n)
		}
	})
}

// After an hour alone a bucket owes what is missing from it, not the hour.
func TestLongOutageOwesAtMostWhatIsMissing(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 10, 15))
		takes(t, l, key, 1, SourceRedis)
		m.mood.Store(int32(broken))
		for range 3600 * 5 { // half the rate
			takes(t, l, key, 1, SourceLocalFallback)
			time.Sleep(200 * time.Millisecond)
		}
		m.mood.Store(int32(well))
		time.Sleep(2 * time.Second)
		if s := l.Stats(); s.DebtSettled > 2 || s.Owing != 0 {
			t.Fatalf("%+v", s)
		}
		if n := m.left(key); n < 13 {
			t.Fatalf("%d left of 15", n)
		}
	})
}

func TestBucketNeverSeenStartsFull(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		m.mood.Store(int32(broken))
		key := slowKey(t, l)
		takes(t, l, key, 200, SourceLocalFallback)
		if d := l.Take(key, nil); d.Allowed {
			t.Fatalf("%+v", d)
		}
		key.SetPolicy(policy(t, 0, 1)) // blocked while it owes: the debt is paid all the same
		m.mood.Store(int32(well))
		time.Sleep(2 * time.Second)
		if s := l.Stats(); s.DebtSettled != 200 || s.Owing != 0 || s.Breaker != "closed" {
			t.Fatalf("%+v", s)
		}
	})
}

// A 304's token is in the lease again; a small bucket's goes home at once.
func TestReturn(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		small, large := smallKey(t, l), l.Bucket("large", policy(t, 1_000, 1_000))
		for range 100 {
			l.Take(large, nil)
			time.Sleep(time.Millisecond)
		}
		before, held := m.calls.Load(), l.Stats().LeasedHeld
		for range 50 {
			l.Take(large, nil)
			l.Return(large, nil)
		}
		if now := l.Stats().LeasedHeld; now != held || m.calls.Load() != before {
			t.Fatalf("%d tokens held, before %d; %d calls", now, held, m.calls.Load()-before)
		}
		takes(t, l, small, 3, SourceRedis)
		m.mood.Store(int32(hung))
		began := time.Now()
		l.Return(small, nil)
		if spent := time.Since(began); spent != 0 {
			t.Fatalf("returning took %v", spent)
		}
		m.mood.Store(int32(well))
		time.Sleep(time.Second)
		l.Return(small, nil)
		time.Sleep(time.Second)
		if n := m.left(small); n < 13 { // the first was lost with its flight, or not
			t.Fatalf("%d left of 15", n)
		}
	})
}

// What is not used goes back: by itself, and at the end.
func TestIdleLeasesAreSettled(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		key := l.Bucket("k", policy(t, 1_000, 1_000))
		for range 500 {
			l.Take(key, nil)
			time.Sleep(time.Millisecond)
		}
		if s := l.Stats(); s.Leases != 1 || s.LeasedHeld == 0 {
			t.Fatalf("%+v", s)
		}
		time.Sleep(time.Second)
		if s := l.Stats(); s.Leases != 0 || s.Settles == 0 {
			t.Fatalf("%+v", s)
		}
		if n := m.left(key); n != 1_000 {
			t.Fatalf("%d left of 1,000 a second later", n)
		}
		l.Take(key, nil)
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := &moody{inner: newLocalStore(func() int64 { return 1 + int64(time.Since(began)/time.Microsecond) }, 1<<20)}
		l := newLimiter(Options{})
		l.openStore(m)
		key := l.Bucket("k", policy(t, 0.001, 1_000))
		for range 100 {
			l.Take(key, nil)
		}
		if err := l.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := m.left(key); n != 900 {
			t.Fatalf("%d left of 1,000 after 100 requests and Close", n)
		}
	})
}

// All buckets of a moment travel in one pipeline.
func TestOnePipelineAMoment(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		m.mood.Store(int32(slow)) // while the first is away, the others gather
		var all sync.WaitGroup
		for i := range 200 {
			b := l.Bucket(KeyBucket("w", string(rune('a'+i))), policy(t, 10, 15))
			all.Go(func() { l.Take(b, nil) })
		}
		all.Wait()
		if n := m.most.Load(); n != atOnce {
			t.Fatalf("at most %d of 200 calls in a visit, %d fit", n, atOnce)
		}
	})
}

// A plan change by a caller that gives no versions: a node that still goes by
// the old one keeps it in force, and then it changes once.
func TestNodesThatDisagreeDoNotFlap(t *testing.T) {
	p, q := policy(t, 10, 1_000), policy(t, 10, 20) // a second fills what takes the other 100
	s := fullState(p, 0)
	taken := int64(0)
	now := int64(0)
	for ; now < 60_000_000; now += 50_000 {
		for _, c := range []*call{{policy: p, life: leaseLife, need: 1_000}, {policy: q, life: leaseLife, need: 1_000}} {
			s.visit(c, now)
			taken += c.granted
		}
	}
	if taken > 1_600 || taken < 1_590 || s.policy != p {
		t.Fatalf("%d taken in a minute, 1,000 and 600 are due; %+v", taken, s)
	}
	c := call{policy: q, life: leaseLife}
	if s.visit(&c, now+21_000_000); s.policy != q || s.level > 5*q.p {
		t.Fatalf("nobody goes by the old one any more: %+v", s)
	}
}

// A single node keeps the promise through any weather: the oracle sees every
// admission, whoever decided it. Only requests under way when the weather turns
// may be admitted on both sides of it.
func TestNeverOverThroughOutages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
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
				asked := time.Now()
				d := l.Take(buckets[0], buckets[1])
				if waited := time.Since(asked); waited > mostWait*time.Microsecond {
					t.Fatalf("seed %d: waited %v", seed, waited)
				}
				if !d.Allowed {
					if d.RetryAfter <= 0 || d.Refused == Neither {
						t.Fatalf("seed %d: %+v", seed, d)
					}
					continue
				}
				now := int64(time.Since(began) / time.Microsecond)
				for i := range checks {
					if !checks[i].admitWithin(now, simBudget) {
						t.Fatalf("seed %d: bucket %d, %+v: one too many after %d us, %v", seed, i, checks[i].p, now, d.Source)
					}
				}
			}
		})
	}
}

// Many keys of one workspace while the store's mood swings: no Take waits
// longer than the budget, none waits for another for ever, and in the end
// nothing is owed.
func TestManyRequestsThroughOutages(t *testing.T) {
	const goroutines, burst, swings = 8, 400, 40
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
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
					if spent := time.Since(began); spent > mostWait*time.Microsecond {
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
		if s := l.Stats(); s.Owing != 0 || s.Breaker != "closed" || s.Allowed.LocalFallback == 0 {
			t.Fatalf("%+v", s)
		}
		if n := allowed.Load(); n < burst/2 || n > burst+burst/10 {
			t.Fatalf("%d admitted of a burst of %d", n, burst)
		}
		t.Logf("%d admitted of a burst of %d", allowed.Load(), burst)
	})
}
