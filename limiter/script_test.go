package limiter_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/world"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// bucketIn reads what Redis stores.
func bucketIn(t testing.TB, stored []byte) world.Bucket {
	t.Helper()
	b, ok := world.UnpackBucket(stored)
	if !ok {
		t.Fatalf("a state of %d bytes, or not of integers: %x", len(stored), stored)
	}
	return b
}

// both are a real Redis, and that of the simulated world, where time stands still and an interpreter runs the scripts.
type both struct {
	t             *testing.T
	real, standIn *redis.Client
}

func inBoth(t *testing.T) both {
	_, client := startRedis(t)
	now := time.Now()
	server := world.NewRedis("stand-in", func() time.Time { return now })
	return both{t, client, world.NewRedisClient(func(_ context.Context, c *world.RedisCall) error {
		server.Execute(c)
		return nil
	})}
}

// run has both execute a script in a key, and returns its numbers, what the key has, and for how long, if both are the same.
func (b both) run(text, key string, read []any, arguments ...any) (numbers []int64, left any, life time.Duration) {
	b.t.Helper()
	in := func(server *redis.Client) (numbers []int64, left any, life time.Duration) {
		pipe := server.Pipeline()
		answer := pipe.Eval(b.t.Context(), text, []string{key}, arguments...)
		value, lasts := pipe.Do(b.t.Context(), read...), pipe.PTTL(b.t.Context(), key)
		_, err := pipe.Exec(b.t.Context())
		if err != nil && !errors.Is(err, redis.Nil) {
			b.t.Fatal(err)
		}
		return must1(answer.Int64Slice()), value.Val(), lasts.Val()
	}
	numbers, left, life = in(b.standIn)
	really, leaves, lasts := in(b.real)
	if !slices.Equal(numbers, really) || !reflect.DeepEqual(left, leaves) || lasts > life || lasts < life-5*time.Second {
		b.t.Fatalf("%q: %d, %q for %v\nreal %d, %q for %v", arguments, numbers, left, life, really, leaves, lasts)
	}
	return numbers, left, life
}

// set gives both a value.
func (b both) set(key string, value any) {
	for _, server := range []*redis.Client{b.real, b.standIn} {
		must(server.Set(b.t.Context(), key, value, time.Hour).Err())
	}
}

// timed is a script at a time that the test gives in two arguments, in seconds and microseconds.
func timed(t *testing.T, text, seconds, microseconds string) string {
	t.Helper()
	changed := strings.Replace(text, "redis.call('TIME')", "{"+seconds+", "+microseconds+"}", 1)
	if changed == text {
		t.Fatal("the script does not ask for the time in this way")
	}
	return changed
}

// anyPolicy reaches every corner that NewPolicy allows.
func anyPolicy(random *rand.Rand) Policy {
	for {
		p, err := NewPolicy(math.Exp(random.Float64()*44-14), int64(math.Exp(random.Float64()*22)))
		if err == nil && p.Rate > 0 {
			p.Version = random.Int64N(4)
			return p
		}
	}
}

// anyTokens is a number of tokens, of a node with this policy, or by mistake.
func anyTokens(random *rand.Rand, p Policy) int64 {
	switch random.IntN(6) {
	case 0:
		return random.Int64N(3)
	case 1:
		return random.Int64N(2*p.Burst + 1)
	case 2:
		return 1 << 50
	}
	return 0
}

// anyCall is of a node that knows of a fleet.
func anyCall(random *rand.Rand, now int64) lease.Call {
	p := anyPolicy(random)
	any := func() int64 { return anyTokens(random, p) }
	c := lease.Call{Policy: p, Need: 1, Hold: random.Int64N(2), Extra: any(), Arrived: random.Int64N(100), Fair: random.Int64N(2),
		Slice: now/lease.Slice - random.Int64N(4), Returned: any(), Nodes: 1 + random.Int64N(20)}
	if random.IntN(3) == 0 {
		c.Silent = random.Int64N(lease.Token + 1)
	}
	if random.IntN(3) == 0 {
		c.Need = any()
	}
	if random.IntN(3) == 0 {
		c.Until = now + 1_000_000*(random.Int64N(3)-1)
	}
	if random.IntN(2) == 0 {
		c.Debt, c.ReleasedNow, c.ReleasedBefore = any(), any(), any()
	}
	return c
}

