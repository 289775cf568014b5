package limiter_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
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

// callOf is a call as the twin gets it.
func callOf(c *lease.Call) *world.BucketCall {
	w, _ := world.UnpackBucketCall(Pack(c.Arguments()...))
	return &w
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

// Every call is made of a random stored bucket (or none, or one of another form),
// last refilled anywhere between long ago and the future, with tokens out, under a
// policy that is its own, another, older or newer, by a node that knows of a fleet.
func TestScriptEqualsModel(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	client = client.WithTimeout(patient) // the pipelines are long
	ctx := context.Background()
	random := rand.New(rand.NewPCG(9, 10))
	timed := strings.Replace(TokenBucketText, "redis.call('TIME')", "{ARGV[2], ARGV[3]}", 1) // at a time of the test's choice
	if timed == TokenBucketText {
		t.Fatal("the script does not ask for the time in this way")
	}
	sha := must1(client.ScriptLoad(ctx, timed).Result())
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
	chance := func(n int) bool { return random.IntN(n) == 0 }
	const rounds, atOnce = 60, 500
	seen := map[string]int{"granted": 0, "leased": 0, "stepped": 0, "adopted": 0, "pinned": 0, "aged": 0, "released": 0,
		"owed": 0, "withheld": 0, "merged": 0, "of another form": 0, "damaged": 0}
	for round := range rounds {
		type trial struct {
			stored  *world.Bucket
			altered bool // as no call would leave it
			c       lease.Call
			now     int64
			answer  *redis.Cmd
			after   *redis.StringCmd
			ttl     *redis.DurationCmd
		}
		trials := make([]trial, atOnce)
		pipe := client.Pipeline()
		for i := range trials {
			x := &trials[i]
			key := fmt.Sprintf("listedge:{model}:b:%d:%d", round, i)
			p := anyPolicy(random)
			near := time.Now().UnixMicro() / lease.Slice
			x.c = lease.Call{Policy: p, Need: 1, Hold: random.Int64N(2), Extra: anyTokens(p), Arrived: random.Int64N(100), Fair: random.Int64N(2),
				Slice: near - random.Int64N(4), ReleasedNow: anyTokens(p), ReleasedBefore: anyTokens(p), Returned: anyTokens(p), Debt: anyTokens(p),
				Nodes: 1 + random.Int64N(20)}
			if chance(3) {
				x.c.Silent = random.Int64N(lease.Token + 1)
			}
			if chance(3) {
				x.c.Need = anyTokens(p)
			}
			if chance(3) {
				x.c.Until = time.Now().UnixMicro() + 1_000_000*(random.Int64N(3)-1)
			}
			if chance(2) {
				x.c.Debt, x.c.ReleasedNow, x.c.ReleasedBefore = 0, 0, 0
			}
			switch random.IntN(20) {
			case 0: // absent
			case 1: // not a bucket as this script knows it: as good as absent
				seen["of another form"]++
				pipe.Set(ctx, key, make([]byte, 80), time.Minute)
			default:
				own := p
				own.Version = random.Int64N(4)
				if chance(2) {
					own = anyPolicy(random)
				}
				past := int64(math.Exp(random.Float64() * 35))
				switch random.IntN(10) {
				case 0:
					past = -random.Int64N(900_000)
				case 1:
					past = -2_000_000 - past
				}
				b := world.Bucket{RefilledAt: time.Now().UnixMicro() - past, Rate: own.Rate, Burst: own.Burst, Version: own.Version,
					Demand: int64(math.Exp(random.Float64() * 25))}
				if chance(4) {
					b.ClockLag = random.Int64N(100_000_000)
				}
				b.UsedIn = (b.RefilledAt+b.ClockLag)/lease.Slice - random.Int64N(4)
				if chance(2) {
					b.HeldNow, b.HeldBefore = random.Int64N(own.Burst/4+1), random.Int64N(own.Burst/4+1)
				}
				room := (own.Burst - b.HeldNow - b.HeldBefore) * lease.Token
				if chance(3) {
					b.Withheld = random.Int64N(room + 1)
				}
				b.Level = random.Int64N(room - b.Withheld + 1)
				if chance(8) {
					b.Level = -random.Int64N(own.Burst/4*lease.Token + 1)
				}
				if chance(4) {
					b.Level = min(room-b.Withheld, []int64{0, room, lease.Token, lease.Token - 1, room - 1}[random.IntN(5)])
				}
				if chance(10) {
					field := []*int64{&b.Level, &b.RefilledAt, &b.ClockLag, &b.HeldNow, &b.HeldBefore, &b.UsedIn, &b.Demand, &b.Withheld,
						&b.Version, &b.Rate, &b.Burst}[random.IntN(11)]
					*field, x.altered = random.Int64N(1<<54)-1<<53, true
					if !b.Sound() {
						seen["damaged"]++
					}
				}
				x.stored = &b
				pipe.Set(ctx, key, b.Pack(), time.Hour)
			}
			x.now = time.Now().UnixMicro()
			x.answer = pipe.EvalSha(ctx, sha, []string{key}, Pack(x.c.Arguments()...), x.now/1e6, x.now%1e6)
			x.after = pipe.Get(ctx, key)
			x.ttl = pipe.PTTL(ctx, key)
		}
		if _, err := pipe.Exec(ctx); err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		for i := range trials {
			x := &trials[i]
			got := lease.ReplyOf(must1(x.answer.Int64Slice()))
			model := world.FullBucket(x.c.Policy.Rate, x.c.Policy.Burst, x.c.Policy.Version, x.now)
			if x.stored != nil && x.stored.Sound() {
				model = *x.stored
			} else {
				x.stored = nil
			}
			want, changed := model.Execute(callOf(&x.c), x.now)
			if got != lease.Reply(want) {
				t.Fatalf("call %+v on %+v\nscript %+v\nmodel  %+v", x.c, x.stored, got, want)
			}
			if !x.altered && !model.Sound() {
				t.Fatalf("call %+v on %+v\nleaves %+v: more than the burst", x.c, x.stored, model)
			}
			count := func(what string, yes bool) {
				if yes {
					seen[what]++
				}
			}
			count("granted", got.Granted > 0)
			count("leased", got.Leased > 0)
			count("owed", got.Level < 0)
			count("late", x.c.Until > 0 && x.now > x.c.Until && got.Level >= lease.Token)
			count("withheld", model.Withheld > 0)
			if x.stored != nil {
				count("merged", model.Withheld < x.stored.Withheld && x.c.Debt == 0)
				count("stepped", x.stored.RefilledAt-x.now > 1_000_000)
				count("adopted", x.stored.Rate != model.Rate || x.stored.Burst != model.Burst || x.stored.Version != model.Version)
				count("pinned", model.Rate != x.c.Policy.Rate)
				count("aged", x.stored.HeldNow+x.stored.HeldBefore > 0 && x.now/lease.Slice > x.stored.RefilledAt/lease.Slice)
				count("released", x.stored.HeldNow+x.stored.HeldBefore > got.Held-got.Leased && x.now/lease.Slice == x.stored.RefilledAt/lease.Slice)
			}
			if !changed && x.stored == nil {
				continue // stays absent, or something else
			}
			raw, err := x.after.Bytes()
			if err != nil {
				t.Fatalf("no state after %+v: %v", x.c, err)
			}
			if stored := bucketIn(t, raw); stored != model {
				t.Fatalf("call %+v on %+v\nscript leaves %+v\nmodel  leaves %+v", x.c, x.stored, stored, model)
			}
			// Expiry: when as good as absent, and a second more (rounded up to milliseconds).
			last := model.UntilAbsent()
			if changed && last < 1e13 {
				want := time.Duration((last+999)/1000+1000) * time.Millisecond
				if x.ttl.Val() > want || x.ttl.Val() < want-5*time.Second {
					t.Fatalf("expires in %v, want %v", x.ttl.Val(), want)
				}
			}
		}
		must(client.FlushDB(ctx).Err())
	}
	t.Logf("%d calls: %v", rounds*atOnce, seen)
	for what, n := range seen {
		if n < 100 {
			t.Errorf("%s: only %d", what, n)
		}
	}
}

// Random heartbeats, in a time that stands still, leaps, and is set back, leave the same members and have the same answers.
func TestHeartbeatScriptEqualsModel(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	timed := strings.Replace(HeartbeatText, "redis.call('TIME')", "{ARGV[5], ARGV[6]}", 1)
	script, random, m, now := redis.NewScript(timed), rand.New(rand.NewPCG(5, 6)), world.Members{}, time.Now().UnixMicro()
	must(client.Set(t.Context(), "members", "of another type", 0).Err())
	for range 3_000 {
		now += []int64{0, random.Int64N(20_000), random.Int64N(1_000_000), random.Int64N(2_000_000), 59_000_000, -random.Int64N(9_000_000)}[min(5, random.IntN(40)/7)]
		node, state := fmt.Sprint(random.IntN(9)), []string{"present", "present", "recovering", "leaving"}[random.IntN(4)]
		parts, latest := int64(math.Exp(random.Float64()*11)), now+random.Int64N(1_000_000)-100_000
		want := m.Beat(node, state, parts, latest, now)
		got, err := script.Run(t.Context(), client, []string{"members"}, node, state, parts, latest, now/1_000_000, now%1_000_000).Int64Slice()
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s is %s, parts %d, latest %d: script %d, %v, model %d", node, state, parts, latest-now, got, err, want)
		}
		stored := world.Members{}
		for _, z := range client.ZRangeWithScores(t.Context(), "members", 0, -1).Val() {
			stored[z.Member.(string)] = int64(z.Score)
		}
		if !maps.Equal(stored, m) {
			t.Fatalf("%s is %s: script leaves %v, model %v", node, state, stored, m)
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
