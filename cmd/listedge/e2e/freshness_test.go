package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
)

// TestFreshnessUnderFaults runs the oracle with every fault except those of the soak.
func TestFreshnessUnderFaults(t *testing.T) {
	t.Run("of Postgres", func(t *testing.T) {
		t.Parallel()
		o := newOracle(t, startFleet(t, 2))
		o.playAll(t, faultsOfPostgres)
		o.standbyWasTried(t)
	})
	t.Run("of Redis and nodes", func(t *testing.T) {
		t.Parallel()
		f := fleetOf(t)
		f.startNodes(t, 3)
		newOracle(t, f).playAll(t, faultsOfRedisAndNodes)
	})
}

func (o *oracle) playAll(t *testing.T, faults []fault) {
	for _, x := range faults {
		o.play(t, x)
	}
	t.Logf("%d answers to lists that are rarely asked for", o.others.Load())
}

// standbyWasTried fails the test if the standby served no page.
func (o *oracle) standbyWasTried(t *testing.T) {
	o.fleet.awaitFollowed(t)
	n := o.fleet.sum(t, "listedge_origin_standby_fetches_total", `outcome="ok"`)
	if t.Logf("queries to the standby: %v", n); n == 0 {
		t.Error("the standby was never queried")
	}
}

// TestFreshnessOfLostCommits: a commit that is lost in a crash is not shown afterwards. An
// asynchronous commit is read by one request, and then Postgres crashes before its WAL is
// flushed. If the WAL was flushed already, the test tries again.
func TestFreshnessOfLostCommits(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
	for attempt := 1; attempt <= 20; attempt++ {
		f.awaitFollowed(t)
		workspace, key := workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 1)", workspace)
		n := f.nodes[attempt%len(f.nodes)]
		// fresh sends requests until the response is not marked as stale.
		fresh := func(query string, headers ...string) (body string) {
			within(t, patience, "a fresh page", func() bool {
				a, err := n.try("GET", "/v1/items?limit="+query, key, headers...)
				if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
					return false
				}
				body = string(a.body)
				return true
			})
			return body
		}
		const old, lost = `"stockOnHand":"1"`, `"stockOnHand":"2"`
		within(t, patience, "the row", func() bool { return strings.Contains(fresh("10"), old) }) // the standby is behind
		conn := connect(t, f.url)
		must1(conn.Exec(t.Context(), "SET synchronous_commit = off"))
		must1(conn.Exec(t.Context(), "UPDATE items SET stock_on_hand = 2 WHERE workspace_id = $1", workspace))
		shown := strings.Contains(fresh("20", "Cache-Control: no-cache"), lost)
		_ = f.postgres.Kill(syscall.SIGQUIT)
		must(f.postgres.Restart(context.Background()))
		var value int
		must(connect(t, f.url).QueryRow(t.Context(), "SELECT stock_on_hand FROM items WHERE workspace_id = $1", workspace).Scan(&value))
		if !shown || value != 1 {
			continue // it was not lost
		}
		afterBound()
		f.awaitFollowed(t)
		if body := fresh("20"); !strings.Contains(body, old) {
			t.Errorf("attempt %d: a commit that was lost is shown still: %s", attempt, body)
		}
		return
	}
	t.Error("no commit was lost")
}
