package cache_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// All tests of this file have one node without Redis, in virtual time: a fill that takes
// a second takes exactly one.

var errOrigin = errors.New("origin away")

const (
	ttl      = 2 * time.Second
	maxStale = 5 * time.Minute
	fillTime = 5 * time.Second
)

func virtual(t *testing.T, test func(t *testing.T, c *opened)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, open(t, cache.Options{TTL: ttl, MaxStale: maxStale, FillTimeout: fillTime}))
	})
}

// hangs is a fill that ignores its context until it is released.
func hangs(release <-chan struct{}, then origin) origin {
	return origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
		<-release
		return then.Primary(ctx, run)
	}}
}

func checkFills(t testing.TB, c *opened, fills, failed uint64) {
	t.Helper()
	if s := c.Stats(); s.Fills != fills || s.FillErrors != failed {
		t.Fatalf("%d fills, %d failed; want %d and %d", s.Fills, s.FillErrors, fills, failed)
	}
}

func TestAnEntryIsServedFromMemoryWhileItIsFresh(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		q := queryOf("q")
		if _, ok := c.Hit(q, time.Now()); ok {
			t.Fatal("a hit in an empty cache")
		}
		slow := origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
			boottimetest.Pass(300 * time.Millisecond)
			return brings("one").Primary(ctx, "")
		}}
		r, err := ask(c, q, slow)
		want{body: "one", source: cache.Origin}.check(t, r, err)
		if r.Age != 300*time.Millisecond {
			t.Fatalf("age %v, but the query began 300 ms ago", r.Age)
		}
		boottimetest.Pass(ttl - 300*time.Millisecond - 1)
		r, ok := c.Hit(q, time.Now())
		if want(want{body: "one"}).check(t, r, nil); !ok || r.Age != ttl-1 {
			t.Fatalf("%v, %v old", ok, r.Age)
		}
		r, err = ask(c, q, brings("two")) // as after a Hit that found nothing
		want{body: "one"}.check(t, r, err)
		checkFills(t, c, 1, 0)

		boottimetest.Pass(time.Nanosecond)
		if _, ok := c.Hit(q, time.Now()); ok {
			t.Fatal("a hit at the age of ttl")
		}
		r, err = ask(c, q, brings("two"))
		want{body: "two", source: cache.Origin, hadStale: true}.check(t, r, err)
		if r, ok := c.Hit(q, time.Now().Add(-time.Millisecond)); !ok || r.Age != 0 {
			t.Fatalf("%v: %v old, seen by a request that began before its query", ok, r.Age)
		}
		boottimetest.Pass(ttl + maxStale)
		r, err = ask(c, q, brings("three"))
		want{body: "three", source: cache.Origin}.check(t, r, err) // an expired entry is a miss
		checkFills(t, c, 3, 0)
	})
}

func TestForwardsOfOneKeyAreCollapsed(t *testing.T) {
	const crowd = 1000
	for _, fill := range []origin{brings("page"), fails(errOrigin)} {
		virtual(t, func(t *testing.T, c *opened) {
			release := make(chan struct{})
			var mu sync.Mutex
			var collapsed, failed int
			var all sync.WaitGroup
			for range crowd {
				all.Go(func() {
					r, err := ask(c, queryOf("q"), hangs(release, fill))
					mu.Lock()
					defer mu.Unlock()
					if r.Collapsed {
						collapsed++
					}
					if errors.Is(err, errOrigin) {
						failed++
					} else if err != nil || text(r.Entry) != "page" || r.Source != cache.Origin {
						t.Errorf("%+v, %v", r, err)
					}
				})
			}
			synctest.Wait() // all of them wait for the flight
			close(release)
			all.Wait()
			if s := c.Stats(); s.Fills != 1 {
				t.Fatalf("%d fills", s.Fills)
			}
			if failed == 0 && collapsed != crowd-1 || failed != 0 && failed != crowd {
				t.Fatalf("%d of %d collapsed, %d failed", collapsed, crowd, failed)
			}
		})
	}
}

