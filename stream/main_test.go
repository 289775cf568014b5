package stream

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"listedge/sandbox"
	"listedge/sandbox/redistest"
	"listedge/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a limit for what is not about the limit.
const patient = 10 * time.Second

// startRedis starts a server and makes a client of it.
func startRedis(t testing.TB) (*sandbox.Redis, *redis.Client) {
	t.Helper()
	server := sandboxtest.Redis(t)
	return server, redistest.Client(t, server)
}
