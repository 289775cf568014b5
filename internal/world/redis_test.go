package world_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/world"
	"listedge/limiter"
)

// both are a real Redis and its stand-in.
type both struct {
	t              *testing.T
	real, standIn  *redis.Client
	sent, answered int
}

// answers is what a server answers a command, as far as it is to be the same: of an error its first word, of a time or an ID of
// the server that it is one.
func answers(of *redis.Cmd) any {
	is, err := of.Result()
	name := strings.ToLower(fmt.Sprint(of.Args()[0]))
	switch {
	case errors.Is(err, redis.Nil):
		return nil
	case err != nil:
		word, _, _ := strings.Cut(err.Error(), " ")
		return "error: " + word
	case name == "info":
		return strings.Contains(is.(string), "\r\nrun_id:")
	case name == "time":
		return len(is.([]any))
	case strings.HasPrefix(name, "eval"):
		return counted(is)
	case name == "pttl":
		return is.(int64) > 1000
	case name == "xinfo":
		fields := is.([]any)
		last := slices.Index(fields, any("last-generated-id"))
		return []any{fields[1], fields[last+1]}
	case name == "hgetall":
		return asMap(is.([]any))
	}
	return is
}

// counted is what a script counts, without levels and times: tests of package limiter compare these, at the same time.
func counted(is any) any {
	all, ok := is.([]any)
	if !ok {
		return is
	}
	return all[:min(2, len(all))]
}

func asMap(of []any) map[any]any {
	all := map[any]any{}
	for pair := range slices.Chunk(of, 2) {
		all[pair[0]] = pair[1]
	}
	return all
}

// same sends a command to both.
func (b *both) same(args ...any) {
	b.t.Helper()
	is, want := answers(b.standIn.Do(b.t.Context(), args...)), answers(b.real.Do(b.t.Context(), args...))
	b.sent++
	if s, failed := want.(string); !failed || !strings.HasPrefix(s, "error: ") {
		b.answered++
	}
	if !reflect.DeepEqual(is, want) {
		b.t.Errorf("%.200q: the stand-in answers %v, Redis %v", args, is, want)
	}
}

// ways are how a client reaches the stand-in: by calls, as in a World, and by the protocol, as in a bubble.
var ways = map[string]func(*world.Redis) *redis.Client{
	"by calls": (*world.Redis).Client,
	"by the protocol": func(s *world.Redis) *redis.Client {
		return redis.NewClient(&redis.Options{Protocol: 2, DisableIdentity: true, MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go s.ServeConn(theirs)
			return ours, nil
		}})
	},
}

// eachWay runs a test for each way.
func eachWay(t *testing.T, name string, test func(t *testing.T, b *both)) {
	for way, client := range ways {
		t.Run(name+", "+way, func(t *testing.T) {
			_, real := redistest.Start(t)
			standIn := client(world.NewRedis("stand-in", time.Now))
			t.Cleanup(func() { _ = standIn.Close() })
			test(t, &both{t: t, real: real, standIn: standIn})
		})
	}
}

// commands are those that the product sends. Sorted sets are used by the script of heartbeats alone.
func commands() [][]any {
	all := slices.Concat(changefeed.RedisCommands("own"), cache.RedisCommands("own"), limiter.RedisCommands("own"))
	return slices.DeleteFunc(all, func(args []any) bool { return args[0].(string)[0] == 'z' })
}

// The stand-in answers as Redis does: what the product sends, and commands at random on keys that may be of any type.
func TestRedis(t *testing.T) {
	eachWay(t, "what the product sends", func(t *testing.T, b *both) {
		for _, args := range commands() {
			b.same(args...)
		}
		for _, args := range commands() { // keys have other types now, and scripts are known
			b.same("sadd", args[min(len(args)-1, 1)], "x")
			b.same(args...)
		}
		b.same("script", "flush")
		b.same(commands()[7]...)
	})
	eachWay(t, "at random", func(t *testing.T, b *both) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 10_000 {
			b.same(randomCommand(r)...)
			if t.Failed() {
				break
			}
		}
		t.Logf("%d commands, %d were answered without an error", b.sent, b.answered)
	})
	eachWay(t, "a read that waits", func(t *testing.T, b *both) {
		b.same("xread", "block", 1, "count", 1, "streams", "a", "b", "0", "0")
		b.same("xadd", "b", "1-1", "e", "x")
		b.same("xread", "block", 1, "count", 1, "streams", "a", "b", "0", "0")
		b.same("xread", "block", 1, "streams", "b", "1-1")
		b.same("set", "a", "x")
		b.same("xread", "block", 1, "streams", "a", "b", "0", "0")
	})
	eachWay(t, "in the forms of the client", func(t *testing.T, b *both) {
		is, want := typed(t, b.standIn), typed(t, b.real)
		if is != want {
			t.Errorf("the stand-in answers\n%s\nRedis\n%s", is, want)
		}
	})
	eachWay(t, "expiry", func(t *testing.T, b *both) {
		b.same("set", "a", "x", "px", 1)
		b.same("set", "b", "x", "px", 1_000_000)
		b.same("pexpire", "b", -1)
		b.same("xadd", "c", "1-1", "e", "x")
		b.same("pexpire", "c", 1)
		for _, client := range []*redis.Client{b.real, b.standIn} {
			for client.Exists(t.Context(), "a", "c").Val() > 0 {
				time.Sleep(time.Millisecond)
			}
		}
		for _, key := range []string{"a", "b", "c"} {
			b.same("pttl", key)
			b.same("get", key)
		}
		b.same("set", "a", "y", "px", 1000, "nx")
		b.same("xinfo", "stream", "c")
	})
}