func TestWaitIsBounded(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		q, release := queryOf("q"), make(chan struct{})
		for range 2 { // the second joins the first's flight, and waits as long
			began := time.Now()
			_, err := ask(c, q, hangs(release, brings("late")))
			if waited := time.Since(began); !errors.Is(err, cache.ErrFillTimeout) || waited != fillTime+redisBudget {
				t.Fatalf("%v after %v", err, waited)
			}
		}
		checkFills(t, c, 1, 0)
		close(release)
		synctest.Wait()
		// The flight ended after its requests gave up. Its page is as old as its beginning, so stale.
		r, err := ask(c, q, fails(errOrigin))
		want{body: "late", hadStale: true, err: errOrigin}.check(t, r, err)
		if r.Age != 2*(fillTime+redisBudget) {
			t.Fatalf("age %v", r.Age)
		}
	})
}

func TestAStaleEntryIsServedWhenTheFillHangs(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		q, release := queryOf("q"), make(chan struct{})
		forward(t, c, q, brings("old"))
		boottimetest.Pass(10 * time.Second)
		began := time.Now()
		r, err := ask(c, q, hangs(release, brings("new")))
		want{body: "old", hadStale: true, err: cache.ErrFillTimeout}.check(t, r, err)
		if waited := time.Since(began); waited != staleWait || r.Age != 10*time.Second+staleWait {
			t.Fatalf("after %v, %v old", waited, r.Age)
		}
		again := time.Now()
		r, err = ask(c, q, fails(errOrigin))
		want{body: "old", hadStale: true, err: errPaused}.check(t, r, err)
		if waited := time.Since(again); waited != 0 {
			t.Fatalf("the next request waited too: %v", waited)
		}
		close(release)
		synctest.Wait()
		hit, ok := c.Hit(q, time.Now())
		if !ok {
			t.Fatal("the fill outlived its request, and its page is not there")
		}
		want{body: "new"}.check(t, hit, nil)
		if hit.Age != staleWait {
			t.Fatalf("age %v, but the query began %v ago", hit.Age, staleWait)
		}
	})
}

func TestAStaleEntryIsServedWhenTheOriginFails(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		q, read := queryOf("q"), time.Now()
		forward(t, c, q, brings("old"))
		for _, age := range []time.Duration{ttl, ttl + fillPause, ttl + maxStale/2, ttl + maxStale - 1} {
			boottimetest.Pass(age - time.Since(read))
			r, err := ask(c, q, fails(errOrigin))
			want{body: "old", hadStale: true, err: errOrigin}.check(t, r, err)
			if r.Age != age {
				t.Fatalf("%v old at %v", r.Age, age)
			}
		}
		boottimetest.Pass(time.Nanosecond)
		if r, err := ask(c, q, fails(errOrigin)); !errors.Is(err, errOrigin) {
			t.Fatalf("served at the age of %v: %v", r.Age, err)
		}
	})
}

