package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// walker reads a list page by page, and compares each page with the one that a node without a
// cache returns.
type walker struct {
	node, reference *testNode
	key             string
	committed       time.Time // the last change
	statuses        map[string]int
}

// walk reads all pages of the list. A page may omit the last change only if it was requested
// before the freshness bound was over.
func (w *walker) walk(t *testing.T, list string) (pages, queries int) {
	t.Helper()
	for path := list; ; pages++ {
		var got *answer
		var page page
		for {
			asked := time.Now()
			got = w.node.get(t, path, w.key)
			page = got.page(t)
			want := w.reference.get(t, path, w.key)
			if bytes.Equal(withoutID(t, got), withoutID(t, want)) && got.Header.Get("ETag") == want.Header.Get("ETag") && got.Header.Get("Link") == want.Header.Get("Link") {
				break
			}
			if asked.Sub(w.committed) > walkBound {
				t.Fatalf("%s\n%s\n%s\n%s", path, got.Header.Get("Cache-Status"), got.body, want.body)
			}
		}
		status := cacheStatus(got.Header)
		if w.statuses[status]++; strings.Contains(status, "fwd=") {
			queries++
		}
		if page.Page.NextCursor == nil {
			return pages + 1, queries
		}
		path = list + "&cursor=" + url.QueryEscape(*page.Page.NextCursor)
	}
}

// walkBound is the nodes' --freshness-bound: so long that a proof that a busy machine delays costs
// no query. The oracle shows the default.
const walkBound = 10 * time.Second

// withoutID is the page up to its request id.
func withoutID(t *testing.T, a *answer) []byte {
	t.Helper()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", a.Status, a.body)
	}
	page, _, ok := bytes.Cut(a.body, []byte(`,"requestId":`))
	if !ok {
		t.Fatalf("%s", a.body)
	}
	return page
}

func startWalker(t *testing.T, items int, flags ...string) (w *walker, workspace, url string) {
	url = database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, `INSERT INTO items (workspace_id, name, track_stock, type, created_at)
		SELECT $1, 'Item ' || lpad(n::text, 6, '0'), n % 3 = 0, CASE WHEN n % 4 = 0 THEN 'SERVICE' ELSE 'GOODS' END, '2020-01-01'::timestamptz + n / 2 * interval '1 s'
		FROM generate_series(1, $2::int) n`, workspace, items)
	w = &walker{node: startNode(t, url, append(flags, "--freshness-bound", walkBound.String())...), reference: startNode(t, url, "--freshness-bound", "0", "--cache-ttl", "0s", "--max-stale", "0s"), key: key, statuses: map[string]int{}}
	within(t, patience, "followed", func() bool { return w.node.mode() == "followed" })
	return w, workspace, url
}

// While rows change, every page of every walk equals the one in the database, and a change
// costs no query: what is read are the lists that were not walked before.
func TestWalksAmongChangesAreWhatTheDatabaseHas(t *testing.T) {
	t.Parallel()
	w, workspace, url := startWalker(t, 120)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	lists := []string{"/v1/items?", "/v1/items?sort=name&", "/v1/items?stock=tracked&", "/v1/items?type=services&sort=name&", "/v1/items?search=item%200&"}
	changes := []string{
		`INSERT INTO items (workspace_id, name, created_at, track_stock) VALUES ($1, 'New ' || $2::int, '2030-01-01'::timestamptz + $2 * interval '1 s', $2 % 2 = 0)`,
		`INSERT INTO items (workspace_id, name, created_at) VALUES ($1, 'Item 0000' || $2::int, '2020-01-01'::timestamptz + $2 * interval '1 s')`,
		`UPDATE items SET stock_on_hand = stock_on_hand + 1 WHERE workspace_id = $1 AND id = (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::int) LIMIT 1)`,
		`UPDATE items SET name = 'Item ' || lpad($2::int::text, 6, '0') WHERE workspace_id = $1 AND id = (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::int) LIMIT 1)`,
		`UPDATE items SET active = NOT active WHERE workspace_id = $1 AND id IN (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::int) LIMIT 2)`,
		`DELETE FROM items WHERE workspace_id = $1 AND id = (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::int) LIMIT 1)`,
		`UPDATE items SET track_stock = NOT track_stock, name = lower(name) || 'é' WHERE workspace_id = $1 AND id = (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::int) LIMIT 1)`,
	}
	const walks, most = 200, 100
	for range walks {
		execute(t, url, changes[random.IntN(len(changes))], workspace, random.IntN(120))
		w.committed = time.Now()
		w.walk(t, lists[random.IntN(len(lists))]+"limit="+[]string{"7", "10", "13"}[random.IntN(3)])
	}
	if queries := w.node.metric(t, "listedge_cache_fills_total"); queries > most {
		t.Errorf("%v queries: %v", queries, w.statuses)
	}
	t.Logf("%v", w.statuses)
}

// A node that starts takes what others have read out of Redis, and applies what has changed
// since.
func TestANodeThatStartsFindsAWarmTier(t *testing.T) {
	t.Parallel()
	redis := sandboxtest.Redis(t).URL()
	w, workspace, url := startWalker(t, 400, "--redis-url", redis)
	const list = "/v1/items?limit=10" // no change moves its pages
	w.walk(t, list)
	for n := range 5 {
		execute(t, url, "UPDATE items SET name = 'É ' || name, stock_on_hand = $2::text::numeric WHERE id = (SELECT id FROM items WHERE workspace_id = $1 ORDER BY md5(id::text || $2::text) LIMIT 1)", workspace, fmt.Sprint(n))
		w.committed = time.Now()
	}
	within(t, patience, "a node that walks with few queries", func() bool { // a busy machine's Redis may be too slow for one
		w.node = startNode(t, url, "--redis-url", redis, "--freshness-bound", walkBound.String())
		defer w.node.stop()
		within(t, patience, "followed", func() bool { return w.node.mode() == "followed" })
		pages, queries := w.walk(t, list)
		t.Logf("%d queries for %d pages: %v", queries, pages, w.statuses)
		return pages == 40 && queries <= 4 // a cold walk costs 11
	})
}
