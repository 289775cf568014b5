package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// fleet is nodes, as processes, on a Postgres and a Redis of their own, and maybe
// a delayed standby.
type fleet struct {
	postgres *sandbox.Postgres
	standby  *sandbox.Postgres // nil = there is none
	redis    *sandbox.Redis    // nil = flags name another
	url      string
	nodes    []*testNode
	flags    []string
}

// replayDelay is how far the standby is behind: more than the pauses of the
// busiest writers, less than those of the others.
const replayDelay = 150 * time.Millisecond

func startFleet(t *testing.T, nodes int, flags ...string) *fleet {
	t.Helper()
	f := fleetOf(t, flags...)
	f.standby = sandboxtest.Standby(t, f.postgres, map[string]string{"recovery_min_apply_delay": fmt.Sprintf("%dms", replayDelay.Milliseconds())})
	f.startNodes(t, nodes)
	return f
}

// fleetOf returns a fleet without nodes.
func fleetOf(t *testing.T, flags ...string) *fleet {
	t.Helper()
	f := &fleet{redis: sandboxtest.Redis(t), flags: flags}
	f.postgres, f.url = privateDatabaseWith(t, map[string]string{"max_prepared_transactions": "20"})
	return f
}

func (f *fleet) startNodes(t *testing.T, nodes int) {
	t.Helper()
	for range nodes {
		f.nodes = append(f.nodes, f.start(t))
	}
}

func (f *fleet) start(t *testing.T) *testNode {
	t.Helper()
	args := slices.Clone(f.flags)
	if f.standby != nil {
		args = append(args, "--replica-url", f.standby.URL("listedge"))
	}
	var toRedis *sandboxtest.Relay
	if f.redis != nil {
		toRedis = sandboxtest.StartRelay(t, f.redis.Addr())
		args = append(args, "--redis-url", "redis://"+toRedis.Addr())
	}
	n := launchNode(t, f.url, args...)
	n.toRedis = toRedis
	n.awaitReady(t)
	return n
}

func (n *testNode) mode() string {
	r, err := http.Get(n.admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	var state struct{ Mode string }
	_ = json.NewDecoder(r.Body).Decode(&state)
	return state.Mode
}

func (n *testNode) awaitFollowed(t *testing.T) {
	t.Helper()
	within(t, patience, "changes are followed", func() bool { return n.mode() == "followed" })
}

// follower is the node that holds the slot.
func (f *fleet) follower(t *testing.T) (found *testNode) {
	t.Helper()
	within(t, patience, "somebody follows", func() bool {
		for _, n := range f.nodes {
			if !n.stopped && n.metric(t, "listedge_freshness_follower") == 1 {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (f *fleet) awaitFollowed(t *testing.T) {
	t.Helper()
	for _, n := range f.nodes {
		if !n.stopped {
			n.awaitFollowed(t)
		}
	}
}

// bystander is a running node that does not hold the slot.
func (f *fleet) bystander(t *testing.T) *testNode {
	t.Helper()
	follower := f.follower(t)
	for _, n := range f.nodes {
		if !n.stopped && n != follower {
			return n
		}
	}
	t.Fatal("all nodes are stopped but one")
	return nil
}

// sum adds a metric of all running nodes up.
func (f *fleet) sum(t *testing.T, name string, parts ...string) (sum float64) {
	t.Helper()
	for _, n := range f.nodes {
		if !n.stopped {
			sum += n.metric(t, name, parts...)
		}
	}
	return sum
}
