package origin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// mostKeys is how many keys a page of changes asks for.
const mostKeys = page.MaxLimit + page.MaxGone

// keysOf parses texts of keys.
func keysOf(l *list.List, texts ...string) (keys []string) {
	for _, text := range texts {
		key, ok := l.ParseKey([]byte(text))
		if !ok {
			panic("no key: " + text)
		}
		keys = append(keys, key)
	}
	return keys
}

// Whatever the key's type, its collation, the tenant and the filters: of keys of all tenants, of rows that are not live and
// of none at all, the rows come that the list has, in the order of the keys.
func TestRowsOfKeysAreThoseOfTheList(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 300)
	exec(t, conn, "SET search_path = public; SET timezone = UTC")
	exec(t, conn, "ALTER TABLE customer ALTER id TYPE text COLLATE same; INSERT INTO customer (id) VALUES ('x\"\\,{}'' ä')")
	o := New(openDatabase(t, postgres.Options{URL: url}), lists, nil)
	random := rand.New(rand.NewPCG(4, 8))
	for _, l := range lists.Lists {
		t.Run(l.Name, func(t *testing.T) {
			p, shown := plains[l.Name], 0
			rows, _ := conn.Query(t.Context(), fmt.Sprintf("SELECT (%s)::text FROM %s", p.key, l.Table.SQL())) // the rows have the error
			texts := must1(pgx.CollectRows(rows, pgx.RowTo[string]))
			if !slices.ContainsFunc(texts, func(text string) bool { return strings.ToUpper(text) != text }) {
				texts = append(texts, "-1", "0", "32000")
			} else {
				for _, text := range slices.Clone(texts) {
					if !slices.Contains(texts, strings.ToUpper(text)) && l.Columns[l.Key].Base != "uuid" {
						texts = append(texts, strings.ToUpper(text))
					}
				}
			}
			for tenant, condition := range p.tenants {
				for _, keep := range p.matches(l) {
					want := map[string]string{}
					rows, _ := conn.Query(t.Context(), fmt.Sprintf("SELECT (%s)::text, (%s)::text FROM %s WHERE %s AND %s AND %s",
						p.key, p.row, l.Table.SQL(), condition, p.live, keep.sql))
					var key, text string
					must1(pgx.ForEachRow(rows, []any{&key, &text}, func() error { want[key] = text; return nil }))
					random.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
					for asked := range slices.Chunk(texts, mostKeys) {
						q := page.Query{List: l, Tenant: tenant, Match: keep.match, Limit: 100}
						read, err := o.FetchRows(within(t, patience), q, keysOf(l, asked...), "")
						if err != nil || !read.End || read.At.StartedAt == "" {
							t.Fatalf("%s of %q: %+v, %v", describe(q), tenant, read.At, err)
						}
						expected := slices.DeleteFunc(slices.Clone(asked), func(text string) bool { return want[text] == "" })
						for i := range read.Rows {
							if got := l.KeyText(read.Rows[i].Key()); i >= len(expected) || got != expected[i] || !equalJSON(read.Rows[i].Text(), want[got]) {
								t.Fatalf("%s of %q: row %d is %s", describe(q), tenant, i, read.Rows[i].Text())
							}
						}
						if len(read.Rows) != len(expected) {
							t.Fatalf("%s of %q: %d rows, want %d", describe(q), tenant, len(read.Rows), len(expected))
						}
						shown += len(expected)
					}
				}
			}
			if shown == 0 {
				t.Error("no row was shown")
			}
		})
	}
}

// Each key costs one probe of the unique index, whatever the planner knows and the filters are.
func TestRowsOfKeysAreOneProbeEach(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 1)
	exec(t, conn, "INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 100); ANALYZE")
	for _, shape := range listtest.Shapes {
		exec(t, conn, shape.Rows(2, 5_000))
	}
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, active) SELECT $1, md5(n::text)::uuid, 'x', n % 9 > 0
		FROM generate_series(1, 100000) n`, ourWorkspace)
	for _, state := range []string{"analysed while there were few", "analysed"} {
		if state == "analysed" {
			exec(t, conn, "VACUUM ANALYZE")
		}
		shapes, builtIn := explain(t, url, lists), explain(t, url, list.BuiltIn())
		for _, l := range append(lists.Lists[:len(lists.Lists):len(lists.Lists)], listtest.Items) {
			e := shapes
			key := l.Columns[l.Key].Name
			rows, _ := conn.Query(t.Context(), fmt.Sprintf("SELECT (%s)::text FROM (SELECT * FROM %s LIMIT 5000) t ORDER BY random() LIMIT %d",
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

// Rows end before one that cannot be shown, or is too long to be read. It fails where it is the first, by name, and nowhere
// where a filter hides it.
func TestRowsOfKeysEndBeforeOneThatCannotBeShown(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	longRows(t, url, `INSERT INTO items (workspace_id, id, name, type, image_path) VALUES ($1, $2, 'a', 'GOODS', NULL), ($1, $3, 'b', 'SERVICE', NULL),
		($1, $4, 'long', 'GOODS', repeat('x', 10000000))`, ourWorkspace, number(1), number(2), number(51))
	conn := connect(t, url)
	exec(t, conn, "ALTER TABLE items DROP CONSTRAINT items_usage_30_check, DROP CONSTRAINT items_usage_30_bound")
	exec(t, conn, "INSERT INTO items (workspace_id, id, name, usage_30) VALUES ($1, $2, 'y', 'NaN')", ourWorkspace, number(50))
	o := openOrigin(t, url)
	for bad, says := range map[string]string{number(50): "key " + number(50), number(51): "from " + number(51) + " on"} {
		q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 100}
		read, err := o.FetchRows(within(t, patience), q, keysOf(q.List, number(1), number(9), bad, number(2)), "")
		if err != nil || len(read.Rows) != 1 || read.End {
			t.Errorf("behind others: %d rows, %t, %v", len(read.Rows), read.End, err)
		}
		_, err = o.FetchRows(within(t, patience), q, keysOf(q.List, bad, number(2)), "")
		if !errors.Is(err, page.ErrRow) || !strings.Contains(err.Error(), says) {
			t.Errorf("the first: %v", err)
		}
		q.Match = listtest.Services
		read, err = o.FetchRows(within(t, patience), q, keysOf(q.List, bad, number(2)), "")
		if err != nil || len(read.Rows) != 1 || !read.End {
			t.Errorf("where the filter hides it: %d rows, %t, %v", len(read.Rows), read.End, err)
		}
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
