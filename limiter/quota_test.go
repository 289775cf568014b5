package limiter_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
)

// Both deciders keep a quota beside the rates, all or none.
func TestQuotas(t *testing.T) { decide(t, keepsQuotas) }

func keepsQuotas(t *testing.T, l *Limiter, _ Source) {
	for _, tokens := range []int64{3, 15, 16, 100} {
		ends := time.Now().Add(time.Hour + 500*time.Millisecond)
		name := fmt.Sprint(tokens)
		key := l.Bucket(KeyBucket("w", name), policy(t, 1_000, 1_000))
		quota := l.Quota("w", name, tokens, ends)
		take := func() Decision { return l.Take(time.Now(), key, nil, quota) }
		refused := func(what string) {
			t.Helper()
			boottimetest.Pass(time.Second)
			before := left(l, key)
			d := take()
			until := time.Until(ends)
			if d.Allowed || d.Refused != Quota || d.RetryAfter < until || d.RetryAfter > until+time.Millisecond ||
				d.Quota != (Status{RetryIn: d.RetryAfter, ResetIn: d.RetryAfter}) {
				t.Fatalf("%d tokens, %s: %+v, and the period ends in %v", tokens, what, d, until)
			}
			if after := left(l, key); after != before || d.Key.RetryIn != 0 {
				t.Fatalf("%d tokens, %s: a refused request took %d tokens of its key", tokens, what, before-after)
			}
		}
		for i := range tokens {
			d := take()
			if !d.Allowed || d.RetryAfter != 0 || d.Quota.Remaining != tokens-1-i || d.Quota.RetryIn != 0 ||
				(d.Quota.ResetIn-time.Until(ends)).Abs() > time.Millisecond {
				t.Fatalf("%d tokens, take %d: %+v", tokens, i, d)
			}
		}
		refused("used up")
		if d := l.Peek(time.Now(), key, nil, quota); !d.Allowed || d.Quota.Remaining != 0 || d.Quota.ResetIn == 0 {
			t.Fatalf("a look: %+v", d)
		}

		l.Quota("w", name, tokens+5, ends)
		for range 5 {
			if d := take(); !d.Allowed {
				t.Fatalf("%d tokens, raised by 5: %+v", tokens, d)
			}
		}
		refused("raised and used up")
		l.Quota("w", name, 1, ends)
		refused("lowered below what was used")
		l.Quota("w", name, tokens+6, ends)
		if d := take(); !d.Allowed {
			t.Fatalf("%d tokens, raised by one more: %+v", tokens, d)
		}
		refused("raised by one more and used up")

		next := l.Quota("w", name+"+1", tokens, ends.Add(time.Hour))
		if d := l.Take(time.Now(), key, nil, next); !d.Allowed || d.Quota.Remaining != tokens-1 {
			t.Fatalf("the next period: %+v", d)
		}

		lowered := l.Quota("w", name+"lowered", tokens, ends) // of which a node may have a block
		if d := l.Take(time.Now(), key, nil, lowered); !d.Allowed {
			t.Fatalf("%d tokens, the first: %+v", tokens, d)
		}
		l.Quota("w", name+"lowered", 1, ends)
		if d := l.Take(time.Now(), key, nil, lowered); d.Allowed {
			t.Fatalf("%d tokens, lowered to the one that was used: %+v", tokens, d)
		}

		full := l.Quota("w", name+"full", tokens, ends)
		slow := l.Bucket(KeyBucket("w", name+"slow"), policy(t, 0.001, 1))
		l.Take(time.Now(), slow, nil, full)
		for range 10 {
			if d := l.Take(time.Now(), slow, nil, full); d.Allowed || d.Refused != Key || d.Quota.RetryIn != 0 {
				t.Fatalf("%+v", d)
			}
		}
		boottimetest.Pass(time.Second)
		if d := l.Peek(time.Now(), nil, nil, full); d.Quota.Remaining != tokens-1 {
			t.Fatalf("requests that the rate refused took of the quota: %d of %d left", d.Quota.Remaining, tokens)
		}
	}
	if s := l.Stats(); s.Refused[SourceQuota] != 4*5 {
		t.Errorf("%+v", s.Refused)
	}
}

