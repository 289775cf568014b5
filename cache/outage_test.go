package cache_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
)

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
			options := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}
			c := open(t, options)
			forward(t, c, queryOf("before"), brings("before"))
			c.WaitStored()
			before := c.Stats()
			c.SetRedisBudgets(redisBudget, 250*time.Millisecond)
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
				r, err := ask(c, queryOf(body), brings(body))
				want{body: body, source: cache.Origin}.check(t, r, err)
				hit, ok := c.Hit(queryOf("before"), time.Now())
				if !ok {
					t.Fatal("a page in memory is not served")
				}
				want{body: "before"}.check(t, hit, nil)
			}
			spent := time.Since(began)
			c.WaitStored()
			if what != "full" { // which still reads, and so now and then closes the breaker
				after := c.Stats()
				// 3 failures in a row open the breaker, and these requests come one by one, with two calls
				// each; later one call each quarter of a second finds out whether it may close.
				if calls, most := after.RedisCalls-before.RedisCalls, uint64(2*3+2+spent/(250*time.Millisecond)); calls > most {
					t.Fatalf("%d calls in %v, %d expected at most", calls, spent, most)
				}
				eventually(t, "a request that the breaker spares Redis", func() bool {
					before := c.Stats()
					forward(t, c, queryOf(fmt.Sprint("spared ", before.RedisFailures)), brings("page"))
					c.WaitStored()
					after := c.Stats()
					return after.RedisCalls == before.RedisCalls && after.RedisFailures == before.RedisFailures+2
				})
			}

			c.SetRedisBudgets(patient, patient)
			if err := o.end(); err != nil {
				t.Fatal(err)
			}
			thawed = true
			i := 0
			another := open(t, options)
			eventually(t, "a page by way of Redis", func() bool {
				i++ // a key that no earlier attempt has stored in memory
				body := fmt.Sprint("after ", i)
				forward(t, c, queryOf(body), brings(body))
				c.WaitStored()
				return forward(t, another, queryOf(body), brings("another")).Source == cache.Redis
			})
			if c.Stats().RedisBreakerOpen {
				t.Fatal("the breaker is open")
			}
		})
	}
}

// A miss of a node that follows changes looks in Redis, claims the entry, and looks once
// more. If a call gets no answer, the miss makes no further call.
func TestAMissWaitsOnceForARedisThatHangs(t *testing.T) {
	for name, test := range map[string]struct {
		command string
		calls   int64
	}{"it answers": {"", 3}, "no look answered": {"getrange", 1}, "no claim answered": {"set", 2}} {
		t.Run(name, func(t *testing.T) {
			_, client := startRedis(t)
			c := open(t, cache.Options{Redis: client, TTL: time.Minute, MaxStale: time.Minute, Bound: time.Hour})
			f := follow(c)
			calls := int64(0)
			hangs := func(command string) bool {
				calls++
				return command == test.command
			}
			client.AddHook(hook{many: func(ctx context.Context, c []redis.Cmder, next redis.ProcessPipelineHook) error {
				if c[0].Name() == "pttl" && hangs("getrange") { // others are of a new connection
					c[0].SetErr(context.DeadlineExceeded)
					return context.DeadlineExceeded
				}
				return next(ctx, c)
			}, one: func(ctx context.Context, c redis.Cmder, next redis.ProcessHook) error {
				if slices.Contains(c.Args(), any("nx")) && hangs("set") {
					return context.DeadlineExceeded
				}
				return next(ctx, c)
			}})
			r, err := ask(c, queryOf("q"), f.reads(shows("page")))
			want{body: "page", source: cache.Origin}.check(t, r, err)
			if calls != test.calls {
				t.Errorf("%d calls, not %d", calls, test.calls)
			}
		})
	}
}

// The number of concurrent stores is bounded. Pages beyond it are not stored, and nothing
// waits for them.
func TestStoresAreBounded(t *testing.T) {
	const most = 64
	_, client := startRedis(t)
	c, release := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour}), make(chan struct{})
	client.AddHook(hook{one: func(ctx context.Context, c redis.Cmder, next redis.ProcessHook) error {
		if c.Name() == "set" {
			<-release
		}
		return next(ctx, c)
	}})
	for i := range most + 10 {
		forward(t, c, queryOf(fmt.Sprint(i)), brings("page"))
	}
	if n := c.Stats().RedisDropped; n != 10 {
		t.Errorf("%d dropped", n)
	}
	close(release)
	c.WaitStored()
	if n, err := client.DBSize(t.Context()).Result(); err != nil || n != most {
		t.Errorf("%d of %d pages are stored, %v", n, most, err)
	}
}
