//go:build soak

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// changesOfCopies are what writers do to the list of a workspace.
var changesOfCopies = []string{
	"INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'Item ' || g, now() - random() * interval '1 day' FROM generate_series(1, 20) g",
	"UPDATE items SET name = name || '+' WHERE workspace_id = $1 AND random() < 0.02",
	"UPDATE items SET name = 'Item ' || (random() * 1000)::int WHERE workspace_id = $1 AND length(name) > 20",
	"UPDATE items SET active = NOT active WHERE workspace_id = $1 AND random() < 0.02",
	"UPDATE items SET type = CASE type WHEN 'GOODS' THEN 'SERVICE' ELSE 'GOODS' END WHERE workspace_id = $1 AND random() < 0.05",
	"UPDATE items SET created_at = now() - random() * interval '1 day' WHERE workspace_id = $1 AND random() < 0.02",
	"DELETE FROM items WHERE workspace_id = $1 AND random() < 0.03",
}

// TestSoakCopies keeps copies of lists for -soak: eight clients of four lists, of two workspaces, ask three nodes in turn. Rows
// change and faults happen meanwhile, and after each the copies are compared with the database.
func TestSoakCopies(t *testing.T) {
	o := newOracle(t, startFleet(t, 3))
	f := o.fleet
	type kept struct {
		*listCopy
		workspace  string
		conditions []string
	}
	var workspaces []string
	var copies []kept
	for range 2 {
		workspace, key := workspaceWithKey(t, f.url)
		workspaces = append(workspaces, workspace)
		execute(t, f.url, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || g FROM generate_series(1, 400) g", workspace)
		for i, conditions := range [][]string{nil, {"type = 'GOODS'"}} {
			for _, limit := range []int{20, 100} {
				path := fmt.Sprintf("/v1/items?limit=%d%s", limit, []string{"", "&type=goods"}[i])
				copies = append(copies, kept{newCopy(key, path), workspace, conditions})
			}
		}
	}
	faults := slices.Concat(faultsOfPostgres, faultsOfRedisAndNodes)
	t.Logf("seed %d", *soakSeed)
	r := rand.New(rand.NewPCG(*soakSeed, 0))
	compared, whole := 0, 0
	for ends := time.Now().Add(*soakFor); time.Now().Before(ends) && !t.Failed(); {
		running, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i, workspace := range workspaces {
			seed := r.Uint64()
			all.Go(func() { changeRows(running, f.url, workspace, rand.New(rand.NewPCG(seed, uint64(i)))) })
		}
		for i, c := range copies {
			c.nodes = slices.Concat(f.nodes[i%len(f.nodes):], f.nodes[:i%len(f.nodes)])
			all.Go(func() { c.asks(running, t) })
		}
		o.play(t, faults[r.IntN(len(faults))])
		stop()
		all.Wait()
		f.awaitFollowed(t)
		for _, c := range copies {
			c.nodes = f.nodes // of which one may have been started anew
			c.mustBe(t, f.url, c.workspace, c.conditions...)
			compared++
		}
	}
	for _, c := range copies {
		whole += c.mark
	}
	t.Logf("%d copies compared, %d whole lists", compared, whole)
}

// changeRows changes rows of a workspace until ctx ends.
func changeRows(ctx context.Context, url, workspace string, r *rand.Rand) {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			pause(readPause)
			continue
		}
		for err == nil && ctx.Err() == nil {
			_, err = conn.Exec(context.WithoutCancel(ctx), changesOfCopies[r.IntN(len(changesOfCopies))], workspace)
			pause(2 * readPause)
		}
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}
