package limiter

import (
	"runtime"
	"testing"
	"time"
)

// A second handle would be a second lease, and while Redis is away a second
// part of the bucket.
func TestOneHandleToABucket(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		m.mood.Store(int32(broken))
		p := policy(t, 0.001, 20)
		takes(t, l, l.Bucket("k", p), 20, SourceLocalFallback)
		for range 3 {
			runtime.GC() // whoever forgets the key and comes back finds what it owes
			if d := l.Take(l.Bucket("k", p), nil); d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		wider := policy(t, 0.001, 40)
		if b := l.Bucket("k", wider); b.Policy() != wider || b != l.Bucket("k", wider) {
			t.Fatalf("%+v", b.Policy())
		}
	})
}

func TestHandlesNobodyUsesAreForgotten(t *testing.T) {
	l := open(t, Options{})
	p := policy(t, 10, 20)
	for i := range 1_000 {
		l.Bucket(string(rune('a'+i)), p)
	}
	eventually(t, "they are gone", func() bool {
		runtime.GC()
		n := 0
		l.handles.Range(func(any, any) bool { n++; return true })
		return n < 10
	})
}

// What is shown is exact where little is asked for, and 50 ms old at most where much is.
func TestStamp(t *testing.T) {
	inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, m *moody) {
		quiet, busy, other := l.Bucket("quiet", policy(t, 50, 100)), l.Bucket("busy", policy(t, 1e6, 1e6)), l.Bucket("other", policy(t, 1e6, 1e6))
		for range 20 {
			l.Take(quiet, nil)
			time.Sleep(100 * time.Millisecond)
		}
		for range 5_000 {
			l.Take(busy, other)
			time.Sleep(20 * time.Microsecond)
		}
		if s := l.Stamp(time.Now(), quiet, nil); s != 0 {
			t.Fatalf("%x for ten requests a second", s)
		}
		if s := l.Stamp(time.Now(), busy, quiet); s != 0 {
			t.Fatalf("%x where one of two is quiet", s)
		}
		before := l.Stamp(time.Now(), busy, other)
		time.Sleep(time.Microsecond)
		if s := l.Stamp(time.Now(), busy, other); before == 0 || s != before {
			t.Fatalf("%x, and a microsecond later %x", before, s)
		}
		left := busy.Level().Remaining
		l.Take(busy, other)
		if now := busy.Level().Remaining; now != left-1 {
			t.Fatalf("%d left, and after one more %d", left, now)
		}
		time.Sleep(50 * time.Millisecond)
		if s := l.Stamp(time.Now(), busy, other); s == before {
			t.Fatal("the same after 50 ms")
		}
		before = l.Stamp(time.Now(), busy, nil)
		busy.SetPolicy(policy(t, 10, 20))
		time.Sleep(time.Millisecond)
		if s := l.Stamp(time.Now(), busy, nil); s == before {
			t.Fatal("the same after another limit")
		}
	})
}
