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
	is := func(what string, want float64, name string, labels ...string) {
		t.Helper()
		within(t, patience, what, func() bool { return n.metric(t, name, labels...) == want })
	}
	const up = "listedge_check_up"
	first, replica, cache := `check="postgres"`, `check="replica `+standby.Addr()+`"`, `check="redis"`
	is("the primary answers", 1, up, first)
	is("the replica answers", 1, up, replica)
	is("Redis answers", 1, up, cache)
	for _, server := range []*sandbox.Postgres{standby, primary} {
		must(server.Kill(syscall.SIGQUIT))
	}
	must(redis.Kill())
	is("the replica is down", 0, up, replica)
	is("the primary is down", 0, up, first)
	is("Redis is down", 0, up, cache)
	must(primary.Restart(t.Context()))
	is("the primary is back", 1, up, first)
	if n.metric(t, up, replica) != 0 {
		t.Error("the replica is said to be back")
	}
}
