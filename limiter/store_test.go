package limiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// harness is a store under the suite, and time passing in it.
type harness struct {
	store
	life int64 // of an epoch
	pass func(t *testing.T, key string, d time.Duration)
}

// TestStores is the one suite for both places a bucket can live in.
func TestStores(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		var now atomic.Int64
		suite(t, harness{
			store: newLocalStore(now.Load, 1<<20),
			pass:  func(_ *testing.T, _ string, d time.Duration) { now.Add(d.Microseconds()) },
		})
	})
	t.Run("redis", func(t *testing.T) {
		_, client := startRedis(t)
		suite(t, harness{
			store: newRedisStore(client, new(redisStats)), life: leaseLife,
			// Redis goes by its own clock: move the bucket into the past instead.
			pass: func(t *testing.T, key string, d time.Duration) { age(t, client, key, d) },
		})
	})
}

func age(t *testing.T, client *redis.Client, key string, d time.Duration) {
	t.Helper()
	ctx := context.Background()
	raw, err := client.Get(ctx, key).Bytes()
	if err == redis.Nil {
		return // a full bucket stays full
	}
	if err != nil {
		t.Fatal(err)
	}
	s := unpack(t, raw)
	s.ts -= d.Microseconds()
	if err := client.Set(ctx, key, pack(s), redis.KeepTTL).Err(); err != nil {
		t.Fatal(err)
	}
}

func suite(t *testing.T, h harness) {
	made := 0
	bucket := func() string {
		made++
		return KeyBucket("suite", fmt.Sprint(made))
	}
	visit := func(t *testing.T, c call) reply {
		t.Helper()
		c.life = h.life
		calls := []call{c}
		if err := h.visit(context.Background(), calls); err != nil {
			t.Fatal(err)
		}
		return calls[0].reply
	}
	slow := policy(t, 0.001, 10) // a token in 1,000 s: real time does not matter

	t.Run("an absent bucket is full", func(t *testing.T) {
		b := bucket()
		r := visit(t, call{key: b, policy: slow})
		if r.remaining() != 10 || r.level != slow.units() || r.wait != 0 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("exactly the burst, then a wait", func(t *testing.T) {
		b := bucket()
		for i := range int64(10) {
			if r := visit(t, call{key: b, policy: slow, need: 1}); r.granted != 1 || r.remaining() != 9-i {
				t.Fatalf("take %d: %+v", i, r)
			}
		}
		r := visit(t, call{key: b, policy: slow, need: 1})
		if r.granted != 0 || r.remaining() != 0 || r.wait <= 990e6 || r.wait > 1000e6 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("as many as there are", func(t *testing.T) {
		b := bucket()
		if r := visit(t, call{key: b, policy: slow, need: 25}); r.granted != 10 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("time refills, up to the burst", func(t *testing.T) {
		b := bucket()
		visit(t, call{key: b, policy: slow, need: 10})
		h.pass(t, b, 3_000*time.Second)
		if r := visit(t, call{key: b, policy: slow, need: 4}); r.granted != 3 {
			t.Fatalf("after three tokens' time: %+v", r)
		}
		h.pass(t, b, 1_000_000*time.Second)
		if r := visit(t, call{key: b, policy: slow}); r.remaining() != 10 {
			t.Fatalf("after a long time: %+v", r)
		}
	})
	t.Run("refused costs nothing", func(t *testing.T) {
		b := bucket()
		visit(t, call{key: b, policy: slow, need: 10})
		for range 9 {
			h.pass(t, b, 100*time.Second)
			if r := visit(t, call{key: b, policy: slow, need: 1}); r.granted != 0 {
				t.Fatalf("%+v", r)
			}
		}
		h.pass(t, b, 100*time.Second)
		if r := visit(t, call{key: b, policy: slow, need: 1}); r.granted != 1 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("given back, never above the burst", func(t *testing.T) {
		b := bucket()
		visit(t, call{key: b, policy: slow, need: 2})
		if r := visit(t, call{key: b, policy: slow, ret: 1}); r.remaining() != 9 {
			t.Fatalf("%+v", r)
		}
		if r := visit(t, call{key: b, policy: slow, ret: 7}); r.level != slow.units() {
			t.Fatalf("%+v", r)
		}
		if r := visit(t, call{key: bucket(), policy: slow, ret: 7}); r.level != slow.units() {
			t.Fatalf("to a full one: %+v", r)
		}
	})
	t.Run("debt comes before the grant", func(t *testing.T) {
		b := bucket()
		if r := visit(t, call{key: b, policy: slow, need: 10, debt: 7}); r.granted != 3 {
			t.Fatalf("%+v", r)
		}
		if r := visit(t, call{key: bucket(), policy: slow, need: 1, debt: 70}); r.granted != 0 || r.level != -2*slow.p || r.remaining() != 0 {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("calls are carried out in order", func(t *testing.T) {
		b := bucket()
		calls := []call{
			{key: b, policy: slow, life: h.life, need: 8}, {key: b, policy: slow, life: h.life, need: 8},
			{key: b, policy: slow, life: h.life, ret: 1}, {key: b, policy: slow, life: h.life, need: 8}}
		if err := h.visit(context.Background(), calls); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int64{8, 2, 0, 1} {
			if calls[i].granted != want {
				t.Fatalf("call %d: %+v", i, calls[i].reply)
			}
		}
	})
	t.Run("a policy change keeps the filled share", func(t *testing.T) {
		b := bucket()
		older, newer := slow, policy(t, 0.0007, 1000)
		older.Version, newer.Version = 7, 8
		visit(t, call{key: b, policy: older, need: 6})
		if r := visit(t, call{key: b, policy: newer}); r.remaining() != 400 || r.version != 8 {
			t.Fatalf("%+v", r)
		}
		visit(t, call{key: b, policy: newer, need: 1})
		if r := visit(t, call{key: b, policy: older, need: 1}); r.granted != 1 || r.remaining() != 398 || r.version != 8 {
			t.Fatalf("an older policy: %+v", r)
		}
	})
	t.Run("exactly the burst under concurrency", func(t *testing.T) {
		b := bucket()
		p := policy(t, 0.001, 100)
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 40 {
					calls := []call{{key: b, policy: p, life: h.life, need: 1}}
					if err := h.visit(context.Background(), calls); err != nil {
						t.Error(err)
					}
					granted.Add(calls[0].granted)
				}
			})
		}
		all.Wait()
		if granted.Load() != 100 {
			t.Fatalf("%d of 100 granted", granted.Load())
		}
	})
}
