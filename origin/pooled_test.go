package origin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// poolModes are all that PgBouncer has.
var poolModes = []string{"session", "transaction", "statement"}

// Whether a server session is a client's own, or another one's with the next
// transaction, the pages and the keys are the same.
func TestPagesAndKeysAreTheSameThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range poolModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			conn := connect(t, url)
			insertNamed(t, conn, ourWorkspace, awkwardNames...)
			_, through := sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": mode, "default_pool_size": "12", "server_round_robin": "1"})
			straight := openOrigin(t, url)
			db := openDatabase(t, postgres.Options{URL: through, ReplicationURL: url, Connections: 4})
			must(admin.NewReadiness(db, list.BuiltIn(), New(db, list.BuiltIn(), nil)).Ready(within(t, patience)))
			o, keys := New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())
			var readers sync.WaitGroup
			for range 4 {
				readers.Go(func() {
					for range 5 {
						for _, q := range []page.Query{
							anyPage, {List: listtest.Items, Order: listtest.ByName, Limit: 25}, {List: listtest.Items, Search: "chai", Limit: 5},
							{List: listtest.Contacts, Limit: 5},
						} {
							q.Tenant = ourWorkspace
							want, err := straight.Fetch(within(t, patience), q, "")
							if err != nil {
								t.Error(err)
								return
							}
							rows, err := o.Fetch(within(t, patience), q, "")
							if err != nil || !slices.Equal(rows.Rows, want.Rows) || rows.End != want.End || rows.At.StartedAt != want.At.StartedAt {
								t.Errorf("%s: %.200s instead of %.200s: %v", describe(q), fmt.Sprint(rows), fmt.Sprint(want), err)
								return
							}
						}
						if found, err := keys.Lookup(within(t, patience), []apikey.Hash{{1}}, ""); err != nil || len(found) != 0 {
							t.Errorf("%v, %v", found, err)
						}
					}
				})
			}
			readers.Wait()
		})
	}
}

// settingsOfPages are those that pages depend on, as the session sees them that
// reads a page.
var settingsOfPages = map[string]string{
	"search_path": "public", "row_security": "off", "transaction_read_only": "on", "transaction_isolation": "read committed", "statement_timeout": "1500ms",
	"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_sort": "off", "jit": "off", "max_parallel_workers_per_gather": "0",
	"TimeZone": "UTC", "DateStyle": "ISO, DMY", "IntervalStyle": "postgres", "extra_float_digits": "1", "bytea_output": "hex",
	"enable_incremental_sort": "off", "gin_fuzzy_search_limit": "0", "client_encoding": "UTF8",
}

// showSettings puts a view in the place of contacts: the name of its one row is
// what the settings are while it is read.
func showSettings(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var shown []string
	for name := range settingsOfPages {
		shown = append(shown, fmt.Sprintf("'%s', current_setting('%s')", name, name))
	}
	exec(t, conn, `ALTER TABLE contacts RENAME TO contacts_hidden`)
	exec(t, conn, fmt.Sprintf(`CREATE VIEW contacts AS SELECT '%s'::uuid AS workspace_id, '%s'::uuid AS id, json_build_object(%s)::text AS name,
		NULL::text AS email, NULL::text AS phone, NULL::text AS address, NULL::text AS tin,
		true AS is_customer, true AS is_supplier, true AS active, '2026-01-01Z'::timestamptz(3) AS created_at`,
		ourWorkspace, number(1), strings.Join(shown, ", ")))
}