// typed is what a client makes of answers.
func typed(t *testing.T, c *redis.Client) string {
	ctx, all := t.Context(), &strings.Builder{}
	note := func(is any, err error) { fmt.Fprintf(all, "%#v, %v\n", is, err) }
	for range 2 {
		note(c.SetNX(ctx, "a", 1, time.Hour).Result())
		note(c.SetArgs(ctx, "b", "x", redis.SetArgs{TTL: time.Hour, Mode: "NX"}).Result())
	}
	note(c.TTL(ctx, "a").Result())
	note(c.PTTL(ctx, "absent").Result())
	note(c.Set(ctx, "c", []byte{0, 255}, 0).Result())
	note(c.PTTL(ctx, "c").Result())
	note(c.GetRange(ctx, "c", 1, 5).Result())
	note(c.Get(ctx, "absent").Result())
	note(c.HSet(ctx, "h", "f", 1, "g", true).Result())
	note(c.HGetAll(ctx, "h").Result())
	note(c.HMGet(ctx, "h", "g", "absent").Result())
	note(c.XAdd(ctx, &redis.XAddArgs{Stream: "s", ID: "1-1", Values: []any{"e", "x"}}).Result())
	note(c.XRange(ctx, "s", "-", "+").Result())
	note(c.XRead(ctx, &redis.XReadArgs{Streams: []string{"s", "0"}, Block: time.Millisecond}).Result())
	note(c.XRead(ctx, &redis.XReadArgs{Streams: []string{"s", "1-1"}, Block: time.Millisecond}).Result())
	info, err := c.XInfoStream(ctx, "s").Result()
	note([]any{info.Length, info.LastGeneratedID, info.EntriesAdded}, err)
	note(c.Get(ctx, "s").Result())
	note(c.Del(ctx, "a", "h", "absent").Result())
	now, err := c.Time(ctx).Result()
	note(now.IsZero(), err)
	server, err := c.InfoMap(ctx, "server").Result()
	note(server["Server"]["run_id"] == "", err)
	_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.PTTL(ctx, "b")
		p.XLen(ctx, "b")
		p.Get(ctx, "b")
		return nil
	})
	note(nil, err)
	return all.String()
}

func randomCommand(r *rand.Rand) []any {
	one := func(of ...any) any { return of[r.IntN(len(of))] }
	key, field, n := one("a", "b", "c"), one("f", "g", "e"), one(-3, -1, 0, 1, 2, 5, 100)
	id := fmt.Sprintf("%d-%d", r.IntN(9), r.IntN(3))
	value := strings.Repeat("x", r.IntN(4)) + strconv.Itoa(r.IntN(5))
	life := one(1_000_000, 2_000_000, 0, -5)
	all := [][]any{
		{"set", key, value}, {"set", key, value, "px", life}, {"set", key, value, "ex", life, "nx"}, {"set", key, value, "xx"}, {"set", key, value, "px"},
		{"set", key, value, "nx", "xx"}, {"set", key}, {"get", key}, {"getrange", key, n, one(-2, -1, 0, 3, 50)}, {"pttl", key}, {"type", key}, {"exists", key, "b"},
		{"del", key}, {"del", "a", "b", "c"}, {"pexpire", key, life}, {"pexpire", key, "x"},
		{"xadd", key, id, "e", value}, {"xadd", key, id, "e", value}, {"xadd", key, id, "e", value, "f"}, {"xadd", key, "5", "e", value},
		{"xadd", key, "x", "e", value}, {"xread", "count", one(1, 2, 1000), "streams", key, id},
		{"xread", "streams", key, "b", id, "0"}, {"xread", "streams", key, "b", id},
		{"xrange", key, "-", "+"}, {"xrange", key, id, "+", "count", 2}, {"xlen", key}, {"xinfo", "stream", key}, {"xtrim", key, "minid", id},
		{"xtrim", key, "minid", "=", id},
		{"hset", key, field, value}, {"hset", key, field, value, "h", value}, {"hset", key, field, value, "h"}, {"hget", key, field},
		{"hmget", key, field, "h"}, {"hgetall", key}, {"hdel", key, field, "h"},
		{"sadd", key, field},
		{"evalsha", "0000000000000000000000000000000000000000", 0}, {"ping"}, {"time"}, {"info", "server"},
	}
	return all[r.IntN(len(all))]
}