// anyBucket was last refilled anywhere between long ago and the future, and has tokens out. Some are as no call would leave one.
func anyBucket(random *rand.Rand, p Policy, now int64) world.Bucket {
	chance := func(n int) bool { return random.IntN(n) == 0 }
	p.Version = random.Int64N(4)
	if chance(2) {
		p = anyPolicy(random)
	}
	past := int64(math.Exp(random.Float64() * 35))
	switch random.IntN(10) {
	case 0:
		past = -random.Int64N(900_000)
	case 1:
		past = -2_000_000 - past
	}
	b := world.Bucket{RefilledAt: now - past, Rate: p.Rate, Burst: p.Burst, Version: p.Version, Demand: int64(math.Exp(random.Float64() * 25))}
	if chance(4) {
		b.ClockLag = random.Int64N(100_000_000)
	}
	b.UsedIn = (b.RefilledAt+b.ClockLag)/lease.Slice - random.Int64N(4)
	if chance(2) {
		b.HeldNow, b.HeldBefore = random.Int64N(p.Burst/4+1), random.Int64N(p.Burst/4+1)
	}
	room := (p.Burst - b.HeldNow - b.HeldBefore) * lease.Token
	if chance(3) {
		b.Withheld = random.Int64N(room + 1)
	}
	b.Level = random.Int64N(room - b.Withheld + 1)
	if chance(8) {
		b.Level = -random.Int64N(p.Burst/4*lease.Token + 1)
	}
	if chance(4) {
		b.Level = min(room-b.Withheld, []int64{0, room, lease.Token, lease.Token - 1, room - 1}[random.IntN(5)])
	}
	if chance(10) {
		*[]*int64{&b.Level, &b.RefilledAt, &b.ClockLag, &b.HeldNow, &b.HeldBefore, &b.UsedIn, &b.Demand, &b.Withheld,
			&b.Version, &b.Rate, &b.Burst}[random.IntN(11)] = random.Int64N(1<<54) - 1<<53
	}
	return b
}

