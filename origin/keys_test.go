package origin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// Each key costs one probe of the unique index, whatever the planner knows and the filters are.
func TestRowsOfKeysAreOneProbeEach(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 1)
	exec(t, conn, "INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 100); ANALYZE")
	for _, shape := range listtest.Shapes {
		exec(t, conn, shape.Rows(2, 3_000))
	}
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, active) SELECT $1, md5(n::text)::uuid, 'x', n % 9 > 0
		FROM generate_series(1, 30000) n`, ourWorkspace)
	for _, state := range []string{"analysed while there were few", "analysed"} {
		if state == "analysed" {
			exec(t, conn, "VACUUM ANALYZE")
		}
		shapes, builtIn := explain(t, url, lists), explain(t, url, list.BuiltIn())
		for _, l := range append(lists.Lists[:len(lists.Lists):len(lists.Lists)], listtest.Items) {
			e := shapes
			key := l.Columns[l.Key].Name
			rows, _ := conn.Query(t.Context(), fmt.Sprintf("SELECT (%s)::text FROM (SELECT * FROM %s LIMIT 3000) t ORDER BY random() LIMIT %d",
				list.Quote(key), l.Table.SQL(), mostKeys))
			texts := must1(pgx.CollectRows(rows, pgx.RowTo[string]))
			q := page.Query{List: l, Tenant: l.Owner("1"), Limit: 100}
			switch l.Name {
			case "items":
				e, q.Tenant = builtIn, ourWorkspace
			case "lines":
				q.Tenant = "a"
			}
			if len(l.Filters) > 0 { // the last condition is of an index of its own, where there is such a one
				values := l.Filters[0].Values
				q.Match = values[len(values)-1].Bit
			}
			for range 2 { // the first prepares
				must1(e.origin.FetchRows(within(t, patience), q, keysOf(l, texts...), ""))
				p := e.plan(t)
				probes := 0.
				var judge func(n *plan)
				judge = func(n *plan) {
					if n.IndexCond != "" { // a bitmap is of one key, too
						probes += n.Loops
						if !strings.Contains(n.IndexCond, key) || n.Filtered+n.Rows > 1 || n.Loops != mostKeys {
							t.Errorf("%s, %s: %s by %s (%s) in %v loops:\n%s", state, l.Name, n.Type, n.Index, n.IndexCond, n.Loops, p.text)
						}
					} else if n.Type == "Seq Scan" {
						t.Errorf("%s, %s: %s", state, l.Name, p.text)
					}
					for _, child := range n.Plans {
						judge(child)
					}
				}
				judge(p)
				if probes == 0 || p.visitedNodes["Sort"] || p.buffers > 8*int(probes) {
					t.Errorf("%s, %s: %v probes, %d blocks", state, l.Name, probes, p.buffers)
				}
			}
		}
	}
}

// What has no room in a page's bytes is not read, and the answer says so. A row that cannot be shown fails where the
// filters keep it.
func TestRowsOfKeysAreBounded(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	longRows(t, url, `INSERT INTO items (workspace_id, id, name, image_path)
		SELECT $1, ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'x', repeat('x', 600000) FROM generate_series(1, 21) n`, ourWorkspace)
	o := openOrigin(t, url)
	q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 100}
	var texts []string
	for n := range 21 {
		texts = append(texts, number(n+1))
	}
	slices.Reverse(texts)
	var got []string
	for reads := 0; len(got) < len(texts); reads++ {
		read, err := o.FetchRows(within(t, patience), q, keysOf(q.List, texts[len(got):]...), "")
		if err != nil || len(read.Rows) == 0 || sizeOf(read.Rows[:len(read.Rows)-1]) > page.MaxBytes || read.End != (len(got)+len(read.Rows) == len(texts)) {
			t.Fatalf("%d rows, %t, %v", len(read.Rows), read.End, err)
		}
		for i := range read.Rows {
			got = append(got, q.List.KeyText(read.Rows[i].Key()))
		}
		if read.End && reads < 2 {
			t.Error("it was no more than two reads")
		}
	}
	if !slices.Equal(got, texts) {
		t.Errorf("%q", got)
	}
}

// A tenant that the key's column cannot have, and one without rows; and another run of the server than the proven one.
func TestNobodysKeysHaveNoRows(t *testing.T) {
	t.Parallel()
	o := openOrigin(t, newDatabase(t))
	for _, tenant := range []string{"", "x", ourWorkspace} {
		read, err := o.FetchRows(within(t, patience), page.Query{List: listtest.Items, Tenant: tenant, Limit: 1}, keysOf(listtest.Items, number(1)), "")
		if err != nil || len(read.Rows) != 0 || !read.End {
			t.Errorf("%q: %+v, %v", tenant, read, err)
		}
	}
	_, err := o.FetchRows(within(t, patience), page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 1}, nil, "another")
	if !errors.Is(err, page.ErrWrongServer) {
		t.Errorf("another run of the server: %v", err)
	}
}
