package limiter_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/world"
	. "listedge/limiter"
)

func TestDeciders(t *testing.T) { decide(t, suite) }

func suite(t *testing.T, l *Limiter, source Source) {
	made := 0
	bucket := func(p Policy) *Bucket {
		made++
		return l.Bucket(KeyBucket("suite", fmt.Sprint(made)), p)
	}
	slow := policy(t, 0.001, 10) // a token in 1,000 s
	run := func(name string, f func()) { t.Log(name); f() }

	run("exactly the burst, then a wait", func() {
		b := bucket(slow)
		for i := range int64(10) {
			d := take(l, b, nil)
			if !d.Allowed || d.Source != source || d.RetryAfter != 0 || d.Key.Remaining != 9-i || d.Key.ResetIn <= 0 {
				t.Fatalf("take %d: %+v", i, d)
			}
		}
		d := take(l, b, nil)
		if d.Allowed || d.Refused != Key || d.RetryAfter <= 990*time.Second || d.RetryAfter > 1000*time.Second ||
			d.Key != (Status{RetryIn: d.RetryAfter, ResetIn: d.RetryAfter}) {
			t.Fatalf("%+v", d)
		}
		boottimetest.Pass(d.RetryAfter)
		if d := take(l, b, nil); !d.Allowed {
			t.Fatalf("after Retry-After: %+v", d)
		}
		if d := take(l, b, nil); d.Allowed {
			t.Fatalf("and once more: %+v", d)
		}
	})
	run("time refills, up to the burst", func() {
		b := bucket(slow)
		takes(t, l, b, 10, source)
		boottimetest.Pass(3_000 * time.Second)
		takes(t, l, b, 3, source)
		boottimetest.Pass(20_000 * time.Second)
		takes(t, l, b, 10, source)
	})
	run("both buckets or neither", func() {
		key, workspace := bucket(slow), bucket(policy(t, 0.001, 3))
		for range 3 {
			if d := take(l, key, workspace); !d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		for range 5 {
			if d := take(l, key, workspace); d.Allowed || d.Refused != Workspace || d.Workspace.Remaining != 0 || d.Key.Remaining != 7 || d.Key.RetryIn != 0 {
				t.Fatalf("%+v", d)
			}
		}
		boottimetest.Pass(100 * time.Millisecond)
		takes(t, l, key, 7, source)
		if d := take(l, key, workspace); d.Allowed || d.Refused != Workspace && d.Refused != Key || d.RetryAfter < 900*time.Second {
			t.Fatalf("both empty: %+v", d)
		}
	})
	run("a look takes nothing", func() {
		b := bucket(slow)
		takes(t, l, b, 4, source)
		for range 20 {
			if n := left(l, b); n != 6 {
				t.Fatalf("%d left", n)
			}
		}
		takes(t, l, b, 6, source)
	})
	run("rate 0 and no bucket", func() {
		blocked := bucket(policy(t, 0, 5))
		if d := take(l, blocked, bucket(slow)); d.Allowed || d.Source != SourceBlocked || d.Refused != Key || d.RetryAfter != time.Hour {
			t.Fatalf("%+v", d)
		}
		if d := take(l, bucket(slow), blocked); d.Allowed || d.Source != SourceBlocked || d.Refused != Workspace {
			t.Fatalf("%+v", d)
		}
		if d := take(l, nil, nil); !d.Allowed || d.Source != SourceUnlimited {
			t.Fatalf("%+v", d)
		}
	})
	run("another policy", func() {
		p := slow
		p.Version = 1
		b := l.Bucket("changed", p)
		takes(t, l, b, 6, source)
		p.Burst, p.Version = 2, 2
		if again := l.Bucket("changed", p); again != b || b.Policy() != p {
			t.Fatal("another bucket")
		}
		takes(t, l, b, 2, source)
		if d := take(l, b, nil); d.Allowed {
			t.Fatalf("above the new burst: %+v", d)
		}
		p.Rate, p.Version = 0, 3
		l.Bucket("changed", p)
		if d := take(l, b, nil); d.Source != SourceBlocked {
			t.Fatalf("%+v", d)
		}
	})
	run("a limit above 16, spent by many at once", func() {
		b := bucket(policy(t, 0.001, 100))
		var allowed atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for range 10 {
					if take(l, b, nil).Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n := allowed.Load(); n != 100 {
			t.Fatalf("%d of 100 admitted", n)
		}
	})
}

// A bucket is remembered until it is full again, whether anybody keeps its handle or not.
// Then it takes no memory.
func TestABucketIsRememberedUntilItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Options{})
		p := policy(t, 1, 3)
		takes(t, l, l.Bucket("first", p), 3, SourceMemory)
		for i := range 3_000 {
			l.Bucket(fmt.Sprint(i), p)
			if i%1_000 == 0 {
				runtime.GC()
			}
		}
		if d := take(l, l.Bucket("first", p), nil); d.Allowed {
			t.Fatalf("a bucket that is empty is forgotten: %+v", d)
		}
		if n := l.Buckets(); n > 2_049 {
			t.Errorf("%d buckets are kept, of which one is in use", n)
		}
		first := weak.Make(l.Bucket("first", p))
		boottimetest.Pass(time.Hour)
		runtime.GC()
		if first.Value() != nil {
			t.Error("a full bucket that nobody uses is kept")
		}
	})
}