// Random calls on random buckets, on none, or on something else, leave a bucket that keeps the invariants, and that is
// forgotten once it is as good as absent, and a second more.
func TestTheScriptOfBuckets(t *testing.T) {
	t.Parallel()
	servers, text := inBoth(t), timed(t, TokenBucketText, "ARGV[2]", "ARGV[3]")
	random := rand.New(rand.NewPCG(9, 10))
	seen := map[string]int{"granted": 0, "leased": 0, "stepped": 0, "adopted": 0, "pinned": 0, "aged": 0, "released": 0,
		"owed": 0, "withheld": 0, "merged": 0, "late": 0, "damaged": 0, "forgotten": 0}
	for i := range 5_000 {
		key, now := fmt.Sprint("listedge:{w}:b:", i), time.Now().UnixMicro()
		execute := func(c *lease.Call, now int64) (lease.Reply, world.Bucket, time.Duration) {
			numbers, left, life := servers.run(text, key, []any{"get", key}, Pack(c.Arguments()...), now/1e6, now%1e6)
			after, _ := left.(string)
			b, _ := world.UnpackBucket([]byte(after))
			return lease.ReplyOf(numbers), b, life
		}
		c := anyCall(random, now)
		before := world.Bucket{UsedIn: -1}
		switch random.IntN(20) {
		case 0:
		case 1:
			servers.set(key, make([]byte, 80))
		default:
			before = anyBucket(random, c.Policy, now)
			servers.set(key, before.Pack())
		}
		known := before.Sound()
		r, after, life := execute(&c, now)
		if !known && (after == before || after == world.Bucket{}) {
			continue // refused, and so left as it was: absent, or something else
		}
		if !after.Sound() || r.Held < r.Leased+c.Hold*r.Granted {
			t.Fatalf("call %+v on %+v\nleaves %+v, answers %+v", c, before, after, r)
		}
		for what, yes := range map[string]bool{
			"granted":  r.Granted > 0,
			"leased":   r.Leased > 0,
			"owed":     r.Level < 0,
			"late":     c.Until > 0 && now > c.Until && r.Level >= lease.Token,
			"withheld": after.Withheld > 0,
			"damaged":  !known,
			"merged":   known && after.Withheld < before.Withheld && c.Debt == 0,
			"stepped":  known && before.RefilledAt-now > 1_000_000,
			"adopted":  known && (before.Rate != after.Rate || before.Burst != after.Burst || before.Version != after.Version),
			"pinned":   known && after.Rate != c.Policy.Rate,
			"aged":     known && before.HeldNow+before.HeldBefore > 0 && now/lease.Slice > before.RefilledAt/lease.Slice,
			"released": known && before.HeldNow+before.HeldBefore > r.Held-r.Leased && now/lease.Slice == before.RefilledAt/lease.Slice,
		} {
			if yes {
				seen[what]++
			}
		}
		if after == before || life > 1e6*time.Second || after.HeldNow+after.HeldBefore > after.Burst {
			continue
		}
		look := lease.Call{Policy: Policy{Rate: after.Rate, Burst: after.Burst, Version: after.Version}, Nodes: 1}
		r, _, _ = execute(&look, after.RefilledAt+(life-time.Second).Microseconds())
		if r.Level < after.Burst*lease.Token-10 || r.Held != 0 {
			t.Fatalf("%+v is forgotten after %v: before that it is %+v", after, life, r)
		}
		seen["forgotten"]++
	}
	t.Log(seen)
	for what, n := range seen {
		if n < 60 {
			t.Errorf("%s: only %d", what, n)
		}
	}
}

// Random heartbeats, in a time that stands still, leaps, and is set back: all that were not too late are counted, and those who have left
// or been silent for a minute are not.
func TestTheScriptOfHeartbeats(t *testing.T) {
	t.Parallel()
	servers, text := inBoth(t), timed(t, HeartbeatText, "ARGV[5]", "ARGV[6]")
	random, now := rand.New(rand.NewPCG(5, 6)), time.Now().UnixMicro()
	servers.set("members", "of another type")
	for range 3_000 {
		now += []int64{0, random.Int64N(20_000), random.Int64N(1_000_000), random.Int64N(2_000_000), 59_000_000, -random.Int64N(9_000_000)}[min(5, random.IntN(40)/7)]
		node, state := fmt.Sprint(random.IntN(9)), []string{"present", "present", "recovering", "leaving"}[random.IntN(4)]
		parts, latest := int64(math.Exp(random.Float64()*11)), now+random.Int64N(1_000_000)-100_000
		numbers, left, _ := servers.run(text, "members", []any{"zrangebyscore", "members", "-inf", "+inf", "withscores"}, node, state, parts, latest,
			now/1_000_000, now%1_000_000)
		members := left.([]any)
		if is := slices.Contains(members, any(node)); is && state == "leaving" || !is && state != "leaving" && now <= latest {
			t.Fatalf("%s is %s: %v", node, state, members)
		}
		if numbers[0] != int64(len(members)/2) || numbers[1] > lease.Token || numbers[2] != now {
			t.Fatalf("%d nodes: %d", len(members)/2, numbers)
		}
	}
}

