package limiter_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
)

// This file is about a leased limiter whose Redis is slow, hangs or fails, in virtual
// time.

// A request waits for a hung Redis no longer than the budget, and none after it does;
// the heartbeats alone find out that it is back, and what was spent is debited.
func TestBudgetAndBreakerToTheMillisecond(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		key := smallKey(t, l)
		takes(t, l, key, 1, SourceRedis)
		v.mood.Store(int32(hung))
		for i := range 100 {
			began := time.Now()
			take(l, key, nil)
			want := time.Duration(0)
			if i == 0 {
				want = DefaultBudget
			}
			if spent := time.Since(began); spent != want {
				t.Fatalf("take %d waited %v, want %v", i, spent, want)
			}
		}
		boottimetest.Pass(2 * timeout)
		if s := l.Stats(); !s.BreakerOpen || s.Failure == nil {
			t.Fatalf("%+v", s)
		}
		calls := v.calls.Load()
		for range 10_000 {
			boottimetest.Pass(time.Millisecond)
			take(l, key, nil)
		}
		if more := v.calls.Load() - calls; more != 0 {
			t.Fatalf("%d pipelines to a hung store", more)
		}
		v.mood.Store(int32(well))
		boottimetest.Pass(3 * heartbeats)
		if s := l.Stats(); s.BreakerOpen || s.Failure != nil || s.Degraded < 10*time.Second || s.Owing != 0 || s.Allowed[SourceLocalFallback] != 14 {
			t.Fatalf("%+v", s)
		}
		if n := v.left(key); n != 0 {
			t.Fatalf("%d left of 15, all of which are spent", n)
		}
	})
}

func TestFailureModes(t *testing.T) {
	for mode, want := range map[FailureMode]int{FailLocal: 15, FailAllow: 40, FailDeny: 0} {
		t.Run(string(mode), func(t *testing.T) {
			inVirtualTime(t, Options{FailureMode: mode}, func(t *testing.T, l *Limiter, v *virtual) {
				v.mood.Store(int32(broken))
				key, allowed := smallKey(t, l), 0
				for range 40 {
					d := take(l, key, nil)
					if d.Source != SourceLocalFallback || !d.Allowed && d.RetryAfter <= 0 {
						t.Fatalf("%+v", d)
					}
					if d.Allowed {
						allowed++
					}
				}
				if allowed != want {
					t.Fatalf("%d admitted, %d expected", allowed, want)
				}
				v.mood.Store(int32(well))
				boottimetest.Pass(2 * time.Second)
				if s := l.Stats(); s.Owing != 0 || s.BreakerOpen {
					t.Fatalf("%+v", s)
				}
			})
		})
	}
}

// A late answer fails the request, not Redis: its tokens are leased for those who come
// next, and from then on requests wait as long as two answers take.
func TestLateAnswersAreUsed(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		v.oneWay.Store(int64(8 * time.Millisecond))
		b := slowKey(t, l)
		began := time.Now()
		if d := take(l, b, nil); d.Source != SourceLocalFallback || time.Since(began) != DefaultBudget {
			t.Fatalf("%+v after %v", d, time.Since(began))
		}
		boottimetest.Pass(50 * time.Millisecond)
		for range 30 {
			began = time.Now()
			if d := take(l, b, nil); !d.Allowed || d.Source == SourceLocalFallback || time.Since(began) > 24*time.Millisecond {
				t.Fatalf("%+v after %v", d, time.Since(began))
			}
		}
		if s := l.Stats(); s.BreakerOpen || s.Degraded != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

// No request waits longer than an eighth of a second, however slow Redis is.
func TestLongestWait(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		v.oneWay.Store(int64(100 * time.Millisecond))
		b := smallKey(t, l)
		longest := time.Duration(0)
		for range 50 {
			began := time.Now()
			take(l, b, nil)
			longest = max(longest, time.Since(began))
			boottimetest.Pass(30 * time.Millisecond)
		}
		if longest > 125*time.Millisecond {
			t.Fatalf("a request waited %v", longest)
		}
	})
}

// Requests that are given back before the bucket hears of them cost it nothing.
func TestIdleLeasesAreSettled(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		b := l.Bucket("idle", policy(t, 0.001, 100))
		for range 20 {
			take(l, b, nil)
			boottimetest.Pass(10 * time.Millisecond)
		}
		if s := l.Stats(); s.LeasedHeld == 0 {
			t.Fatalf("nothing is leased: %+v", s)
		}
		boottimetest.Pass(5 * time.Second)
		if s := l.Stats(); s.LeasedHeld != 0 || v.left(b) != 80 {
			t.Fatalf("%d left of 80: %+v", v.left(b), s)
		}
	})
}

