package sandboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"listedge/sandbox"
)

// RedisOptions are those of the program's clients but for the timeouts, which
// are long: what keeps a request short is the code under test.
func RedisOptions(addresses ...string) *redis.UniversalOptions {
	const patient = 10 * time.Second
	return &redis.UniversalOptions{
		Addrs: addresses, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patient, ReadTimeout: patient, WriteTimeout: patient,
		PoolTimeout: patient, PoolSize: 64, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// RedisClient makes a client of the server with RedisOptions.
func RedisClient(t testing.TB, server *sandbox.Redis) *redis.Client {
	t.Helper()
	client := redis.NewClient(RedisOptions(server.Addr()).Simple())
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// SilenceRedis keeps clients from logging, for TestMain: dead servers are what
// many tests are about.
func SilenceRedis() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
