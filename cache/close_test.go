package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/page"
)

func TestCloseWaitsForFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, cache.Options{TTL: time.Hour, FillTimeout: fillTime})
		release, finished := make(chan struct{}), make(chan cache.Result, 1)
		go func() {
			r, err := ask(c, queryOf("q"), hangs(release, brings("page")))
			want{body: "page", source: cache.Origin}.check(t, r, err)
			finished <- r
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close(context.Background()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("closed before the flight had finished: %v", err)
		default:
		}
		if r, err := ask(c, queryOf("r"), brings("another")); !errors.Is(err, context.Canceled) {
			t.Fatalf("a flight began after Close: %+v, %v", r, err)
		}
		close(release)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		<-finished
		for range 3 {
			if r, err := ask(c, queryOf("q"), brings("another")); !errors.Is(err, context.Canceled) {
				t.Fatalf("%+v, %v", r, err)
			}
			closeCache(t, c)
		}
		c.Stats()
	})
}

func TestCloseCutsFlightsOffAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, cache.Options{TTL: time.Hour, FillTimeout: time.Hour})
		failed := make(chan error, 1)
		go func() {
			_, err := ask(c, queryOf("q"), origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
				<-ctx.Done()
				boottimetest.Pass(time.Second) // the sleep is noticed after a moment
				return page.Read{}, ctx.Err()
			}})
			failed <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != 4*time.Second {
			t.Fatalf("closed after %v, want the deadline's 3 s and the second that the fill needs to end", waited)
		}
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

func TestCloseWaitsForStores(t *testing.T) {
	_, client := startRedis(t)
	options := cache.Options{Redis: client, TTL: time.Hour}
	c := open(t, options)
	const pages = 50
	for i := range pages {
		forward(t, c, queryOf(fmt.Sprint(i)), brings("page"))
	}
	closeCache(t, c)
	if s := c.Stats(); s.RedisFailures != 0 || s.RedisDropped != 0 {
		t.Fatalf("%+v", s)
	}
	if n, err := client.DBSize(t.Context()).Result(); err != nil || n != pages {
		t.Fatalf("%d of %d pages are in Redis, %v", n, pages, err)
	}
}

// Misses may run while Close is called, and after it. (Hits may not: the server ends its
// requests before.)
func TestCloseBesideMisses(t *testing.T) {
	_, client := startRedis(t)
	for range 20 {
		before := goleak.IgnoreCurrent()
		c := openFor(t, cache.Options{Memory: 4 << 20, Redis: client, TTL: time.Hour, MaxStale: time.Hour})
		var all sync.WaitGroup
		running := make(chan struct{}, 8)
		for i := range cap(running) {
			all.Go(func() {
				for n := 0; ; n++ {
					body := fmt.Sprint((n + i) % 200)
					r, err := ask(c, queryOf(body), brings(body))
					if errors.Is(err, context.Canceled) {
						return
					}
					if err != nil || text(r.Entry) != body {
						t.Errorf("%+v instead of %s: %v", r, body, err)
					}
					if n == 10 {
						running <- struct{}{}
					}
				}
			})
		}
		for range cap(running) {
			<-running
		}
		var closers sync.WaitGroup
		for range 2 {
			closers.Go(func() { closeCache(t, c) })
		}
		closers.Wait()
		all.Wait()
		goleak.VerifyNone(t, before)
	}
}