// All that want a call at a moment travel in few pipelines, and both buckets of a
// request in one.
func TestOnePipelineAMoment(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		v.oneWay.Store(int64(200 * time.Microsecond))
		p := policy(t, 0.001, 15)
		if d := take(l, l.Bucket("a", p), l.Bucket("b", p)); !d.Allowed || v.trips.Load() != 1 || v.calls.Load() != 2 {
			t.Fatalf("%+v: %d trips, %d calls", d, v.trips.Load(), v.calls.Load())
		}
		var all sync.WaitGroup
		for i := range 320 {
			all.Go(func() { take(l, l.Bucket(KeyBucket("w", string(rune('a'+i))), p), nil) })
		}
		all.Wait()
		if n := v.trips.Load(); n > 25 || v.most.Load() > 32 {
			t.Fatalf("%d trips for 320 buckets, %d calls in one", n, v.most.Load())
		}
	})
}

// A look at a bucket that is not leased from shows what is left, also where other nodes may have
// taken tokens.
func TestALookAtASmallBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fleet(t, newVirtual(), 3)[0]
		b := smallKey(t, l)
		takes(t, l, b, 5, SourceRedis)
		boottimetest.Pass(time.Millisecond)
		if n := left(l, b); n < 9 {
			t.Errorf("%d shown of 10 left", n)
		}
	})
}

// A suspended machine's leases end.
func TestALeaseEndsInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := boottimetest.NewMachine()
		l := newLimiter(Options{Clock: machine.Clock}, newVirtual())
		defer closeLimiter(t, l)
		boottimetest.Pass(3 * time.Second)
		b := slowKey(t, l)
		for range 30 {
			take(l, b, nil)
		}
		if s := l.Stats(); s.LeasedHeld == 0 {
			t.Fatal("nothing is leased")
		}
		machine.Sleep(30 * time.Second)
		if s := l.Stats(); s.LeasedHeld != 0 {
			t.Fatalf("%d tokens outlive their lease", s.LeasedHeld)
		}
	})
}

// One failed call is an answer, too: the next one goes to Redis, whatever the failure
// mode, also where no bucket has a lease to fetch or a debt to send.
func TestARequestAfterAFailedCallAsksRedis(t *testing.T) {
	for _, mode := range []FailureMode{FailLocal, FailAllow, FailDeny} {
		t.Run(string(mode), func(t *testing.T) {
			inVirtualTime(t, Options{FailureMode: mode}, func(t *testing.T, l *Limiter, v *virtual) {
				b := l.Bucket("small", policy(t, 1, 15))
				take(l, b, nil)
				v.mood.Store(int32(broken))
				take(l, b, nil)
				v.mood.Store(int32(well))
				boottimetest.Pass(time.Second)
				if d := take(l, b, nil); !d.Allowed || d.Source != SourceRedis {
					t.Errorf("%+v", d)
				}
			})
		})
	}
}

// A node that always has calls in flight is present again after an outage, once its
// debts are paid.
func TestABusyNodeIsPresentAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		all := fleet(t, v, 2)
		v.oneWay.Store(int64(2 * time.Millisecond))
		var requests sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		for i := range 20 {
			b := all[0].Bucket(KeyBucket("w", fmt.Sprint(i)), policy(t, 1_000, 15))
			requests.Go(func() {
				for ctx.Err() == nil {
					if take(all[0], b, nil).Source != SourceRedis {
						boottimetest.Pass(time.Millisecond)
					}
				}
			})
		}
		boottimetest.Pass(time.Second)
		v.mood.Store(int32(hung))
		boottimetest.Pass(2 * time.Second)
		if s := all[0].Stats(); s.Owing == 0 || fleetOf(all[1]).Silent == 0 {
			t.Errorf("in the outage: %+v, and a share of %d is withheld", s, fleetOf(all[1]).Silent)
		}
		v.mood.Store(int32(well))
		boottimetest.Pass(3 * time.Second)
		if n := fleetOf(all[1]).Silent; n != 0 {
			t.Errorf("a share of %d is withheld", n)
		}
		stop()
		requests.Wait()
	})
}

// Calls get through and heartbeats do not: the nodes go by their last count, and
// withhold nothing of one another.
func TestLimitsHoldWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		all := fleet(t, v, 4)
		buckets := make([]*Bucket, len(all))
		for i, l := range all {
			buckets[i] = l.Bucket("shared", policy(t, 200, 100))
		}
		admitted := func(span time.Duration) (n int) {
			for end := time.Now().Add(span); time.Now().Before(end); boottimetest.Pass(2 * time.Millisecond) {
				for i, l := range all {
					if take(l, buckets[i], nil).Allowed {
						n++
					}
				}
			}
			return n
		}
		admitted(2 * time.Second)
		v.deafToBeats.Store(true)
		admitted(3 * time.Second)
		if n := admitted(5 * time.Second); n < 900 || n > 1100 {
			t.Errorf("%d admitted in 5 s of 200/s", n)
		}
	})
}
