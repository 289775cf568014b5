package e2e

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"listedge/origin/apikey"
)

// A flood of unknown keys with right checksums comes from the address of a proxy that is not
// trusted, so from the address of all clients. A client whose valid key this node does not
// know yet is answered all the same, and Postgres gets no more queries than promised.
func TestAFloodOfUnknownKeysLocksNobodyOut(t *testing.T) {
	t.Parallel()
	const clients, newcomers = 16, 50
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	keys := newKeys(t, url, workspace, newcomers)
	n := startNode(t, url)
	before, began := n.metric(t, "listedge_key_queries_total"), time.Now()

	var stop atomic.Bool
	var refused, limited atomic.Int64
	var flood sync.WaitGroup
	end := func() { stop.Store(true); flood.Wait() }
	defer end()
	for range clients {
		flood.Go(func() {
			for !stop.Load() {
				a, err := n.try("GET", "/v1/items", apikey.Generate())
				switch {
				case err != nil:
					t.Error(err)
					return
				case a.StatusCode == 401:
					refused.Add(1)
				case a.StatusCode == 429:
					limited.Add(1)
				case a.StatusCode != 503: // by a machine that is too busy
					t.Errorf("%s: %s", a.Status, a.body)
				}
			}
		})
	}
	within(t, patience, "the address is limited", func() bool { return limited.Load() > 2000 })
	for _, key := range keys {
		within(t, patience, "an answer", func() bool {
			a := n.get(t, "/v1/items", key)
			if a.StatusCode != 200 && a.StatusCode != 503 {
				t.Fatalf("%s: %s", a.Status, a.body)
			}
			return a.StatusCode == 200
		})
	}
	end()
	queries, took := n.metric(t, "listedge_key_queries_total")-before, time.Since(began).Seconds()
	// Queries for unknown keys, for new ones, and to refresh the keys in use.
	if most := 50 + 50*took + newcomers + 2.5*took + 2; queries > most {
		t.Errorf("%v queries in %.1f s, more than %.0f", queries, took, most)
	}
	t.Logf("%d refused and %d limited in %.1f s: %v queries", refused.Load(), limited.Load(), took, queries)
}