// A stale entry may also expire while its request waits for the fill.
func TestAStaleEntryExpiresDuringTheWait(t *testing.T) {
	for what, c := range map[string]struct {
		left  time.Duration // at the beginning of the wait
		fails time.Duration // after this time
		want  time.Duration // how long the wait is
	}{
		"before patience ends":           {left: staleWait / 2, fails: time.Hour, want: fillTime},
		"the fill fails just before":     {left: staleWait / 2, fails: staleWait/2 - 1, want: staleWait/2 - 1},
		"the fill fails just then":       {left: staleWait / 2, fails: staleWait / 2, want: staleWait / 2},
		"patience ends just before":      {left: staleWait + 1, fails: time.Hour, want: staleWait},
		"patience would end just then":   {left: staleWait, fails: time.Hour, want: fillTime},
		"the fill fails after that time": {left: staleWait, fails: staleWait + 1, want: staleWait + 1},
	} {
		t.Run(what, func(t *testing.T) {
			virtual(t, func(t *testing.T, node *opened) {
				q := queryOf("q")
				forward(t, node, q, brings("old"))
				boottimetest.Pass(ttl + maxStale - c.left)
				began := time.Now()
				r, err := ask(node, q, origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
					select {
					case <-time.After(c.fails):
						return page.Read{}, errOrigin
					case <-ctx.Done():
						return page.Read{}, ctx.Err()
					}
				}})
				if waited := time.Since(began); waited != c.want {
					t.Fatalf("answered after %v, want %v: %+v, %v", waited, c.want, r, err)
				}
				if served := err == nil; served != (c.want < c.left) {
					t.Fatalf("%v after the page's end: %+v, %v", c.want-c.left, r, err)
				}
				if err == nil && (r.Err == nil || r.Age >= ttl+maxStale) {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}

func TestNoFillBeginsForAWhileAfterAFailure(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		q := queryOf("q")
		forward(t, c, q, brings("old"))
		boottimetest.Pass(10 * time.Second)
		r, err := ask(c, q, fails(errOrigin))
		want{body: "old", hadStale: true, err: errOrigin}.check(t, r, err)
		for range 100 {
			r, err := ask(c, q, brings("new"))
			want{body: "old", hadStale: true, err: errPaused}.check(t, r, err)
			boottimetest.Pass(fillPause/100 - 1)
		}
		checkFills(t, c, 2, 1)
		boottimetest.Pass(100 * time.Nanosecond)
		r, err = ask(c, q, fails(errOrigin))
		want{body: "old", hadStale: true, err: errOrigin}.check(t, r, err)
		boottimetest.Pass(fillPause)
		r, err = ask(c, q, brings("new"))
		want{body: "new", source: cache.Origin, hadStale: true}.check(t, r, err)
		checkFills(t, c, 4, 2)
		// Only a failure begins a pause. A page that becomes stale begins none.
		boottimetest.Pass(ttl)
		r, err = ask(c, q, brings("newer"))
		want{body: "newer", source: cache.Origin, hadStale: true}.check(t, r, err)
		// Without an entry to serve meanwhile there is no pause either.
		for range 3 {
			if _, err := ask(c, queryOf("other"), fails(errOrigin)); !errors.Is(err, errOrigin) {
				t.Fatal(err)
			}
		}
		checkFills(t, c, 8, 5)
	})
}

func TestAPanicInAFillIsAnErrorForAllRequests(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		release := make(chan struct{})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				_, err := ask(c, queryOf("q"), hangs(release, origin{Primary: func(context.Context, string) (page.Read, error) {
					panic("nobody expects it")
				}}))
				if err == nil || !strings.Contains(err.Error(), "nobody expects it") || !strings.Contains(err.Error(), "cache_test.go") {
					t.Errorf("%v", err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		checkFills(t, c, 1, 1)
		r, err := ask(c, queryOf("q"), brings("page"))
		want{body: "page", source: cache.Origin}.check(t, r, err)
	})
}

// The cache keeps no reference to the caller's query, which the next request overwrites.
func TestAQueryIsNotKept(t *testing.T) {
	virtual(t, func(t *testing.T, c *opened) {
		text := []byte("page")
		of := func(search string) *page.Query {
			return &page.Query{List: listtest.Items, Search: search, After: list.Position(search), Limit: 3}
		}
		scratch, release := of(page.TextOf(text)), make(chan struct{})
		if _, err := ask(c, scratch, hangs(release, brings("page"))); !errors.Is(err, cache.ErrFillTimeout) {
			t.Fatal(err)
		}
		copy(text, "not!")
		close(release) // the page is stored only now, long after the request gave up
		synctest.Wait()
		copy(text, "oops")
		r, err := ask(c, of("page"), fails(errOrigin))
		want{body: "page", hadStale: true, err: errOrigin}.check(t, r, err)
		for _, other := range []string{"not!", "oops"} {
			if r, err := ask(c, of(other), fails(errOrigin)); !errors.Is(err, errOrigin) {
				t.Fatalf("%s: %+v, %v", other, r, err)
			}
		}
	})
}