func TestPagesRunWithTheirSettings(t *testing.T) {
	t.Parallel()
	for _, mode := range append([]string{"no pooler"}, poolModes...) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			conn := connect(t, url)
			showSettings(t, conn)
			for _, setting := range []string{"gin_fuzzy_search_limit = 5", "datestyle = 'German'", "extra_float_digits = 0", "client_encoding = 'LATIN1'"} {
				exec(t, conn, "ALTER DATABASE "+conn.Config().Database+" SET "+setting)
			}
			through := url
			if mode != "no pooler" {
				_, through = sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": mode, "default_pool_size": "3"})
				other := connectSimply(t, through)
				exec(t, other, "SET search_path = nowhere; SET statement_timeout = 0; SET enable_sort = on; SET plan_cache_mode = force_custom_plan; SET row_security = on")
				if mode == "session" {
					must(other.Close(t.Context())) // and DISCARD ALL
				}
			}
			o := New(openDatabase(t, postgres.Options{URL: through, QueryTimeout: 1500 * time.Millisecond}), list.BuiltIn(), nil)
			for range 3 {
				read := must1(o.Fetch(within(t, patience), page.Query{Tenant: ourWorkspace, List: listtest.Contacts, Limit: 5}, ""))
				var row struct{ Name string }
				var shown map[string]string
				must(errors.Join(json.Unmarshal([]byte(read.Rows[0].Text()), &row), json.Unmarshal([]byte(row.Name), &shown)))
				for name, want := range settingsOfPages {
					if shown[name] != want {
						t.Errorf("%s is %q, want %q", name, shown[name], want)
					}
				}
			}
		})
	}
}

// connectSimply is a client that prepares nothing.
func connectSimply(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	config := must1(pgx.ParseConfig(url))
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn := must1(pgx.ConnectConfig(within(t, patience), config))
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// What the server ends, and what its sessions begin with, holds behind a pooler.
func TestAPageThroughAPoolerIsBounded(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	_, through := sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": "transaction"})
	o := New(openDatabase(t, postgres.Options{URL: through, QueryTimeout: 100 * time.Millisecond}), list.BuiltIn(), nil)
	exec(t, conn, "BEGIN; LOCK TABLE items")
	if _, err := o.Fetch(within(t, patience), anyPage, ""); !errors.Is(err, page.ErrTimeout) || postgres.Code(err) != "57014" {
		t.Errorf("%v, want %v by the server", err, page.ErrTimeout)
	}
	exec(t, conn, "ROLLBACK")
	eventually(t, "a page again", func() bool { _, err := o.Fetch(within(t, patience), anyPage, ""); return err == nil })

	exec(t, conn, "ALTER DATABASE "+conn.Config().Database+" SET default_transaction_isolation = 'repeatable read'")
	_, through = sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": "transaction"})
	o = New(openDatabase(t, postgres.Options{URL: through}), list.BuiltIn(), nil)
	if _, err := o.Fetch(within(t, patience), anyPage, ""); err == nil || !strings.Contains(err.Error(), "default_transaction_isolation = 'read committed'") {
		t.Errorf("%v", err)
	}
}

// Two servers may take turns behind a pooler. What one of them has replayed says
// nothing of the other's page.
func TestReplayStatusIsOfTheServerThatGivesThePage(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	address := ownDatabase(t, primary)
	one, other := sandboxtest.Standby(t, primary, nil), sandboxtest.Standby(t, primary, nil)
	pooler, through := sandboxtest.PgBouncer(t, one.URL("listedge"), map[string]string{"pool_mode": "transaction"})
	o := New(openDatabase(t, postgres.Options{URL: address, Replicas: []string{through}}), list.BuiltIn(), nil)
	server, conn := identity(t, address).TimelineName(), connect(t, address)
	eventually(t, "a page of a standby behind a pooler", func() bool {
		_, err := o.FetchFromStandby(within(t, patience), anyPage, primaryNow(t, conn, server))
		return err == nil
	})
	s := o.standbys[0]
	session := must1(s.pool.Acquire(within(t, patience)))
	defer func() { session.Release() }()
	is, _, err := s.replayed(within(t, patience), session)
	must(err)
	must(pooler.LeadTo(other.Addr()))
	eventually(t, "a page of the other standby", func() bool {
		rows, _, err := o.page(&anyPage).read(within(t, patience), session, &anyPage)
		if err != nil { // the pooler accepts no client before it has connected to the other server
			session.Release()
			eventually(t, "a connection to the other one", func() bool {
				session, err = s.pool.Acquire(within(t, patience))
				return err == nil
			})
			return false
		}
		return rows.At.StartedAt != is.StartedAt
	})
}
