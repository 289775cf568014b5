package limiter

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// pack and unpack are the state's form in Redis: ten little-endian doubles.
func pack(s state) []byte {
	var raw []byte
	for _, n := range []int64{s.level, s.ts, s.lag, s.held, s.prev, s.used, s.policy.Version, s.policy.r, s.policy.p, s.policy.Burst} {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(float64(n)))
	}
	return raw
}

func unpack(t testing.TB, raw []byte) state {
	t.Helper()
	if len(raw) != 80 {
		t.Fatalf("a state of %d bytes", len(raw))
	}
	n := make([]int64, 10)
	for i := range n {
		f := math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
		if n[i] = int64(f); float64(n[i]) != f {
			t.Fatalf("the state holds %v, not an integer", f)
		}
	}
	return state{level: n[0], ts: n[1], lag: n[2], held: n[3], prev: n[4], used: n[5],
		policy: Policy{Version: n[6], r: n[7], p: n[8], Burst: n[9]}}
}

// anyPolicy reaches every corner that NewPolicy allows, 2^52 units included.
func anyPolicy(random *rand.Rand) Policy {
	for {
		p, err := NewPolicy(math.Exp(random.Float64()*44-14), int64(math.Exp(random.Float64()*30)))
		if err == nil && p.r > 0 {
			return Policy{Version: random.Int64N(4), Burst: p.Burst, r: p.r, p: p.p}
		}
	}
}

// within is the invariant: what is held counts in the bucket.
func (s *state) within() bool {
	return s.level >= -s.policy.units()/4-1 && s.held >= 0 && s.prev >= 0 && s.level <= s.cap()
}

