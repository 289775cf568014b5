package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
)

func BenchmarkInProcess(b *testing.B) {
	for _, burst := range []int64{5, 1 << 30} { // nearly all refused, all admitted
		b.Run(fmt.Sprint("burst=", burst), func(b *testing.B) {
			l := open(b, Options{})
			key := l.Bucket(KeyBucket("w", "k"), policy(b, 50, burst))
			workspace := l.Bucket(WorkspaceBucket("w"), policy(b, 500, burst))
			b.ReportAllocs()
			for b.Loop() {
				l.Take(key, workspace)
			}
		})
	}
}

func BenchmarkInProcessParallel(b *testing.B) {
	l := open(b, Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := l.Bucket(KeyBucket("w", fmt.Sprintf("%p", pb)), policy(b, 50, 100))
		for pb.Next() {
			l.Take(key, nil)
		}
	})
}

// A leased decision, one and two buckets, Redis behind it.
func BenchmarkLeased(b *testing.B) {
	for _, buckets := range []string{"one bucket", "two buckets"} {
		b.Run(buckets, func(b *testing.B) {
			_, client := startRedis(b)
			l := open(b, Options{Redis: client, Budget: time.Second})
			key := l.Bucket(KeyBucket("w", "k"), policy(b, 1e9, 1<<31))
			workspace := l.Bucket(WorkspaceBucket("w"), policy(b, 1e9, 1<<31))
			if buckets == "one bucket" {
				workspace = nil
			}
			for range 2_000_000 { // until the leases are as large as the demand
				l.Take(key, workspace)
			}
			b.ReportAllocs()
			for b.Loop() {
				if !l.Take(key, workspace).Allowed {
					b.Fatal("refused")
				}
			}
			s := l.Stats()
			b.ReportMetric(float64(s.RedisCalls)/float64(s.Allowed.Lease+s.Allowed.Redis), "calls/request")
		})
	}
}

// What it saves: the same script called for every request, both buckets in one
// pipeline, and go-redis/redis_rate.
func BenchmarkPerRequestScript(b *testing.B) {
	_, client := startRedis(b)
	store, p := newRedisStore(client, new(redisStats)), policy(b, 1e9, 1<<31)
	b.ReportAllocs()
	for b.Loop() {
		calls := []call{{key: KeyBucket("w", "k"), policy: p, life: leaseLife, need: 1}, {key: WorkspaceBucket("w"), policy: p, life: leaseLife, need: 1}}
		if err := store.visit(b.Context(), calls); err != nil || calls[0].granted+calls[1].granted != 2 {
			b.Fatal(err)
		}
	}
}

func BenchmarkRedisRate(b *testing.B) {
	_, client := startRedis(b)
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: 1e9, Burst: 1 << 31, Period: time.Second}
	b.ReportAllocs()
	for b.Loop() { // one bucket
		if r, err := limiter.Allow(b.Context(), "k", limit); err != nil || r.Allowed != 1 {
			b.Fatal(err)
		}
	}
}

// What a request pays while Redis is away and the breaker open.
func BenchmarkAlone(b *testing.B) {
	server, client := startRedis(b)
	l := open(b, Options{Redis: client})
	key := l.Bucket(KeyBucket("w", "k"), policy(b, 1e6, 1e6))
	if err := server.Kill(); err != nil {
		b.Fatal(err)
	}
	for !l.router.away.Load() {
		l.Take(key, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Take(key, nil)
	}
}

func BenchmarkNewPolicy(b *testing.B) {
	for b.Loop() {
		policy(b, 5.0/60, 100)
	}
}
