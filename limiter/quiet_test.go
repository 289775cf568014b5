package limiter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A dispatcher that has nothing to do sleeps, and a lease wakes it: else what
// is leased and not spent would be held for good.
func TestADispatcherThatSleepsIsWokenByALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		defer func() { _ = l.Close(context.Background()) }()
		p, err := NewPolicy(1000, 1000)
		if err != nil {
			t.Fatal(err)
		}
		b := l.Bucket(KeyBucket("w", "k"), p)
		for range 3 {
			time.Sleep(time.Minute)
			if !l.router.quiet() {
				t.Fatal("an idle dispatcher does not sleep")
			}
			for range 500 {
				if d := l.Take(b, nil); !d.Allowed {
					t.Fatalf("%+v", d)
				}
				time.Sleep(2 * time.Millisecond)
			}
			if len(l.router.watched()) != 1 || l.router.quiet() {
				t.Fatal("nothing is leased, or the lease is not looked at")
			}
		}
		time.Sleep(time.Minute)
		if n := len(l.router.watched()); n != 0 || b.lease.holds(l.now()) != 0 {
			t.Errorf("%d buckets are held a minute later, %d tokens", n, b.lease.holds(l.now()))
		}
	})
}