// Every call is made of a random stored bucket (or none, or one of an unknown
// form), last refilled anywhere between long ago and the future, with tokens
// out, under a policy that is its own, another, older or newer.
func TestScriptEqualsModel(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	client = client.WithTimeout(patient) // the pipelines are long
	ctx := context.Background()
	random := rand.New(rand.NewPCG(9, 10))
	sha, err := client.ScriptLoad(ctx, tokenBucketScript).Result()
	if err != nil {
		t.Fatal(err)
	}
	if sha != tokenBucketDigest {
		t.Fatalf("digest %s, Redis says %s", tokenBucketDigest, sha)
	}
	policies := make([]Policy, 500) // making one is the slow part of the test
	for i := range policies {
		policies[i] = anyPolicy(random)
	}
	anyTokens := func(p Policy) int64 {
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

	const rounds, atOnce = 60, 500
	var granted, leased, spares, stepped, rescaled, pinned, aged, released, owed int
	for round := range rounds {
		type trial struct {
			stored *state
			c      call
			answer *redis.Cmd
			after  *redis.StringCmd
			ttl    *redis.DurationCmd
		}
		trials := make([]trial, atOnce)
		pipe := client.Pipeline()
		for i := range trials {
			x := &trials[i]
			key := fmt.Sprintf("rl:{model}:k:%d:%d", round, i)
			p := policies[random.IntN(len(policies))]
			life := []int64{leaseLife, leaseLife, 60_000_000, 1_000}[random.IntN(4)]
			near := time.Now().UnixMicro() / life
			x.c = call{key: key, policy: p, life: life, need: 1, ret: anyTokens(p), debt: anyTokens(p), extra: anyTokens(p),
				spare: anyTokens(p), rel0: anyTokens(p), rel1: anyTokens(p), from: near - random.Int64N(4), hold: random.Int64N(2), parts: 1 + random.Int64N(9)}
			if random.IntN(3) == 0 {
				x.c.need = anyTokens(p)
			}
			if random.IntN(2) == 0 {
				x.c.debt, x.c.rel0, x.c.rel1 = 0, 0, 0
			}
			switch random.IntN(20) {
			case 0: // absent
			case 1: // not a bucket as this script knows it: as good as absent
				pipe.Set(ctx, key, "something else", time.Minute)
			default:
				own := p
				own.Version = random.Int64N(4)
				if random.IntN(2) == 0 {
					own = policies[random.IntN(len(policies))]
				}
				past := int64(math.Exp(random.Float64() * 35))
				switch random.IntN(10) {
				case 0:
					past = -random.Int64N(900_000)
				case 1:
					past = -2_000_000 - past
				}
				s := state{ts: time.Now().UnixMicro() - past, policy: own}
				if random.IntN(4) == 0 {
					s.lag = random.Int64N(100_000_000)
				}
				s.used = s.epoch(life) - random.Int64N(4)
				if random.IntN(2) == 0 {
					s.held = random.Int64N(own.Burst/4 + 1)
					s.prev = random.Int64N(own.Burst/4 + 1)
				}
				s.level = random.Int64N(s.cap() + 1)
				if random.IntN(8) == 0 {
					s.level = -random.Int64N(own.Burst/4*own.p + 1)
				}
				if random.IntN(4) == 0 {
					s.level = min(s.cap(), []int64{0, own.units(), own.p, own.p - 1, own.units() - 1}[random.IntN(5)])
				}
				x.stored = &s
				pipe.Set(ctx, key, pack(s), time.Hour)
			}
			x.answer = pipe.EvalSha(ctx, sha, []string{key}, p.r, p.p, p.Burst, p.Version, life, x.c.need, x.c.extra, x.c.spare,
				x.c.from, x.c.rel0, x.c.rel1, x.c.ret, x.c.debt, x.c.hold, x.c.parts)
			x.after = pipe.Get(ctx, key)
			x.ttl = pipe.PTTL(ctx, key)
		}
		if _, err := pipe.Exec(ctx); err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		for i := range trials {
			x := &trials[i]
			got := x.c
			if err := got.read(x.answer); err != nil {
				t.Fatal(err)
			}
			want := x.c
			model := fullState(x.c.policy, got.now)
			if x.stored != nil {
				model = *x.stored
			}
			changed := model.visit(&want, got.now)
			if got.reply != want.reply {
				t.Fatalf("call %+v on %+v\nscript %+v\nmodel  %+v", x.c, x.stored, got.reply, want.reply)
			}
			if !model.within() {
				t.Fatalf("call %+v on %+v\nleaves %+v: more than the burst", x.c, x.stored, model)
			}
			count := func(n *int, yes bool) {
				if yes {
					*n++
				}
			}
			count(&granted, got.granted > 0)
			count(&leased, got.leased > 0)
			count(&spares, got.leased > x.c.extra)
			count(&owed, got.level < 0)
			if x.stored != nil {
				count(&stepped, x.stored.ts-got.now > clockSlack)
				count(&rescaled, !x.stored.policy.sameLimits(model.policy))
				count(&pinned, x.stored.policy.Version == x.c.policy.Version && !model.policy.sameLimits(x.c.policy))
				count(&aged, x.stored.held+x.stored.prev > 0 && got.now/x.c.life > x.stored.ts/x.c.life)
				count(&released, x.stored.held+x.stored.prev > got.held-got.leased && got.now/x.c.life == x.stored.ts/x.c.life)
			}
			if !changed && x.stored == nil {
				continue // stays absent, or something else
			}
			raw, err := x.after.Bytes()
			if err != nil {
				t.Fatalf("no state after %+v: %v", x.c, err)
			}
			if stored := unpack(t, raw); stored != model {
				t.Fatalf("call %+v on %+v\nscript leaves %+v\nmodel  leaves %+v", x.c, x.stored, stored, model)
			}
			// Expiry: when as good as absent, and a second more (rounded up to milliseconds).
			if last := model.untilAbsent(x.c.life); changed && last < 1e12 {
				want := time.Duration(ceilDiv(last, 1000)+1000) * time.Millisecond
				if x.ttl.Val() > want || x.ttl.Val() < want-5*time.Second {
					t.Fatalf("expires in %v, want %v", x.ttl.Val(), want)
				}
			}
		}
		if err := client.FlushDB(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d calls: %d granted, %d leased, %d with spare tokens, %d after a clock step, %d rescaled, %d pinned, %d aged, %d released, %d owed",
		rounds*atOnce, granted, leased, spares, stepped, rescaled, pinned, aged, released, owed)
	if min(granted, leased, spares, stepped, rescaled, pinned, aged, released, owed) < 100 {
		t.Fatal("the calls miss a part of the rule")
	}
}

// The whole life of a bucket, one call after another in Redis' real time.
func TestScriptFollowsModelOverALife(t *testing.T) {
	_, client := startRedis(t)
	ctx := context.Background()
	random := rand.New(rand.NewPCG(11, 12))
	store := newRedisStore(client, new(redisStats))
	p := policy(t, 20_000, 60)
	other := policy(t, 700, 12)
	var model *state
	for i := range 3_000 {
		if i%500 == 499 {
			p, other = other, p
			p.Version = int64(i)
		}
		c := call{key: WorkspaceBucket("life"), policy: p, life: 20_000, need: random.Int64N(3), extra: random.Int64N(5), spare: random.Int64N(9), hold: random.Int64N(2), parts: 1 + random.Int64N(9)}
		if model != nil {
			c.from, c.rel0, c.rel1 = model.epoch(c.life), random.Int64N(3), random.Int64N(3)
		}
		if random.IntN(10) == 0 {
			c.ret, c.debt = random.Int64N(3), random.Int64N(3)
		}
		calls := []call{c}
		if err := store.visit(ctx, calls); err != nil {
			t.Fatal(err)
		}
		if model == nil || calls[0].now-model.ts > model.untilAbsent(c.life)+900_000 {
			fresh := fullState(p, calls[0].now)
			model = &fresh
		}
		model.visit(&c, calls[0].now)
		if c.reply != calls[0].reply || !model.within() {
			t.Fatalf("call %d\nscript %+v\nmodel  %+v, %+v", i, calls[0].reply, c.reply, model)
		}
	}
}

func TestScriptIsLoadedWhereItIsMissing(t *testing.T) {
	_, client := startRedis(t)
	ctx := context.Background()
	stats := new(redisStats)
	store := newRedisStore(client, stats)
	p := policy(t, 0.001, 10)
	for range 3 {
		calls := []call{
			{key: KeyBucket("w", "k"), policy: p, life: leaseLife, need: 1},
			{key: WorkspaceBucket("w"), policy: p, life: leaseLife, need: 1}}
		if err := store.visit(ctx, calls); err != nil {
			t.Fatal(err)
		}
		if calls[0].granted != 1 || calls[1].granted != 1 || calls[0].remaining() != calls[1].remaining() {
			t.Fatalf("%+v, %+v", calls[0].reply, calls[1].reply)
		}
		if err := client.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if trips, sent := stats.trips.Load(), stats.calls.Load(); trips != 6 || sent != 12 {
		t.Fatalf("%d trips and %d calls for three visits without the script", trips, sent)
	}
}

func TestIdleBucketExpires(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	ctx := context.Background()
	store := newRedisStore(client, new(redisStats))
	key := KeyBucket("w", "idle")
	calls := []call{{key: key, policy: policy(t, 1000, 5), life: leaseLife, need: 5}}
	if err := store.visit(ctx, calls); err != nil {
		t.Fatal(err)
	}
	if ttl := client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 1005*time.Millisecond {
		t.Fatalf("expires in %v: 5 ms to full and a second were due", ttl)
	}
	eventually(t, "the key's expiry", func() bool { return client.Exists(ctx, key).Val() == 0 })
}

func TestKeysOfARequestShareAShard(t *testing.T) {
	if k, w := KeyBucket("5f", "9a"), WorkspaceBucket("5f"); k != "rl:{5f}:k:9a" || w != "rl:{5f}:w" || hashTag(k) != "5f" || hashTag(w) != "5f" {
		t.Fatal(k, w)
	}
}