// Random calls, of which some are repeated or come late: those change nothing. A value of another type, or another form, counts as none.
func TestTheScriptOfQuotas(t *testing.T) {
	t.Parallel()
	servers := inBoth(t)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		key := fmt.Sprintf("{w}:q:%d", i)
		for _, server := range []*redis.Client{servers.real, servers.standIn} {
			switch i % 10 {
			case 0:
				must(server.Set(t.Context(), key, "x", 0).Err())
			case 1:
				must(server.HSet(t.Context(), key, "total", "x", "run:1", "x").Err())
			}
		}
		type state struct{ number, taken int64 }
		runs, total, all := map[int64]state{}, int64(0), [][]any{}
		for number := range int64(200) {
			call := []any{1 + random.Int64N(4_000_000_000), 1 + random.Int64N(3), 1 + number, random.Int64N(2_000_000_000), random.Int64N(3),
				random.Int64N(1_000_000), 1 + random.Int64N(20), random.Int64N(9) / 8, 60_000}
			if len(all) > 0 && random.IntN(4) == 0 {
				call = all[max(0, len(all)-1-random.IntN(3))]
			}
			all = append(all, call)
			tokens, run, floor, need := call[0].(int64), call[1].(int64), call[3].(int64), call[4].(int64)
			r, _, life := servers.run(QuotaText, key, []any{"hmget", key, "total", "run:1", "run:2", "run:3"}, call...)
			is := runs[run]
			if call[2].(int64) > is.number {
				others := total - is.taken
				is, total = state{call[2].(int64), r[0]}, others+r[0]
				if is.taken < floor || is.taken > floor && total > tokens || floor+need+others <= tokens && is.taken < floor+need {
					t.Fatalf("%d, where others have %d: %d", call, others, r)
				}
				runs[run] = is
				if call[7].(int64) == 1 {
					delete(runs, run)
				}
			}
			if r[0] != is.taken || r[1] != total || life != time.Minute {
				t.Fatalf("%d: %d, want %d and %d, for %v", call, r, is.taken, total, life)
			}
		}
	}
}

// A value that no script has stored counts as an absent bucket, and the next call replaces it.
func TestADamagedBucketIsAFullOne(t *testing.T) {
	_, client := startRedis(t)
	ctx := context.Background()
	p := policy(t, 50, 100)
	now := time.Now().UnixMicro()
	sound := world.Bucket{RefilledAt: now, UsedIn: now / lease.Slice, Rate: p.Rate, Burst: p.Burst}
	damaged := map[string]string{"other bytes": strings.Repeat("x", 88), "a short value": "x"}
	for field, name := range []string{"level", "time", "lag", "held", "held before", "used", "demand", "withheld", "version", "rate", "burst"} {
		for what, v := range map[string]float64{"NaN": math.NaN(), "infinite": math.Inf(1), "-infinite": math.Inf(-1), "far below": -1 << 52, "broken": .5} {
			raw := sound.Pack()
			binary.LittleEndian.PutUint64(raw[8*field:], math.Float64bits(v))
			damaged[name+" "+what] = string(raw)
		}
	}
	script, call := redis.NewScript(TokenBucketText), lease.Call{Policy: p, Need: 1, Nodes: 1}
	execute := func(key string) lease.Reply {
		return lease.ReplyOf(must1(script.Run(ctx, client, []string{key}, Pack(call.Arguments()...)).Int64Slice()))
	}
	for name, raw := range damaged {
		must(client.Set(ctx, name, raw, time.Hour).Err())
		r := execute(name)
		if b := bucketIn(t, []byte(client.Get(ctx, name).Val())); r.Granted != 1 || r.Level != 99*lease.Token || !b.Sound() {
			t.Errorf("%s: %+v, and %+v is stored", name, r, b)
		}
	}
	client.LPush(ctx, "another type", "x")
	if r := execute("another type"); r.Granted != 1 {
		t.Errorf("a list: %+v", r)
	}
	client.Set(ctx, "sound", sound.Pack(), time.Hour)
	if r := execute("sound"); r.Level > 98*lease.Token {
		t.Errorf("a sound one is not kept: %+v", r)
	}
}
