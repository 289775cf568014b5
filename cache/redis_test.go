package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/page"
)

// encoded is a page in Redis that was read without changes to follow.
func encoded(q *page.Query, body string, life time.Duration, readAt time.Time) []byte {
	return cache.Encode(q, shows(body), "", life, readAt)
}

func checkRedis(t testing.TB, c *opened, calls, failures, corrupt uint64) {
	t.Helper()
	c.WaitStored()
	if s := c.Stats(); s.RedisCalls != calls || s.RedisFailures != failures || s.RedisCorrupt != corrupt {
		t.Fatalf("%d calls, %d failures, %d corrupt; want %d, %d, %d", s.RedisCalls, s.RedisFailures, s.RedisCorrupt, calls, failures, corrupt)
	}
}

// deposit writes a page into Redis as if a node had read it some time ago.
func deposit(t testing.TB, client *redis.Client, q *page.Query, body string, age, life time.Duration) {
	t.Helper()
	if err := client.Set(t.Context(), inRedis(q), encoded(q, body, life, time.Now().Add(-age)), life-age).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryThenRedisThenOrigin(t *testing.T) {
	_, client := startRedis(t)
	options := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
	first, second := open(t, options), open(t, options)
	q := queryOf("q")

	began := time.Now()
	r, err := ask(first, q, brings("page"))
	want{body: "page", source: cache.Origin}.check(t, r, err)
	checkRedis(t, first, 2, 0, 0) // read, stored
	checkFills(t, first, 1, 0)
	for range 3 {
		hit, ok := first.Hit(q, time.Now())
		if !ok {
			t.Fatal("not in memory")
		}
		want{body: "page"}.check(t, hit, nil)
	}
	checkRedis(t, first, 2, 0, 0)
	first.DropPages()
	r, err = ask(first, q, brings("another"))
	want{body: "page", source: cache.Redis}.check(t, r, err)
	checkRedis(t, first, 3, 0, 0)
	checkFills(t, first, 1, 0)

	if r, err := second.Stored(queryOf("r")); !errors.Is(err, cache.ErrNotStored) {
		t.Errorf("asked Redis in vain: %+v, %v", r, err)
	}
	r, err = second.Stored(q)
	want{body: "page", source: cache.Redis}.check(t, r, err)
	if least := time.Since(began); r.Age > least+time.Second {
		t.Fatalf("age %v, but the query began at most %v ago", r.Age, least)
	}
	if hit, ok := second.Hit(q, time.Now()); !ok || hit.Entry.ETag != r.Entry.ETag {
		t.Fatal("what came from Redis is not in memory")
	}
	checkRedis(t, second, 2, 0, 0)
	checkFills(t, second, 0, 0)
}

func TestStaleEntriesOfRedis(t *testing.T) {
	_, client := startRedis(t)
	openOne := func(t *testing.T) *opened {
		return open(t, cache.Options{Redis: client, TTL: time.Minute, MaxStale: time.Hour})
	}
	const life = time.Minute + time.Hour
	t.Run("stand in, from there on from memory", func(t *testing.T) {
		c, q := openOne(t), queryOf(t.Name())
		deposit(t, client, q, "old", 10*time.Minute, life)
		r, err := ask(c, q, fails(errOrigin))
		want{body: "old", hadStale: true, err: errOrigin}.check(t, r, err)
		if r.Age < 10*time.Minute || r.Age > 11*time.Minute {
			t.Fatalf("age %v", r.Age)
		}
		r, err = ask(c, q, brings("new")) // the pause holds for it, too
		want{body: "old", hadStale: true, err: errPaused}.check(t, r, err)
		checkFills(t, c, 1, 1)
	})
	t.Run("give way to the origin's", func(t *testing.T) {
		c, q := openOne(t), queryOf(t.Name())
		deposit(t, client, q, "old", 10*time.Minute, life)
		r, err := ask(c, q, brings("new"))
		want{body: "new", source: cache.Origin, hadStale: true}.check(t, r, err)
		r, err = ask(openOne(t), q, fails(errOrigin))
		if c.WaitStored(); err != nil || text(r.Entry) != "new" && r.Err == nil {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("replace older ones in memory, and no newer ones", func(t *testing.T) {
		m, q := boottimetest.NewMachine(), queryOf(t.Name())
		c := open(t, cache.Options{Redis: client, TTL: time.Minute, MaxStale: time.Hour, Clock: m.Clock})
		for i, age := range []time.Duration{20, 10, 30} {
			deposit(t, client, q, fmt.Sprint(int(age)), age*time.Minute, life)
			r, err := ask(c, q, fails(errOrigin))
			want{body: []string{"20", "10", "10"}[i], hadStale: true, err: errOrigin}.check(t, r, err)
			m.Sleep(fillPause)
		}
	})
	t.Run("are nothing once expired", func(t *testing.T) {
		c, q := openOne(t), queryOf(t.Name())
		deposit(t, client, q, "old", life, 2*life) // as a node with a longer life would keep it
		if r, err := ask(c, q, fails(errOrigin)); !errors.Is(err, errOrigin) {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// An entry that Redis keeps for longer than it may be served is not served.
func TestAnEntryIsInRedisAsLongAsItMayBeServed(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, cache.Options{Redis: client, TTL: time.Minute, MaxStale: time.Hour})
	forward(t, c, queryOf("q"), brings("page"))
	c.WaitStored()
	left, err := client.PTTL(t.Context(), inRedis(queryOf("q"))).Result()
	if err != nil || left > time.Minute+time.Hour || left < time.Hour {
		t.Fatalf("%v left, %v", left, err)
	}
	none := open(t, cache.Options{Redis: client}) // neither TTL nor MaxStale
	forward(t, none, queryOf("r"), brings("page"))
	none.WaitStored()
	if n, err := client.Exists(t.Context(), inRedis(queryOf("r"))).Result(); err != nil || n != 0 {
		t.Fatalf("a page that may not be served was stored: %d, %v", n, err)
	}
}

func TestAValueInRedisThatIsNoEntryIsAMissAndHeals(t *testing.T) {
	_, client := startRedis(t)
	q := queryOf("q")
	entry := encoded(q, strings.Repeat("x", 500), time.Hour, time.Now())
	set := func(value []byte) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			return client.Set(ctx, name, value, time.Hour).Err()
		}
	}
	for what, write := range map[string]func(context.Context, string) error{
		"nothing":   set(nil),
		"truncated": set(entry[:len(entry)-1]), // TestDecodeRefusesDamagedEntries has all other damages
		"a list":    func(ctx context.Context, name string) error { return client.LPush(ctx, name, "x").Err() },
	} {
		t.Run(what, func(t *testing.T) {
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := write(t.Context(), inRedis(q)); err != nil {
				t.Fatal(err)
			}
			c := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
			each := uint64(1)
			if what == "nothing" {
				each = 0 // Redis does not tell it from no value
			}
			// Many times, while the origin fails: none of it counts as a failure of Redis.
			for range 5 {
				if r, err := ask(c, q, fails(errOrigin)); !errors.Is(err, errOrigin) {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			checkRedis(t, c, 5, 0, 5*each)
			r, err := ask(c, q, brings("healed"))
			want{body: "healed", source: cache.Origin}.check(t, r, err)
			checkRedis(t, c, 7, 0, 6*each)
			another := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
			r, err = ask(another, q, fails(errOrigin))
			want{body: "healed", source: cache.Redis}.check(t, r, err)
		})
	}
	t.Run("a page without expiry", func(t *testing.T) {
		if err := client.Set(t.Context(), inRedis(q), entry, 0).Err(); err != nil {
			t.Fatal(err)
		}
		c := open(t, cache.Options{Redis: client, TTL: time.Minute, MaxStale: time.Minute})
		if r, err := ask(c, q, fails(errOrigin)); !errors.Is(err, errOrigin) {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// The node requests the remaining life and the value one after the other. (The writer's
// clock is an hour ahead, so wall clocks cannot help.)
func TestEntryReplacedWhileItIsRead(t *testing.T) {
	server, writer := startRedis(t)
	q := queryOf("q")
	const life, ahead = 2 * time.Hour, time.Hour
	write := func(body string, age time.Duration) {
		if err := writer.Set(context.Background(), inRedis(q), encoded(q, body, life, time.Now().Add(ahead-age)), life-age).Err(); err != nil {
			t.Error(err)
		}
	}
	write("old", 10*time.Minute)
	reader := redis.NewClient(&redis.Options{Addr: server.Addr(), DisableIdentity: true})
	t.Cleanup(func() { _ = reader.Close() })
	var once sync.Once
	reader.AddHook(hook{many: func(ctx context.Context, c []redis.Cmder, next redis.ProcessPipelineHook) error {
		if err := next(ctx, c[:1]); err != nil {
			return err
		}
		once.Do(func() { write("new", 0) })
		return next(ctx, c[1:])
	}})
	c := open(t, cache.Options{Redis: reader, TTL: time.Hour, MaxStale: time.Hour})
	r := forward(t, c, q, fails(errOrigin))
	if old := text(r.Entry) == "old"; old && r.Age < 10*time.Minute {
		t.Fatalf("an old page that looks %v old", r.Age)
	}
}