// A quota is remembered until its period is over.
func TestAQuotaIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Options{})
		ends := time.Now().Add(24 * time.Hour)
		first := l.Quota("w", "first", 3, ends)
		l.Take(time.Now(), nil, nil, first)
		boottimetest.Pass(24 * time.Hour)
		if l.Quota("w", "first", 3, ends) != first {
			t.Fatal("a quota is forgotten before its period is over")
		}
		first.Prolong(time.Hour)
		boottimetest.Pass(time.Hour + time.Second)
		if l.Quota("w", "first", 3, ends) != first {
			t.Fatal("a quota is forgotten before its period is over by the clock")
		}
		boottimetest.Pass(time.Hour)
		if l.Quota("w", "first", 3, ends) == first {
			t.Error("a quota of a period that is over is kept")
		}
	})
}

// Whenever a node closes, what it has admitted of a quota counts once.
func TestCloseAmidACallToAQuota(t *testing.T) {
	for step := range 4 {
		synctest.Test(t, func(t *testing.T) {
			s := &way{virtual: newVirtual()}
			l := newLimiter(Options{}, s)
			boottimetest.Pass(3 * time.Second)
			quota := l.Quota("w", "day", 100, time.Now().Add(time.Hour))
			admitted := int64(0)
			take := func() {
				if l.Take(time.Now(), nil, nil, quota).Allowed {
					admitted++
				}
			}
			for range 20 {
				take()
			}
			var closing sync.WaitGroup
			var steps atomic.Int64
			other := l.Bucket("other", policy(t, 1, 1))
			before := func(key string) {
				if !strings.Contains(key, ":q:") {
					return
				}
				if steps.Add(1) == int64(step+1) {
					closing.Go(func() { closeLimiter(t, l) })
					for l.Peek(time.Now(), other, nil, nil).Source != SourceLocalFallback {
						runtime.Gosched()
					}
				}
			}
			s.passes.Store(&before)
			for range 20 {
				take()
			}
			closing.Wait()
			closeLimiter(t, l)
			if n := s.quotaLeft(100); steps.Load() <= int64(step) || n < 100-admitted || n > 80 {
				t.Errorf("%d are left, after %d were admitted before and after Close", n, admitted)
			}
		})
	}
}

// While Redis is away, a node admits its part of what was left, and debits it. When all
// is used up, Retry-After is the end of the period all the same; when only its part is, it
// is soon.
func TestAQuotaWhileRedisIsAway(t *testing.T) {
	for _, c := range []struct {
		mode   FailureMode
		nodes  int64
		most   int64
		usedUp bool
	}{{FailLocal, 1, 80, true}, {FailLocal, 4, 20, false}, {FailDeny, 1, 0, false}} {
		t.Run(fmt.Sprint(c.mode, " on ", c.nodes), func(t *testing.T) {
			inVirtualTime(t, Options{FailureMode: c.mode}, func(t *testing.T, l *Limiter, v *virtual) {
				v.count(c.nodes)
				boottimetest.Pass(3 * time.Second)
				ends := time.Now().Add(time.Hour)
				quota := l.Quota("w", "day", 100, ends)
				for range 20 {
					l.Take(time.Now(), nil, nil, quota)
				}
				boottimetest.Pass(30 * time.Second) // what was held has gone back
				v.mood.Store(int32(hung))
				boottimetest.Pass(2 * time.Second)
				admitted := int64(0)
				var d Decision
				for range 200 {
					if d = l.Take(time.Now(), nil, nil, quota); d.Allowed {
						admitted++
					}
				}
				retry := heartbeats // where others may have some of it left
				if c.usedUp {
					retry = time.Until(ends)
				}
				if admitted != c.most || d.Allowed || d.Refused != Quota || d.UsedUp() != c.usedUp ||
					(d.RetryAfter-retry).Abs() > time.Millisecond || (d.Quota.ResetIn-time.Until(ends)).Abs() > time.Millisecond {
					t.Fatalf("%d admitted, then %+v", admitted, d)
				}
				v.mood.Store(int32(well))
				boottimetest.Pass(5 * time.Second)
				if n := v.quotaLeft(100); n != 80-admitted || l.Stats().Owing != 0 {
					t.Errorf("%d left, %+v", n, l.Stats())
				}
				if d := l.Take(time.Now(), nil, nil, quota); d.Allowed == c.usedUp || d.UsedUp() != c.usedUp {
					t.Errorf("%+v", d)
				}
			})
		})
	}
}
