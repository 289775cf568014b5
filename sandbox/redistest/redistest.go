// Package redistest makes clients of a private Redis, for tests. It is apart
// from sandboxtest, which needs no client.
package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"listedge/sandbox"
	"listedge/sandbox/sandboxtest"
)

// Options are those of the program's clients but for the timeouts, which
// are long: what keeps a request short is the code under test.
func Options(addresses ...string) *redis.UniversalOptions {
	const patient = 10 * time.Second
	return &redis.UniversalOptions{
		Addrs: addresses, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patient, ReadTimeout: patient, WriteTimeout: patient,
		PoolTimeout: patient, PoolSize: 64, DisableIdentity: true, Protocol: 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Start starts a server and makes a client of it.
func Start(t testing.TB) (*sandbox.Redis, *redis.Client) {
	t.Helper()
	server := sandboxtest.Redis(t)
	return server, Client(t, server)
}

// Client makes a client of the server with Options.
func Client(t testing.TB, server *sandbox.Redis) *redis.Client {
	t.Helper()
	client := redis.NewClient(Options(server.Addr()).Simple())
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Silence keeps clients from logging, for TestMain: dead servers are what
// many tests are about.
func Silence() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
