package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"listedge/internal/changefeed"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// stored waits until all stores to Redis have ended, by taking all their places.
func stored(t testing.TB, c *Cache) {
	t.Helper()
	for range cap(c.async) {
		select {
		case c.async <- struct{}{}:
		case <-time.After(2 * patient):
			t.Fatal("stores do not end")
		}
	}
	for range cap(c.async) {
		<-c.async
	}
}

func checkRedis(t testing.TB, c *Cache, calls, failures, corrupt uint64) {
	t.Helper()
	stored(t, c)
	if s := c.Stats(); s.RedisCalls != calls || s.RedisFailures != failures || s.RedisCorrupt != corrupt {
		t.Fatalf("%d calls, %d failures, %d corrupt; want %d, %d, %d", s.RedisCalls, s.RedisFailures, s.RedisCorrupt, calls, failures, corrupt)
	}
}

// deposit writes a page into Redis as if a node had read it some time ago.
func deposit(t testing.TB, client *redis.Client, key []byte, body string, age, life time.Duration) {
	t.Helper()
	e := NewEntry([]byte(body), "next of "+body)
	if err := client.Set(t.Context(), inRedis(key), e.encode(key, life, time.Now().Add(-age)), life-age).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryThenRedisThenOrigin(t *testing.T) {
	_, client := startRedis(t)
	options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
	first, second := open(t, options), open(t, options)
	key := keyOf("q")

	began := time.Now()
	r, err := first.Forward(key, changefeed.List{}, brings("page"))
	want{body: "page", source: Origin}.check(t, r, err)
	checkRedis(t, first, 2, 0, 0) // read, stored
	checkFills(t, first, 1, 0)
	for range 3 {
		hit, ok := first.Hit(key, time.Now())
		if !ok {
			t.Fatal("not in memory")
		}
		want{body: "page"}.check(t, hit, nil)
	}
	checkRedis(t, first, 2, 0, 0)
	forget(first)
	r, err = first.Forward(key, changefeed.List{}, brings("another"))
	want{body: "page", source: Redis}.check(t, r, err)
	checkRedis(t, first, 3, 0, 0)
	checkFills(t, first, 1, 0)

	r, err = second.Forward(key, changefeed.List{}, brings("another"))
	want{body: "page", source: Redis}.check(t, r, err)
	if least := time.Since(began); r.Age > least+time.Second {
		t.Fatalf("age %v, but the query began at most %v ago", r.Age, least)
	}
	if hit, ok := second.Hit(key, time.Now()); !ok || hit.Entry.ETag != r.Entry.ETag {
		t.Fatal("what came from Redis is not in memory")
	}
	checkRedis(t, second, 1, 0, 0)
	checkFills(t, second, 0, 0)
}

// The age of a page counts from the query that read it, on every node and in both tiers.
func TestAgeCountsFromTheFirstNodesQuery(t *testing.T) {
	_, client := startRedis(t)
	for round := range 20 {
		options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
		first, second := open(t, options), open(t, options)
		key := keyOf(fmt.Sprint(round))
		var began time.Time
		r := forward(t, first, key, Fill{Primary: func(context.Context, string) (FillResult, error) {
			began = time.Now() // the proof is from before
			return FillResult{Body: []byte("page"), Next: ""}, nil
		}})
		stored(t, first)
		for _, c := range []*Cache{first, second} {
			before := time.Now()
			r = forward(t, c, key, fails(errOrigin))
			if old := elapsed(began, before); r.Age < old {
				t.Fatalf("age %v, but it is %v old", r.Age, old)
			}
			now := time.Now()
			if hit, ok := c.Hit(key, now); !ok || hit.Age < elapsed(began, now) {
				t.Fatalf("%v: age %v, but it is %v old", ok, hit.Age, elapsed(began, now))
			}
			closeCache(t, c) // for the connections that it keeps
		}
	}
}

// elapsed is the time between two moments by the clock that has advanced less. The age of
// an entry in Redis counts by the wall clock, which may be set back meanwhile.
func elapsed(from, to time.Time) time.Duration {
	return min(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

func TestStaleEntriesOfRedis(t *testing.T) {
	_, client := startRedis(t)
	open := func(t *testing.T) *Cache {
		return open(t, Options{Redis: client, TTL: time.Minute, MaxStale: time.Hour})
	}
	const life = time.Minute + time.Hour
	t.Run("stand in, from there on from memory", func(t *testing.T) {
		c, key := open(t), keyOf(t.Name())
		deposit(t, client, key, "old", 10*time.Minute, life)
		r, err := c.Forward(key, changefeed.List{}, fails(errOrigin))
		want{body: "old", source: Redis, hadStale: true, err: errOrigin}.check(t, r, err)
		if r.Age < 10*time.Minute || r.Age > 11*time.Minute {
			t.Fatalf("age %v", r.Age)
		}
		r, err = c.Forward(key, changefeed.List{}, brings("new")) // the pause holds for it, too
		want{body: "old", hadStale: true, err: errPaused}.check(t, r, err)
		checkFills(t, c, 1, 1)
	})
	t.Run("give way to the origin's", func(t *testing.T) {
		c, key := open(t), keyOf(t.Name())
		deposit(t, client, key, "old", 10*time.Minute, life)
		r, err := c.Forward(key, changefeed.List{}, brings("new"))
		want{body: "new", source: Origin, hadStale: true}.check(t, r, err)
		r, err = open(t).Forward(key, changefeed.List{}, fails(errOrigin))
		if stored(t, c); err != nil || string(r.Entry.Body) != "new" && r.Err == nil {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("replace older ones in memory", func(t *testing.T) {
		c, key := open(t), keyOf(t.Name())
		putAged(c, key, "older", 20*time.Minute)
		deposit(t, client, key, "old", 10*time.Minute, life)
		r, err := c.Forward(key, changefeed.List{}, fails(errOrigin))
		want{body: "old", source: Redis, hadStale: true, err: errOrigin}.check(t, r, err)
		if kept := c.memory.get(key).entry.Load(); string(kept.Body) != "old" {
			t.Fatalf("%s is kept", kept.Body)
		}
	})
	t.Run("do not replace newer ones in memory", func(t *testing.T) {
		c, key := open(t), keyOf(t.Name())
		putAged(c, key, "old", 10*time.Minute)
		deposit(t, client, key, "older", 20*time.Minute, life)
		r, err := c.Forward(key, changefeed.List{}, fails(errOrigin))
		want{body: "old", hadStale: true, err: errOrigin}.check(t, r, err)
	})
	t.Run("are nothing once expired", func(t *testing.T) {
		c, key := open(t), keyOf(t.Name())
		deposit(t, client, key, "old", life, 2*life) // as a node with a longer life would keep it
		if r, err := c.Forward(key, changefeed.List{}, fails(errOrigin)); !errors.Is(err, errOrigin) {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// An entry that Redis keeps for longer than it may be served is not served.
func TestAnEntryIsInRedisAsLongAsItMayBeServed(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Minute, MaxStale: time.Hour})
	forward(t, c, keyOf("q"), brings("page"))
	stored(t, c)
	left, err := client.PTTL(t.Context(), inRedis(keyOf("q"))).Result()
	if err != nil || left > time.Minute+time.Hour || left < time.Hour {
		t.Fatalf("%v left, %v", left, err)
	}
	none := open(t, Options{Redis: client}) // neither TTL nor MaxStale
	forward(t, none, keyOf("r"), brings("page"))
	stored(t, none)
	if n, err := client.Exists(t.Context(), inRedis(keyOf("r"))).Result(); err != nil || n != 0 {
		t.Fatalf("a page that may not be served was stored: %d, %v", n, err)
	}
}

func TestAValueInRedisThatIsNoEntryIsAMissAndHeals(t *testing.T) {
	_, client := startRedis(t)
	key := keyOf("q")
	entry := NewEntry(rows(500), "").encode(key, time.Hour, time.Now())
	flipped, version := bytes.Clone(entry), bytes.Clone(entry)
	flipped[len(flipped)/2] ^= 1
	version[3]++
	set := func(value []byte) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			return client.Set(ctx, name, value, time.Hour).Err()
		}
	}
	for what, write := range map[string]func(context.Context, string) error{
		"text":            set([]byte("hello")),
		"nothing":         set(nil),
		"truncated":       set(entry[:len(entry)-1]),
		"flipped":         set(flipped),
		"another version": set(version),
		"another key":     set(NewEntry([]byte("other"), "").encode(keyOf("other"), time.Hour, time.Now())),
		"a list":          func(ctx context.Context, name string) error { return client.LPush(ctx, name, "x").Err() },
		"a hash":          func(ctx context.Context, name string) error { return client.HSet(ctx, name, "x", "y").Err() },
	} {
		t.Run(what, func(t *testing.T) {
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := write(t.Context(), inRedis(key)); err != nil {
				t.Fatal(err)
			}
			c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
			each := uint64(1)
			if what == "nothing" {
				each = 0 // Redis does not tell it from no value
			}
			// Many times, while the origin fails: none of it counts as a failure of Redis.
			for range 5 {
				if r, err := c.Forward(key, changefeed.List{}, fails(errOrigin)); !errors.Is(err, errOrigin) {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			checkRedis(t, c, 5, 0, 5*each)
			r, err := c.Forward(key, changefeed.List{}, brings("healed"))
			want{body: "healed", source: Origin}.check(t, r, err)
			checkRedis(t, c, 7, 0, 6*each)
			another := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
			r, err = another.Forward(key, changefeed.List{}, fails(errOrigin))
			want{body: "healed", source: Redis}.check(t, r, err)
		})
	}
	t.Run("a page without expiry", func(t *testing.T) {
		if err := client.Set(t.Context(), inRedis(key), entry, 0).Err(); err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{Redis: client, TTL: time.Minute, MaxStale: time.Minute})
		if r, err := c.Forward(key, changefeed.List{}, fails(errOrigin)); !errors.Is(err, errOrigin) {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// between runs f after the first command of every pipeline has been answered.
type between struct{ f func() }

func (between) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (between) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (b between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if err := next(ctx, commands[:1]); err != nil {
			return err
		}
		b.f()
		return next(ctx, commands[1:])
	}
}

// The node requests the remaining life and the value one after the other. (The writer's
// clock is an hour ahead, so wall clocks cannot help.)
func TestEntryReplacedWhileItIsRead(t *testing.T) {
	server, writer := startRedis(t)
	key := keyOf("q")
	const life, ahead = 2 * time.Hour, time.Hour
	write := func(body string, age time.Duration) {
		e := NewEntry([]byte(body), "next of "+body)
		if err := writer.Set(context.Background(), inRedis(key), e.encode(key, life, time.Now().Add(ahead-age)), life-age).Err(); err != nil {
			t.Error(err)
		}
	}
	write("old", 10*time.Minute)
	reader := redis.NewClient(&redis.Options{Addr: server.Addr(), DisableIdentity: true})
	t.Cleanup(func() { _ = reader.Close() })
	var once sync.Once
	reader.AddHook(between{func() { once.Do(func() { write("new", 0) }) }})
	c := open(t, Options{Redis: reader, TTL: time.Hour, MaxStale: time.Hour})
	r := forward(t, c, key, fails(errOrigin))
	if old := string(r.Entry.Body) == "old"; old && r.Age < 10*time.Minute {
		t.Fatalf("an old page that looks %v old", r.Age)
	}
}

// If changes are followed, the age of a valid entry comes from the node's proof. Otherwise
// Redis is asked for its remaining life. (The writer's clock is an hour ahead, so wall
// clocks cannot help.)
func TestEntriesOfRedisAreValidatedByChanges(t *testing.T) {
	_, client := startRedis(t)
	b, c := followed(t, Options{Redis: client})
	const life, age = 2 * time.Minute, 30 * time.Second // TTL and MaxStale
	write := func(key []byte) {
		b.mu.Lock()
		defer b.mu.Unlock()
		p := NewEntry([]byte("page"), "next of page")
		p.Epoch, p.Position = b.epoch, b.at
		var err error
		if p.ReadPoint.Snapshot, err = changefeed.ParseSnapshot(fmt.Sprintf("%d:%d:", b.xid, b.xid)); err != nil {
			t.Fatal(err)
		}
		if err := client.Set(t.Context(), inRedis(key), p.encode(key, life, time.Now().Add(time.Hour-age)), life-age).Err(); err != nil {
			t.Fatal(err)
		}
	}
	write(keyOf("valid"))
	r, err := c.Forward(keyOf("valid"), listA, fails(errPanic))
	want{body: "page", source: Redis}.check(t, r, err)
	if r.Entry.Proof > c.tracker.Stats().Proof {
		t.Error("it looks younger than what is proven")
	}
	checkRedis(t, c, 1, 0, 0)

	write(keyOf("stale"))
	b.change(listA)
	eventually(t, "the change", func() bool { _, ok := c.Hit(keyOf("valid"), time.Now()); return !ok })
	r, err = c.Forward(keyOf("stale"), listA, fails(errOrigin))
	want{body: "page", source: Redis, hadStale: true, err: errOrigin}.check(t, r, err)
	if r.Age < age {
		t.Errorf("it looks %v old", r.Age)
	}
	checkRedis(t, c, 6, 0, 0) // looked up, age read, claimed, looked up again, released
}

// An entry that was read without proof is not fresh later. It must not keep the entry that
// another node has stored in Redis out of memory.
func TestAnEntryOfRedisReplacesOneThatWasNotAdmitted(t *testing.T) {
	_, client := startRedis(t)
	b := startFollower(t)
	o := Options{Redis: client, TTL: time.Minute, MaxStale: time.Minute, Bound: testBound}
	c, _ := b.open(o)
	other, _ := b.open(o)
	eventually(t, "followed", func() bool { return c.Mode() == ModeFollowed && other.Mode() == ModeFollowed })
	eventually(t, "the other's hit", func() bool { _, hit := request(t, other, b.brings("body")); return hit })
	b.beSilent(true)
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	request(t, c, b.brings("body"))
	b.beSilent(false)
	eventually(t, "followed again", mode(c, ModeFollowed))
	eventually(t, "a hit from memory", func() bool { _, hit := request(t, c, fails(errPanic)); return hit })
}

// outage is a way in which Redis fails.
type outage struct {
	begin, end func() error
	silent     bool // it takes requests and does not answer
}

func TestRedisAway(t *testing.T) {
	server, client := startRedis(t)
	ctx := t.Context()
	for what, o := range map[string]outage{
		"killed": {begin: server.Kill, end: func() error { return server.Restart(ctx) }},
		"frozen": {begin: server.Freeze, end: server.Thaw, silent: true},
		"full": {
			begin: func() error { return client.ConfigSet(ctx, "maxmemory", "1").Err() },
			end:   func() error { return client.ConfigSet(ctx, "maxmemory", "0").Err() },
		},
	} {
		t.Run(what, func(t *testing.T) {
			if err := client.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			options := Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
			c := open(t, options)
			forward(t, c, keyOf("before"), brings("before"))
			stored(t, c)
			before := c.Stats()
			c.redis.budget, c.redis.storeBudget = redisBudget, redisStoreBudget
			if err := o.begin(); err != nil {
				t.Fatal(err)
			}
			thawed := false
			defer func() { // for the next outage, whatever happens
				if !thawed {
					_ = o.end()
				}
			}()

			const requests = 300
			began := time.Now()
			for i := range requests {
				body := fmt.Sprint(i)
				r, err := c.Forward(keyOf(body), changefeed.List{}, brings(body))
				want{body: body, source: Origin}.check(t, r, err)
				hit, ok := c.Hit(keyOf("before"), time.Now())
				if !ok {
					t.Fatal("a page in memory is not served")
				}
				want{body: "before"}.check(t, hit, nil)
			}
			spent := time.Since(began)
			stored(t, c)
			if what != "full" { // which still reads, and so now and then closes the breaker
				after := c.Stats()
				// 3 failures in a row open the breaker, and these requests come one by one, with two calls
				// each; later one call each quarter of a second finds out whether it may close.
				if calls, most := after.RedisCalls-before.RedisCalls, uint64(2*3+2+spent/(250*time.Millisecond)); calls > most {
					t.Fatalf("%d calls in %v, %d expected at most", calls, spent, most)
				}
				eventually(t, "a request that the breaker spares Redis", func() bool {
					calls, failures := c.redis.calls.Load(), c.redis.failures.Load()
					forward(t, c, keyOf(fmt.Sprint("spared ", calls)), brings("page"))
					stored(t, c)
					return c.redis.calls.Load() == calls && c.redis.failures.Load() == failures+2
				})
			}

			c.redis.budget, c.redis.storeBudget = patient, patient
			if err := o.end(); err != nil {
				t.Fatal(err)
			}
			thawed = true
			i := 0
			another := open(t, options)
			eventually(t, "a page by way of Redis", func() bool {
				i++ // a key that no earlier attempt has stored in memory
				body := fmt.Sprint("after ", i)
				forward(t, c, keyOf(body), brings(body))
				stored(t, c)
				return forward(t, another, keyOf(body), brings("another")).Source == Redis
			})
			if c.Stats().RedisBreakerOpen {
				t.Fatal("the breaker is open")
			}
		})
	}
}

// hung is a Redis that does not answer one command.
type hung struct {
	command string
	calls   atomic.Int64 // of all commands that a request waits for
}

func (h *hung) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hung) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *hung) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		name := c.Name()
		if name == "set" && !slices.Contains(c.Args(), any("nx")) || name == "del" { // that nobody waits for
			return next(ctx, c)
		}
		h.calls.Add(1)
		if name == h.command {
			return errNoAnswer
		}
		return next(ctx, c)
	}
}

// A miss of a node that follows changes looks in Redis, claims the entry, and looks once
// more. If a call gets no answer, the miss makes no further call.
func TestAMissWaitsOnceForARedisThatHangs(t *testing.T) {
	for _, test := range []struct {
		name, command string
		calls         int64
	}{
		{"it answers", "", 3},
		{"no look answered", "getrange", 1},
		{"no claim answered", "set", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, client := startRedis(t)
			b := startFollower(t)
			c, _ := b.open(Options{Redis: client, TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
			eventually(t, "trusted", mode(c, ModeFollowed))
			h := &hung{command: test.command}
			client.AddHook(h)
			r, err := c.Forward(keyOf("q"), listA, b.brings("page"))
			want{body: "page", source: Origin}.check(t, r, err)
			if n := h.calls.Load(); n != test.calls {
				t.Errorf("%d calls, not %d", n, test.calls)
			}
		})
	}
}

// The number of concurrent stores is bounded. Pages beyond it are not stored, and nothing
// waits for them.
func TestStoresAreBounded(t *testing.T) {
	server, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	c.redis.budget = redisBudget
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	for i := range maxAsync + 10 {
		e := NewEntry([]byte("page"), "")
		e.Proof = c.clock.Now()
		c.store(keyOf(fmt.Sprint(i)), e)
	}
	if n := c.redis.dropped.Load(); n != 10 {
		t.Errorf("%d dropped", n)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	stored(t, c)
	if n, err := client.DBSize(t.Context()).Result(); err != nil || n != maxAsync {
		t.Fatalf("%d pages arrived, %v", n, err)
	}
}

// forget empties the cache's memory tier.
func forget(c *Cache) {
	c.memory.ristretto.Clear()
	c.memory.window = newWindow(c.memory.window.budget, c.memory.window.evicted)
}
