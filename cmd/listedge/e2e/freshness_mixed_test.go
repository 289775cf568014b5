package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// These tests are about nodes that share their Redis with nodes on another server or database.

// mixedForms are the ways to write that need no settings of the server.
var mixedForms = []form{inPlace, inPlace, deleteAndInsert}

// askAlways requests the oracle's pages from a node until stop is called, so that the node
// stores in Redis what it reads. It ignores the responses.
func (o *oracle) askAlways(n *testNode) (stop func()) {
	done := make(chan struct{})
	var asking sync.WaitGroup
	for _, h := range o.histories {
		asking.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_, _ = n.try("GET", "/v1/items?limit=50", h.key)
					pause(readPause)
				}
			}
		})
	}
	return func() { close(done); asking.Wait() }
}

// describe formats a response for the message of a failed test.
func describe(a *answer) string {
	if a == nil {
		return "none"
	}
	return fmt.Sprintf("%s, Cache-Status %q: %.300s", a.Status, a.Header.Get("Cache-Status"), a.body)
}

// only is a fleet of one node, for the oracle.
func only(n *testNode, databaseURL string) *fleet {
	return &fleet{url: databaseURL, nodes: []*testNode{n}}
}

// After a fail-over the old primary still runs, and one of two nodes is connected to it. The
// node on the new primary serves nothing of the old one, and the fleet keeps the new
// primary's epoch.
func TestAnOldPrimaryDoesNotReachNodesOnTheNewOne(t *testing.T) {
	t.Parallel()
	old, address := privateDatabase(t)
	next := sandboxtest.Standby(t, old, nil)
	redis := sandboxtest.Redis(t)
	u := must1(url.Parse(address))
	u.Host = sandboxtest.StartRelay(t, old.Addr()).Addr()
	o := newOracle(t, only(nil, address))
	o.forms = mixedForms
	left := startFollowed(t, u.String(), "--redis-url", redis.URL())
	promoted := next.URL("listedge")
	for _, h := range o.histories {
		awaitItem(t, promoted, h.workspace.String())
	}
	execute(t, promoted, "SELECT pg_promote()")
	right := startFollowed(t, promoted, "--redis-url", redis.URL())
	o.fleet = only(right, promoted)
	o.fleet.nodes = append(o.fleet.nodes, left)
	epochs := func() float64 { return right.metric(t, "listedge_freshness_resyncs_total", `cause="epoch"`) }
	before := epochs()
	o.run(t, "split brain", func() { o.judges(t, 2*during) })
	if n := epochs() - before; n != 0 {
		t.Errorf("the epoch changed %v times", n)
	}
	const why = "the database server is on timeline 1; the fleet follows timeline 2"
	within(t, patience, "the node on the old primary says why", func() bool {
		return strings.Contains(left.check(t, "timeline"), why) && strings.Contains(left.err.String(), why)
	})
	if said := right.check(t, "timeline"); said != "ok" {
		t.Errorf("the node on the new primary says %q", said)
	}
	says(t, []string{"--database-url", address, "--redis-url", redis.URL()}, exitFailed,
		doctor.Finding{Subject: "timeline", Level: doctor.Fail, Text: why})

	// A node that starts there learns which timeline the fleet follows before it
	// takes an answer: also one whose follower cannot connect, or does so late.
	left.stop()
	revoked := o.histories[0].key
	execute(t, promoted, "UPDATE api_keys SET revoked_at = now() WHERE key_prefix = $1", revoked[:9])
	nowhere := sandboxtest.StartRelay(t, old.Addr())
	nowhere.Lose(true)
	hung := *u
	hung.Host = nowhere.Addr()
	_, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	for name, start := range map[string][]string{
		"once":             {u.String()},
		"once more":        {u.String()},
		"a hung follower":  {u.String(), "--replication-url", hung.String()},
		"through a pooler": {pooled},
	} {
		t.Run("a node starts: "+name, func(t *testing.T) {
			n := launchNode(t, start[0], append(start[1:], "--redis-url", redis.URL())...)
			requests := 0
			within(t, patience, "it says why, after enough requests", func() bool {
				for _, key := range []string{revoked, o.histories[1].key} {
					if a, err := n.try("GET", "/v1/items?limit=50", key); err != nil || a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
						t.Fatalf("answer %d: %s (%v)", requests, describe(a), err)
					}
					requests++
				}
				return requests > 30 && strings.Contains(n.check(t, "timeline"), why)
			})
			if status, r := n.readiness(t); status != 503 || r.Ready {
				t.Errorf("ready: %+v", r)
			}
		})
	}
}

// Two databases of one Postgres, one a copy of the other: all ids are equal.
// Their fleets have different names, and share nothing in their Redis.
func TestTwoDatabasesShareARedis(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	address := database(t)
	o := newOracle(t, only(nil, address))
	o.forms = mixedForms
	few := newKeyFor(t, address, o.histories[0].workspace.String(), "--rate", "0.001", "--burst", "6")
	p := shared.Server()
	u := must1(url.Parse(address))
	clone := p.URL(postgrestest.Copy(t, p, strings.TrimPrefix(u.Path, "/")))
	one := startFollowed(t, address, "--redis-url", server.URL())
	other := startNode(t, clone, "--redis-url", server.URL(), "--region", "copy")
	for _, n := range []*testNode{one, other} {
		within(t, patience, "both are followed at once", func() bool {
			return n.mode() == "followed" && n.metric(t, "listedge_freshness_follower") == 1
		})
	}
	o.fleet = only(other, clone)
	stop := o.askAlways(one)
	o.run(t, "two databases", func() { o.judges(t, 2*during) })
	stop()
	for _, n := range []*testNode{one, other} {
		admitted := 0
		for range 8 {
			if n.get(t, "/v1/items", few).StatusCode == 200 {
				admitted++
			}
		}
		if nodes := n.metric(t, "listedge_limiter_nodes"); admitted == 0 || nodes != 1 {
			t.Errorf("%d requests are admitted for a burst of 6, by %v nodes", admitted, nodes)
		}
	}
	says(t, []string{"--database-url", clone, "--redis-url", server.URL(), "--region", "copy", "--node", other.admin}, exitFine,
		doctor.Finding{Subject: "fleet size", Level: doctor.OK, Text: "1 on all"})
	client := redistest.Client(t, server)
	for _, prefix := range []string{"listedge:", "listedge:copy:"} {
		if n := client.HLen(t.Context(), prefix+"{changes}:nodes").Val(); n != 1 {
			t.Errorf("%d nodes in the roster of %s", n, prefix)
		}
	}
	nodes := []string{"--node", strings.TrimPrefix(one.admin, "http://") + "," + strings.TrimPrefix(other.admin, "http://")}
	says(t, append(nodes, "--database-url", address, "--redis-url", server.URL()), exitFailed,
		doctor.Finding{Subject: "fleet database", Level: doctor.Fail})
}
