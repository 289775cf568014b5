package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// describe writes a description into a file, and returns its name.
func describe(t *testing.T, description string) (file string) {
	t.Helper()
	file = filepath.Join(sandboxtest.Dir(t), "lists.yaml")
	must(os.WriteFile(file, []byte(description), 0o644))
	return file
}

// products is a database with tables that were not made for listedge, prepared as by an operator, and the description of their list.
func products(t *testing.T) (url, description string) {
	t.Helper()
	url = emptyDatabase(t)
	of := listtest.ShapeOf("products")
	execute(t, url, of.SQL)
	file := describe(t, listtest.DescriptionText(of))
	command(t, "migrate", "up", "--lists", file, "--database-url", url)
	command(t, "lists", "plan", "--apply", "--lists", file, "--database-url", url)
	return url, listtest.DescriptionText(of)
}

// resolved are the lists of a description.
func resolved(t *testing.T, url, description string) *list.Set {
	t.Helper()
	return must1(admin.ResolveLists(t.Context(), url, must1(list.Parse("lists.yaml", []byte(description)))))
}

// emptyDatabase returns the URL of a database that has nothing yet.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	p := shared.Server()
	return p.URL(postgrestest.Copy(t, p, "template0"))
}

// A column is described on one node after the other, and described no more, while rows change. Meanwhile nodes with and
// without it are one fleet.
func TestADescribedColumnRollsInAndOut(t *testing.T) {
	t.Parallel()
	url, old := products(t)
	with := strings.Replace(old, "      kind: {enum", "      accountId:\n      kind: {enum", 1)
	lists := map[string]*list.Set{old: resolved(t, url, old), with: resolved(t, url, with)}
	_, key := tenantWithKey(t, url, "7", lists[old])
	execute(t, url, "INSERT INTO shop.products (account_id, title, price_cents, kind) SELECT 7, 'v', g, 'goods' FROM generate_series(1, 40) g")
	redis := sandboxtest.Redis(t).URL()
	start := func(description string) *testNode {
		n := launchNode(t, url, append(lateProofs, "--redis-url", redis, "--lists", describe(t, description))...)
		n.document = documentOf(lists[description])
		n.awaitFollowed(t)
		return n
	}
	nodes, described := []*testNode{start(old), start(old)}, []string{old, old}
	for turn, next := range []string{with, with, old, old} {
		i := turn % 2
		stays := nodes[1-i]
		resets := stays.metric(t, "listedge_freshness_resyncs_total")
		nodes[i].stop()
		execute(t, url, "UPDATE shop.products SET title = title || 'v' WHERE id % 2 = 0")
		nodes[i], described[i] = start(next), next
		execute(t, url, "UPDATE shop.products SET title = title || 'v'")
		var shown [2][]map[string]any
		for at, n := range nodes {
			within(t, patience, "all changes", func() bool {
				shown[at] = n.first(t, "/v1/products?limit=100", key).page(t).Data
				changed := 0
				for _, row := range shown[at] {
					changed += strings.Count(row["title"].(string), "v")
				}
				return len(shown[at]) == 40 && changed == 40+60*(turn+1)
			})
			for _, row := range shown[at] {
				if account, is := row["accountId"]; is != (described[at] == with) || is && fmt.Sprint(account) != "7" {
					t.Errorf("turn %d, node %d: %v", turn, at, row)
				}
				delete(row, "accountId")
			}
		}
		if !reflect.DeepEqual(shown[0], shown[1]) {
			t.Errorf("turn %d: the nodes differ: %v", turn, shown)
		}
		if n := stays.metric(t, "listedge_freshness_resyncs_total") - resets; n != 0 {
			t.Errorf("the node that stays forgot all it knew %v times", n)
		}
	}
}