// Handles are made for keys that exist; those that nobody takes from cost Redis
// nothing.
func TestMadeUpKeysCostNothing(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, v *virtual) {
		p := policy(t, 50, 100)
		for i := range 100_000 {
			l.Bucket("listedge:{made up}:b:"+fmt.Sprint(i), p)
		}
		if s := l.Stats(); v.calls.Load() != 0 || s.Owing != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

// Many buckets are given back one pipeline after the other, as Redis can do them.
func TestCloseGivesManyLeasesBack(t *testing.T) {
	const buckets = 3_000
	for name, c := range map[string]struct {
		within time.Duration // of Close
		all    bool
	}{"in time": {time.Minute, true}, "in part, those of the most tokens first": {200 * time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVirtual()
				l := newLimiter(Options{}, v)
				boottimetest.Pass(3 * time.Second)
				p := policy(t, 0.001, 2_000)
				all := make([]*Bucket, buckets)
				for i := range all {
					all[i] = l.Bucket(fmt.Sprint(i), p)
					requests := 20
					if i%10 == 0 {
						requests = 200
					}
					for range requests {
						take(l, all[i], nil)
					}
				}
				if n := l.Stats().LeasedHeld; n < buckets {
					t.Fatalf("%d are held", n)
				}
				v.perCall = 200 * time.Microsecond // more for all than a call may take
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				err := l.Close(ctx)
				boottimetest.Pass(time.Second)
				v.mu.Lock()
				defer v.mu.Unlock()
				var kept [2]int // of many tokens, of fewer
				for i, b := range all {
					stored, _ := v.do("get", b.Key()).(string)
					if is, _ := world.UnpackBucket([]byte(stored)); is.HeldNow > 0 {
						kept[min(1, i%10)]++
					}
				}
				if c.all && (err != nil || kept != [2]int{}) || !c.all && (err == nil || kept[0] > 0 || kept[1] == 0) {
					t.Errorf("%v; not given back: %d of many tokens, %d of fewer", err, kept[0], kept[1])
				}
			})
		})
	}
}

// A heartbeat that arrives after Close opens no way to Redis.
func TestCloseIsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		l := newLimiter(Options{}, v)
		boottimetest.Pass(3 * time.Second)
		b := smallKey(t, l)
		takes(t, l, b, 1, SourceRedis)
		v.mood.Store(int32(frozen))
		take(l, b, nil)
		boottimetest.Pass(2 * heartbeats)
		if s := l.Stats(); !s.BreakerOpen {
			t.Fatalf("%+v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		closed := make(chan error)
		go func() { closed <- l.Close(ctx) }()
		boottimetest.Pass(2 * time.Millisecond)
		v.mood.Store(int32(well)) // the heartbeat in flight is answered
		<-closed
		if s := l.Stats(); s.BreakerOpen {
			t.Fatalf("%+v", s)
		}
		calls := v.calls.Load()
		if d := take(l, b, nil); d.Source != SourceLocalFallback || v.calls.Load() != calls {
			t.Errorf("%+v, %d calls", d, v.calls.Load()-calls)
		}
	})
}
