package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/limiter"
)

// realNodes is the number of nodes. They run in this process, each with its own client.
const realNodes = 8

// limitNode decides for one node of a fleet.
type limitNode func(key string) (allowed bool, err error)

// openNode opens a node for a limit. end gives back what it holds.
type openNode func(ctx context.Context, c *redis.Client, l limit) (node limitNode, end func(), err error)

var realDesigns = []struct {
	name   string
	settle time.Duration // connections, scripts; listedge: the demand of each key
	open   openNode
}{
	{"listedge", 2 * time.Second, func(ctx context.Context, c *redis.Client, l limit) (limitNode, func(), error) {
		policy, err := limiter.NewPolicy(l.rate, int64(l.burst))
		lim := limiter.New(limiter.Options{Redis: c})
		return func(key string) (bool, error) {
			return lim.Take(time.Now(), lim.Bucket(key, policy), nil, nil).Allowed, nil
		}, func() { _ = lim.Close(ctx) }, err
	}},
	{"a trip per request", 300 * time.Millisecond, func(ctx context.Context, c *redis.Client, l limit) (limitNode, func(), error) {
		return func(key string) (bool, error) {
			n, err := tokenBucket.Run(ctx, c, []string{key}, l.rate, l.burst).Int()
			return n == 1, err
		}, func() {}, nil
	}},
	{"redis_rate", 300 * time.Millisecond, func(ctx context.Context, c *redis.Client, l limit) (limitNode, func(), error) {
		rate := redis_rate.NewLimiter(c)
		return func(key string) (bool, error) {
			answer, err := rate.Allow(ctx, key, redis_rate.Limit{Rate: int(l.rate), Burst: l.burst, Period: time.Second})
			return err == nil && answer.Allowed > 0, err
		}, func() {}, nil
	}},
}

// tokenBucket is the usual script: a level and when it was.
var tokenBucket = redis.NewScript(`
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local state = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = math.min(burst, (tonumber(state[1]) or burst) + rate * math.max(0, now - (tonumber(state[2]) or now)))
local allowed = level >= 1 and 1 or 0
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level - allowed), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * burst / rate) + 1000)
return allowed`)

func measureRealLimits(ctx context.Context, r *report) error {
	dir, err := os.MkdirTemp("", "listedge-bench-limits-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := sandbox.StartRedis(ctx, sandbox.RedisOptions{Dir: filepath.Join(dir, "redis")})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	t := r.table(fmt.Sprintf("Real: %d nodes, one Redis", realNodes),
		"load", "design", "requests", "used %", "calls per request", "script's time per call, µs", "Redis' CPU per request, µs", "decision p50 / p99, µs")
	for _, d := range realDesigns {
		for _, load := range realLoads {
			use, err := load.run(ctx, server, d.name, d.settle, d.open)
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			requests := float64(len(use.took))
			due := float64(load.keys) * (float64(load.burst) + load.rate*load.length.Seconds())
			t.add(load.name, d.name, fmt.Sprint(requests), fmt.Sprintf("%.1f", 100*float64(use.admitted)/min(requests, due)),
				fmt.Sprintf("%.3f", use.calls/requests), fmt.Sprintf("%.1f", use.script/use.calls), fmt.Sprintf("%.1f", use.cpu/requests),
				fmt.Sprintf("%.1f / %.1f", 1000*percentile(use.took, .5), 1000*percentile(use.took, .99)))
		}
	}
	return nil
}

// realLoad is what the clients of a fleet ask for.
type realLoad struct {
	name string
	limit
	keys   int
	times  float64 // of the rate
	length time.Duration
	full   bool // the buckets, when the length begins
}

var realLoads = []realLoad{
	{"100 keys of 50/s b100 at 80 %", limit{50, 100}, 100, .8, 3 * time.Second, false},
	{"a key of 1000/s b1000, flood × 4", limit{1000, 1000}, 1, 4, 2 * time.Second, true},
}

// realUse is what a fleet did, and what Redis did for it.
type realUse struct {
	admitted int
	took     []time.Duration // of each decision
	calls    float64         // of the script
	script   float64         // time in it, µs
	cpu      float64         // of Redis in all, µs
}

// run puts the load on a fleet, spread evenly.
func (load realLoad) run(ctx context.Context, server *sandbox.Redis, name string, settle time.Duration, open openNode) (use realUse, err error) {
	var nodes []limitNode
	for range realNodes {
		c := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true})
		defer c.Close()
		node, end, err := open(ctx, c, load.limit)
		if err != nil {
			return use, err
		}
		defer end()
		nodes = append(nodes, node)
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer c.Close()
	warm := name
	if load.full {
		warm += " warm"
	}
	if _, _, err := load.drive(nodes, warm, settle); err != nil {
		return use, err
	}
	before, err := c.Info(ctx, "all").Result()
	if err != nil {
		return use, err
	}
	if use.admitted, use.took, err = load.drive(nodes, name, load.length); err != nil {
		return use, err
	}
	after, err := c.Info(ctx, "all").Result()
	grown := func(names ...string) float64 { return infoValue(after, names...) - infoValue(before, names...) }
	use.calls, use.script = grown("cmdstat_evalsha:", "calls="), grown("cmdstat_evalsha:", "usec=")
	use.cpu = 1e6 * (grown("used_cpu_user:") + grown("used_cpu_sys:"))
	return use, err
}

// drive sends requests to each node at random times, for length.
func (load realLoad) drive(nodes []limitNode, name string, length time.Duration) (admitted int, took []time.Duration, err error) {
	var mu sync.Mutex // guards the results
	var all sync.WaitGroup
	apart := float64(len(nodes)) / (load.times * load.rate * float64(load.keys)) // seconds
	for i, node := range nodes {
		all.Go(func() {
			random := rand.New(rand.NewPCG(4, uint64(i)))
			var mine int
			var each []time.Duration
			var failed error
			began := time.Now()
			for at := time.Duration(0); at < length && failed == nil; at += time.Duration(random.ExpFloat64() * apart * 1e9) {
				time.Sleep(time.Until(began.Add(at)))
				key := fmt.Sprint(name, load.name, random.IntN(load.keys))
				sent := time.Now()
				var allowed bool
				allowed, failed = node(key)
				each = append(each, time.Since(sent))
				if allowed {
					mine++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			admitted += mine
			took = append(took, each...)
			err = errors.Join(err, failed)
		})
	}
	all.Wait()
	return admitted, took, err
}

// infoValue is the number in Redis' INFO behind some names, one after the other.
func infoValue(info string, names ...string) float64 {
	rest := info
	for _, name := range names {
		_, rest, _ = strings.Cut(rest, name)
	}
	n, _ := strconv.ParseFloat(rest[:max(0, strings.IndexAny(rest, ",\r"))], 64)
	return n
}
