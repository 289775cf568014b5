package origin

import (
	"context"
	"errors"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

// Where the database folds otherwise than the node, a verification says so. (That it reads what a page does is in compare.)
func TestAVerificationSeesAnotherFold(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	insertNamed(t, conn, ourWorkspace, "é")
	exec(t, conn, `CREATE OR REPLACE FUNCTION listedge_fold(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN upper(t COLLATE "C")`)
	got, err := openOrigin(t, url).Verify(within(t, patience), page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 100}, "")
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
