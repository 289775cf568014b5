package origin

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// limitedRole makes a role that reads everything, and returns it and the URL with which it connects.
func limitedRole(t *testing.T, address string, connections int) (role, as string) {
	t.Helper()
	return postgrestest.Role(t, address, fmt.Sprintf("ALTER ROLE $ROLE BYPASSRLS CONNECTION LIMIT %d; GRANT pg_read_all_data, pg_monitor TO $ROLE", connections))
}

// While Postgres gives no more connections, queries wait for those that the node has: none fails,
// no breaker opens, and no check.
func TestQueriesShareTheConnectionsThatAServerGives(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	conn := connect(t, address)
	exec(t, conn, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 3000) n", ourWorkspace)
	role, as := limitedRole(t, address, 8)
	db := openDatabase(t, postgres.Options{URL: as, Connections: 16})
	o, keys := New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())
	must(keys.Check(within(t, patience))) // it has one of the eight
	for range 3 {
		var all sync.WaitGroup
		failed := make(chan error, 100)
		ask := func(what string, do func() error) {
			all.Go(func() {
				if err := do(); err != nil {
					failed <- fmt.Errorf("%s: %w", what, err)
				}
			})
		}
		for n := range 12 { // more than the eight
			ask("a search", func() error {
				q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Search: fmt.Sprintf("no %d such", n), Limit: 50}
				if n%2 > 0 {
					q.Tenant = uuid.NewString()
				}
				_, err := o.Fetch(within(t, patience), q, "")
				return err
			})
		}
		for range 3 {
			ask("a look-up", func() error { _, err := keys.Lookup(within(t, patience), []apikey.Hash{{1}}, ""); return err })
		}
		ask("the check", func() error { return admin.NewReadiness(db, list.BuiltIn(), o).Ready(within(t, patience)) })
		all.Wait()
		close(failed)
		for err := range failed {
			t.Error(err)
		}
		if s := o.Stats(); s.BreakerOpen || keys.BreakerOpen() || s.Fetches["failed"] > 0 || s.Fetches["overloaded"] > 0 {
			t.Errorf("%+v", s.ServerStats)
		}
	}

	// Once it gives more, they are used.
	exec(t, conn, "ALTER ROLE "+role+" CONNECTION LIMIT -1")
	eventually(t, "more connections", func() bool {
		var all sync.WaitGroup
		for range 24 {
			all.Go(func() {
				_, _ = o.Fetch(within(t, patience), page.Query{List: listtest.Items, Tenant: uuid.NewString(), Limit: 1}, "")
			})
		}
		all.Wait()
		return o.Stats().Pool.TotalConns() > 10
	})
}

// A node that has no connection at all gets none: that is an outage.
func TestAServerThatGivesNoConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	_, as := limitedRole(t, newDatabase(t), 0)
	db := openDatabase(t, postgres.Options{URL: as})
	o := New(db, list.BuiltIn(), nil)
	for range 3 {
		if _, err := o.Fetch(within(t, patience), anyPage, ""); !errors.Is(err, page.ErrUnavailable) {
			t.Error(err)
		}
	}
	if !o.Stats().BreakerOpen {
		t.Error("the breaker is closed")
	}
}

// PgBouncer has its own words for it, and counts those that it refuses until they have gone: of many who
// connect at once it refuses all.
func TestQueriesShareTheConnectionsThatAPoolerGives(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	pooler, through := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction", "max_client_conn": "4"})
	db := openDatabase(t, postgres.Options{URL: through, Connections: 16})
	o, keys := New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())
	for round := range 3 {
		var all sync.WaitGroup
		if round == 0 {
			must(pooler.Signal(syscall.SIGSTOP))
			all.Go(func() {
				if _, err := keys.Lookup(within(t, patience), []apikey.Hash{{1}}, ""); err != nil {
					t.Error(err)
				}
			})
		}
		for range 24 {
			all.Go(func() {
				if _, err := o.Fetch(within(t, patience), page.Query{List: listtest.Items, Tenant: uuid.NewString(), Limit: 1}, ""); err != nil {
					t.Error(err)
				}
			})
		}
		if round == 0 {
			eventually(t, "all connect", func() bool { return o.Stats().Pool.ConstructingConns() == 16 })
			must(pooler.Signal(syscall.SIGCONT))
		}
		all.Wait()
	}
}
