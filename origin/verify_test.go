package origin

import (
	"context"
	"errors"
	"slices"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

// A verification reads the rows that a page does, in each order, with each search and behind a position, and the database folds
// them as the node does, in any script.
func TestAVerificationReadsWhatAPageDoes(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 300)
	insertNamed(t, conn, ourWorkspace, append(awkwardNames, longNames()...)...)
	exec(t, conn, "UPDATE items SET description = name || ' é'")
	open := func(lists *list.Set) *Origin { return New(openDatabase(t, postgres.Options{URL: url}), lists, nil) }
	builtIn, shapes := open(list.BuiltIn()), open(lists)
	for _, l := range append(slices.Clone(lists.Lists), listtest.Items) {
		o, tenant := shapes, map[string]string{"lines": "a", "items": ourWorkspace}[l.Name]
		if l == listtest.Items {
			o = builtIn
		}
		if tenant == "" {
			tenant = l.Owner("1")
		}
		compared := 0
		for order := range l.Orders {
			for _, term := range []string{"", "e", "chai"} {
				if term != "" && len(l.Search) == 0 {
					continue
				}
				q := page.Query{List: l, Tenant: tenant, Order: order, Search: term, Limit: 20}
				for range 3 {
					want := must1(o.Fetch(within(t, patience), q, ""))
					got, err := o.Verify(within(t, patience), q, "")
					if err != nil || got.Misfold != nil || got.End != want.End || !slices.Equal(got.Rows, want.Rows) || got.At.StartedAt == "" {
						t.Errorf("%s: %d rows, %v, %+v, want %d", describe(q), len(got.Rows), err, got.Misfold, len(want.Rows))
					}
					compared += len(got.Rows)
					if want.End {
						break
					}
					q = q.Behind(&want.Rows[len(want.Rows)-1])
				}
			}
		}
		if compared < 60 {
			t.Errorf("%s: %d rows were compared", l.Name, compared)
		}
	}
	exec(t, conn, `CREATE OR REPLACE FUNCTION listedge_fold(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN upper(t COLLATE "C")`)
	got, err := open(list.BuiltIn()).Verify(within(t, patience), page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 100}, "")
	if err != nil || got.Misfold == nil || got.Misfold.Node == got.Misfold.Database || got.Misfold.Row != got.Rows[0] {
		t.Errorf("another fold: %+v, %v", got.Misfold, err)
	}
}

// A verification costs the primary one statement.
func TestAVerificationIsOneStatement(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t, sandboxtest.PostgresWith(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"}))
	conn, o := connect(t, url), openOrigin(t, url)
	exec(t, conn, "CREATE EXTENSION pg_stat_statements")
	verify := func() { must1(o.Verify(within(t, patience), anyPage, "")) }
	verify()
	exec(t, conn, "SELECT pg_stat_statements_reset()")
	const times = 20
	for range times {
		verify()
	}
	calls := 0
	must(conn.QueryRow(t.Context(), "SELECT sum(calls)::int FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'").Scan(&calls))
	if calls != times {
		t.Errorf("%d statements for %d verifications", calls, times)
	}
}

// No page waits for a verification that could have waited, and none is counted as a page.
func TestAVerificationDelaysNobody(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	o := New(openDatabase(t, postgres.Options{URL: url, Connections: 2}), list.BuiltIn(), nil)
	release := lockItems(t, url)
	defer release()
	answered := make(chan error, 1)
	go func() {
		_, err := o.Fetch(within(t, patience), anyPage, "")
		answered <- err
	}()
	eventually(t, "a query at work", func() bool { return o.Stats().Running == 1 })
	ended, end := context.WithCancel(t.Context())
	end() // a statement would wait for the lock
	if _, err := o.Verify(ended, anyPage, ""); !errors.Is(err, page.ErrOverloaded) {
		t.Errorf("while half of the connections are busy: %v", err)
	}
	release()
	must(<-answered)
	if _, err := o.Verify(within(t, patience), anyPage, ""); err != nil {
		t.Error(err)
	}
	if s := o.Stats(); s.Running != 0 || s.Fetches["ok"] != 1 || s.Fetches["overloaded"] != 0 {
		t.Errorf("%+v", s)
	}
	q := newFairQueue(1)
	if !q.enterIdle() || q.enterIdle() {
		t.Fatal("one connection is not for one verification")
	}
	began := make(chan error, 1)
	go func() {
		_, err := q.enter(within(t, patience), number(1))
		began <- err
	}()
	eventually(t, "a query that waits", func() bool { _, waiting := q.load(); return waiting == 1 })
	q.leaveIdle()
	must(<-began)
}

// A verification ends before a row that cannot be shown, as pages do behind it.
func TestAVerificationEndsBeforeARowThatCannotBeShown(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, "ALTER TABLE items DROP CONSTRAINT items_usage_30_check, DROP CONSTRAINT items_usage_30_bound")
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, usage_30) VALUES ($1, $2, 'a', 1), ($1, $3, 'b', 1), ($1, $4, 'c', 'NaN'), ($1, $5, 'd', 1)`,
		ourWorkspace, number(1), number(2), number(3), number(4))
	o := openOrigin(t, url)
	q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Order: listtest.ByName, Limit: 100}
	read, err := o.Verify(within(t, patience), q, "")
	if err != nil || len(read.Rows) != 2 || read.End {
		t.Fatalf("%d rows, %t, %v", len(read.Rows), read.End, err)
	}
	if _, err := o.Verify(within(t, patience), q.Behind(&read.Rows[1]), ""); !errors.Is(err, page.ErrRow) {
		t.Errorf("the first: %v", err)
	}
}
