package stream

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"listedge/sandbox"
	"listedge/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // dead servers are part of the tests
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// patient is a limit for what is not about the limit.
const patient = 10 * time.Second

// startRedis starts a server and makes a client of the kind the program makes,
// but for its timeouts: only the callers' own count.
func startRedis(t testing.TB) (*sandbox.Redis, *redis.Client) {
	t.Helper()
	server := sandboxtest.Redis(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patient, ReadTimeout: patient, WriteTimeout: patient, PoolTimeout: patient, PoolSize: 64, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}
