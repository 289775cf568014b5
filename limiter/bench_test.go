package limiter

import (
	"fmt"
	"testing"
	"time"
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

// What a request pays for Redis while there are no leases.
func BenchmarkRedisPerRequest(b *testing.B) {
	_, client := startRedis(b)
	l := open(b, Options{Redis: client, Budget: time.Second})
	key := l.Bucket(KeyBucket("w", "k"), policy(b, 1e6, 1e6))
	workspace := l.Bucket(WorkspaceBucket("w"), policy(b, 1e6, 1e6))
	b.ReportAllocs()
	for b.Loop() {
		if d := l.Take(key, workspace); !d.Allowed || d.Source != SourceRedis {
			b.Fatalf("%+v", d)
		}
	}
}

// What a request pays while Redis is away and the breaker open.
func BenchmarkFallback(b *testing.B) {
	server, client := startRedis(b)
	l := open(b, Options{Redis: client})
	key := l.Bucket(KeyBucket("w", "k"), policy(b, 1e6, 1e6))
	if err := server.Kill(); err != nil {
		b.Fatal(err)
	}
	for !l.away.Load() {
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
