package origin

import (
	"context"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/list"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// fillPool opens as many connections as the pool may have, with the page's
// statement prepared, and leaves all of them idle.
func fillPool(t *testing.T, o *Origin, pool *pgxpool.Pool) {
	t.Helper()
	size := int(pool.Config().MaxConns)
	func() {
		for range size {
			conn := must1(pool.Acquire(within(t, patience)))
			defer conn.Release()
			if _, _, err := o.page(&anyPage).read(within(t, patience), conn, &anyPage); err != nil {
				t.Fatal(err)
			}
		}
	}()
	eventually(t, "idle connections", func() bool { return int(pool.Stat().IdleConns()) == size })
}

// endSessions has the server end all of the database's.
func endSessions(t *testing.T, url string) {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge'")
	eventually(t, "their end", func() bool { return sessionsWhere(t, conn, "true") == 0 })
	_ = conn.Close(context.Background())
}

// After a server restarts, or closes single connections, queries use new ones: no
// query fails to find that out.
func TestClosedIdleConnectionsCostNoFetch(t *testing.T) {
	t.Parallel()
	pg, url := secured(t)
	restart := func(how syscall.Signal) func() error {
		return func() error {
			if err := pg.Kill(how); err != nil {
				return err
			}
			return pg.Restart(context.Background())
		}
	}
	for _, mode := range []string{"disable", "verify-ca"} {
		db := openDatabase(t, postgres.Options{URL: strings.Replace(url, "sslmode=verify-ca", "sslmode="+mode, 1), Connections: 6})
		o, keys := New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())
		for name, event := range map[string]func() error{
			"ended":     func() error { endSessions(t, url); return nil },
			"restarted": restart(syscall.SIGINT), "crashed": restart(syscall.SIGQUIT),
		} {
			fillPool(t, o, db.Pages.Pool)
			fillPool(t, o, db.Keys.Pool)
			must(event())
			for i := range 2 * 6 {
				if _, err := o.Fetch(within(t, patience), anyPage, ""); err != nil {
					t.Errorf("%s, TLS %s: page %d: %v", name, mode, i, err)
				}
				if _, err := keys.Lookup(within(t, patience), []apikey.Hash{{}}, ""); err != nil {
					t.Errorf("%s, TLS %s: key %d: %v", name, mode, i, err)
				}
			}
		}
	}
}

// A pooler says what it closes connections for (SQLSTATE 08P01), before their next use.
func TestClientsThatAPoolerEndsCostNoFetch(t *testing.T) {
	t.Parallel()
	direct := must1(url.Parse(newDatabase(t)))
	_, through := sandboxtest.PgBouncer(t, direct.String(), map[string]string{"pool_mode": "transaction", "admin_users": direct.User.Username()})
	db := openDatabase(t, postgres.Options{URL: through, Connections: 6})
	o := New(db, list.BuiltIn(), nil)
	fillPool(t, o, db.Pages.Pool)
	console := must1(url.Parse(through))
	console.Path = "pgbouncer"
	admin := connectSimply(t, console.String())
	for _, command := range []string{"KILL", "RESUME"} {
		must1(admin.PgConn().Exec(t.Context(), command+" "+strings.TrimPrefix(direct.Path, "/")).ReadAll())
	}
	for i := range 2 * 6 {
		if _, err := o.Fetch(within(t, patience), anyPage, ""); err != nil {
			t.Errorf("page %d: %v", i, err)
		}
	}
}
