package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"listedge/internal/sandbox"
	"listedge/limiter"
)

// mixes are loads on a real Redis. What is measured begins when the first leases have ended.
var mixes = []struct {
	name            string
	limit           limit
	keys, perSecond int
	before, length  time.Duration
}{
	{"sparse: 10,000 keys of one request per 5 s", limit{50, 100}, 10_000, 2_000, 25 * time.Second, 20 * time.Second},
	{"medium: 100 keys of 20/s", limit{50, 100}, 100, 2_000, 5 * time.Second, 10 * time.Second},
	{"busy: one key of 800/s", limit{1000, 1000}, 1, 800, 5 * time.Second, 10 * time.Second},
}

// Two designs that ask Redis about every request, in few lines: they stand for those of others.
var (
	plainBucket = redis.NewScript(`
local t = redis.call('TIME')
local now, rate, burst = t[1] + t[2] / 1e6, tonumber(ARGV[1]), tonumber(ARGV[2])
local s = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = math.min(burst, (tonumber(s[1]) or burst) + (now - (tonumber(s[2]) or now)) * rate)
if level < 1 then return 0 end
redis.call('HSET', KEYS[1], 'level', level - 1, 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate))
return 1`)
	gcra = redis.NewScript(`
local t = redis.call('TIME')
local now, gap, burst = t[1] + t[2] / 1e6, 1 / ARGV[1], tonumber(ARGV[2])
local next = math.max(now, tonumber(redis.call('GET', KEYS[1])) or 0) + gap
if next - now > gap * burst then return 0 end
redis.call('SET', KEYS[1], string.format('%.6f', next), 'EX', math.ceil(next - now))
return 1`)
)

// measureLimitCost compares what requests cost Redis, on a real one.
func measureLimitCost(ctx context.Context, r *report) error {
	dir, err := os.MkdirTemp("", "listedge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := sandbox.StartRedis(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolSize: 64})
	defer client.Close()
	each := func(s *redis.Script, l limit) func(int, int) error {
		return func(_, key int) error { return s.Run(ctx, client, []string{fmt.Sprint(key)}, l.rate, l.burst).Err() }
	}
	t := r.table("Redis' CPU per request, µs (calls per request)", "load", "listedge, 1 node", "3 nodes", "a plain bucket in Lua", "GCRA in Lua")
	for _, m := range mixes {
		row := []string{m.name}
		for i, take := range []func(node, key int) error{nil, nil, each(plainBucket, m.limit), each(gcra, m.limit)} {
			if err := client.FlushAll(ctx).Err(); err != nil {
				return err
			}
			calls, end := func() uint64 { return 0 }, func() {}
			if take == nil {
				take, calls, end = leasedTakes(client, []int{1, 3}[i], m.limit)
			}
			var before, after info
			err := offer(m.keys, m.perSecond, m.before, take)
			callsBefore := calls()
			if err == nil {
				before, err = redisInfo(ctx, server)
			}
			if err == nil {
				err = offer(m.keys, m.perSecond, m.length, take)
			}
			if err == nil {
				after, err = redisInfo(ctx, server)
			}
			asked := float64(m.perSecond) * m.length.Seconds()
			perRequest := 1.
			if i < 2 {
				perRequest = float64(calls()-callsBefore) / asked
			}
			if end(); err != nil {
				return err
			}
			row = append(row, fmt.Sprintf("%.1f (%.3f)", (after.cpu()-before.cpu())*1e6/asked, perRequest))
		}
		t.add(row...)
	}
	return nil
}

// leasedTakes starts the limiters of a fleet.
func leasedTakes(client *redis.Client, nodes int, held limit) (take func(node, key int) error, calls func() uint64, end func()) {
	var fleet []*limiter.Limiter
	for i := range nodes {
		fleet = append(fleet, limiter.New(limiter.Options{Redis: client, NodeID: fmt.Sprint(i), Budget: time.Second}))
	}
	policy, err := limiter.NewPolicy(held.rate, held.burst)
	if err != nil {
		panic(err)
	}
	take = func(node, key int) error {
		l := fleet[node%nodes]
		l.Take(time.Now(), l.Bucket(limiter.KeyBucket("w", fmt.Sprint(key)), policy), nil, nil)
		return nil
	}
	calls = func() (n uint64) {
		for _, l := range fleet {
			n += l.Stats().RedisCalls
		}
		return n
	}
	return take, calls, func() {
		for _, l := range fleet {
			_ = l.Close(context.Background())
		}
	}
}

// offer sends requests at an even pace, for the keys in turn, on any nodes.
func offer(keys, perSecond int, length time.Duration, take func(node, key int) error) error {
	const askers = 50
	var all errgroup.Group
	began := time.Now()
	for asker := range askers {
		all.Go(func() error {
			for n := asker; n < int(float64(perSecond)*length.Seconds()); n += askers {
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
				if err := take(rand.Int(), n%keys); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}
