package e2e

import (
	"strings"
	"testing"
)

// The tests copy real and unusual rows into the tables, walk them over HTTP, and compare
// every field of every row with the file.

// walk reads all pages of a list, and checks that no page but the last is short, that Link and
// nextCursor lead to the same page, and that no row comes twice.
func (n *testNode) walk(t *testing.T, path, key string, size int) (rows []map[string]any) {
	t.Helper()
	seen := map[any]bool{}
	for next := path; ; {
		a := n.first(t, next, key)
		p := a.page(t)
		for _, row := range p.Data {
			if seen[row["id"]] {
				t.Fatalf("%s: %v comes twice", path, row["id"])
			}
			seen[row["id"]] = true
		}
		rows = append(rows, p.Data...)
		next = a.next(t)
		if !p.Page.HasMore {
			if p.Page.NextCursor != nil || next != "" || len(p.Data) > size {
				t.Fatalf("%s: the last page has %d rows, cursor %v, link %s", path, len(p.Data), p.Page.NextCursor, next)
			}
			return rows
		}
		if len(p.Data) != size {
			t.Fatalf("%s: a page of %d rows, not %d, in the middle", path, len(p.Data), size)
		}
		if !strings.HasSuffix(next, "cursor="+*p.Page.NextCursor) {
			t.Fatalf("%s: cursor %s, link %s", path, *p.Page.NextCursor, next)
		}
	}
}

// walkedWorkspace makes a workspace of 40 items, for walks in pages of one.
func walkedWorkspace(t *testing.T, database string) (workspace string) {
	t.Helper()
	workspace, _ = workspaceWithKey(t, database)
	execute(t, database, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 40) n", workspace)
	return workspace
}

// The first page of a cold walk costs a query, and so does every fourth one behind it.
func TestAColdWalkCostsAQueryForFourPages(t *testing.T) {
	for _, mode := range []string{"30s", "0"} { // with so long a bound no proof comes too late on a busy machine
		t.Run("freshness bound "+mode, func(t *testing.T) {
			t.Parallel()
			database := database(t)
			key := newKeyFor(t, database, walkedWorkspace(t, database), "--rate", "0.001", "--burst", "1000")
			n := startNode(t, database, "--freshness-bound", mode, "--cache-ttl", "1m")
			within(t, patience, "pages are fresh by proof or by age", func() bool { return n.mode() != "untrusted" })
			pages := len(n.walk(t, "/v1/items?limit=1", key, 1))
			fetched := n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`)
			if most := 1 + float64(pages)/4; pages < 30 || fetched > most {
				t.Errorf("%v queries for %d pages", fetched, pages)
			}
		})
	}
}
