package cache

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/changefeed"
)

// Local is what a limit goes by: an answer that cost nobody but this node.
func TestLocal(t *testing.T) {
	virtual(t, func(t *testing.T, c *Cache) {
		key := keyOf("q")
		is := func(what string, want bool, r Result, err error) {
			t.Helper()
			if err != nil || r.Local != want {
				t.Errorf("%s: local %v, %v", what, r.Local, err)
			}
		}
		if r, err := c.Stored(key, changefeed.List{}); !errors.Is(err, ErrNotStored) || !r.Local {
			t.Errorf("nothing stored: %+v, %v", r, err)
		}
		release := make(chan struct{})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				r, err := c.Forward(key, changefeed.List{}, hangs(release, brings("page")))
				is("miss, alone or collapsed", false, r, err)
			})
		}
		synctest.Wait()
		close(release)
		both.Wait()

		r, ok := c.Hit(key, time.Now())
		is("hit", true, r, nil)
		if !ok {
			t.Fatal("no hit")
		}
		r, err := c.Forward(key, changefeed.List{}, brings("other"))
		is("brought by another in the meantime", true, r, err)
		r, err = c.Stored(key, changefeed.List{})
		is("stored", true, r, err)
		r, err = c.Bypass(key, changefeed.List{}, brings("other"))
		is("bypass, shared", true, r, err)
		time.Sleep(ttl / 2)
		r, err = c.Bypass(key, changefeed.List{}, brings("other"))
		is("bypass", false, r, err)

		time.Sleep(ttl)
		r, err = c.Forward(key, changefeed.List{}, fails(errOrigin))
		is("stands in for a query that failed", false, r, err)
		r, err = c.Forward(key, changefeed.List{}, fails(errOrigin))
		is("stands in, and none is tried", true, r, err)
		checkFills(t, c, 3, 1)
	})
}

func TestAPageFromRedisIsNotLocal(t *testing.T) {
	_, client := startRedis(t)
	options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
	c := open(t, options)
	if r, err := c.Stored(keyOf("q"), changefeed.List{}); !errors.Is(err, ErrNotStored) || r.Local {
		t.Errorf("asked Redis in vain: %+v, %v", r, err)
	}
	deposit(t, client, keyOf("q"), "page", 0, time.Hour)
	r, err := c.Stored(keyOf("q"), changefeed.List{})
	want{body: "page", source: Redis}.check(t, r, err)
	if r.Local {
		t.Error("a page from Redis is local")
	}
	if r, ok := c.Hit(keyOf("q"), time.Now()); !ok || !r.Local {
		t.Errorf("then from memory: %+v", r)
	}
	checkFills(t, c, 0, 0)
}
