package e2e

import (
	"syscall"
	"testing"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// A node without requests knows which of its servers answer.
func TestMetricsOfServers(t *testing.T) {
	t.Parallel()
	primary, address := privateDatabase(t)
	standby := sandboxtest.Standby(t, primary, nil)
	redis := sandboxtest.Redis(t)
	n := startNode(t, address, "--replica-url", standby.URL("listedge"), "--redis-url", redis.URL())
	is := func(what string, up float64, name string, labels ...string) {
		t.Helper()
		within(t, patience, what, func() bool { return n.metric(t, name, labels...) == up })
	}
	const postgres = "listedge_postgres_up"
	first, replica := `server="primary"`, `server="`+standby.Addr()+`"`
	is("the primary answers", 1, postgres, first)
	is("the replica answers", 1, postgres, replica)
	is("Redis answers", 1, "listedge_redis_up")
	for _, server := range []*sandbox.Postgres{standby, primary} {
		must(server.Kill(syscall.SIGQUIT))
	}
	must(redis.Kill())
	is("the replica is down", 0, postgres, replica)
	is("the primary is down", 0, postgres, first)
	is("Redis is down", 0, "listedge_redis_up")
	must(primary.Restart(t.Context()))
	is("the primary is back", 1, postgres, first)
	if n.metric(t, postgres, replica) != 0 {
		t.Error("the replica is said to be back")
	}
}
