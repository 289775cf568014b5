package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
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

var anyPage = page.Query{List: listtest.Items, Tenant: ourWorkspace, Limit: 10}

// lockItems keeps every page of items waiting until the lock is let go.
func lockItems(t testing.TB, url string) (release func()) {
	t.Helper()
	tx := must1(connect(t, url).Begin(context.Background()))
	must1(tx.Exec(context.Background(), "LOCK TABLE items IN ACCESS EXCLUSIVE MODE"))
	return sync.OnceFunc(func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	})
}

// As many queries run as there are connections, a bounded number waits, and
// the rest is refused at once.
func TestQueriesThatRunAndWaitAreBounded(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	o := New(openDatabase(t, postgres.Options{URL: url, Connections: 2}), list.BuiltIn(), nil)
	release := lockItems(t, url)
	defer release()
	const atWork, inQueue = 2, 8 * 2
	answers := make(chan error, atWork+inQueue)
	for i := range atWork + inQueue {
		go func() {
			q := anyPage
			q.Tenant = number(i % 6) // one alone may have half the queue
			_, err := o.Fetch(context.Background(), q, "")
			answers <- err
		}()
		if i < atWork { // one of each, so that as many of each wait
			eventually(t, "a query at work", func() bool { return o.Stats().Running == i+1 })
		}
	}
	eventually(t, "a full queue", func() bool { s := o.Stats(); return s.Running == atWork && s.Queued == inQueue })

	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		q := anyPage
		q.Tenant = number(2) // no tenant has more queries waiting
		if _, err := o.Fetch(ctx, q, ""); !errors.Is(err, page.ErrOverloaded) || ctx.Err() != nil {
			t.Errorf("beyond the queue: %v", err)
		}
		cancel()
	}
	if s := o.Stats(); s.Fetches["overloaded"] != 3 || s.Queued != inQueue || s.Pool.MaxConns() != 2 || s.Pool.TotalConns() > 2 {
		t.Errorf("%+v", s)
	}
	release()
	for range atWork + inQueue {
		if err := <-answers; err != nil {
			t.Errorf("of those that waited: %v", err)
		}
	}
	if s := o.Stats(); s.Running != 0 || s.Queued != 0 || s.Fetches["ok"] != atWork+inQueue || s.Fetches["failed"] != 0 {
		t.Errorf("%+v", s)
	}
}

// Neither a query that the server ends, nor a caller that gives up, be it that it waited in the queue
// for most of its time, says anything against the server.
func TestSlowQueriesAreTimeoutsAndOpenNoBreaker(t *testing.T) {
	t.Parallel()
	type call func() (context.Context, context.CancelFunc)
	for name, c := range map[string]struct {
		server time.Duration
		caller call
	}{
		"the server ends it": {150 * time.Millisecond, func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) }},
		"its time is over": {0, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 20*time.Millisecond)
		}},
		"the caller gives up": {0, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx, cancel
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			o := New(openDatabase(t, postgres.Options{URL: url, QueryTimeout: c.server}), list.BuiltIn(), nil)
			release := lockItems(t, url)
			defer release()
			for range 5 {
				ctx, cancel := c.caller()
				_, err := o.Fetch(ctx, anyPage, "")
				if !errors.Is(err, page.ErrTimeout) || errors.Is(err, page.ErrUnavailable) || ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
					t.Errorf("%v", err)
				}
				cancel()
			}
			contacts := page.Query{Tenant: ourWorkspace, List: listtest.Contacts, Limit: 10}
			if _, err := o.Fetch(context.Background(), contacts, ""); err != nil || o.Stats().BreakerOpen {
				t.Errorf("another list: %v, %+v", err, o.Stats())
			}
			release()
			if _, err := o.Fetch(context.Background(), anyPage, ""); err != nil {
				t.Error(err)
			}
			if s := o.Stats(); s.Fetches["failed"] != 0 || s.Fetches["ok"] != 2 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The schema may change under prepared statements, on every connection at once.
func TestFetchingGoesOnThroughSchemaChanges(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	insertNamed(t, conn, ourWorkspace, "A name", "Another")
	const connections = 4
	o := New(openDatabase(t, postgres.Options{URL: url, Connections: connections}), list.BuiltIn(), nil)
	queries := []page.Query{
		anyPage, {List: listtest.Items, Tenant: ourWorkspace, Order: listtest.ByName, Limit: 10},
		{List: listtest.Items, Tenant: ourWorkspace, Search: "name", Limit: 10},
	}
	prepareEverywhere := func() {
		t.Helper()
		for _, q := range queries {
			release := lockItems(t, url) // all connections are in use at once
			errs := make(chan error, connections)
			for range connections {
				go func() { _, err := o.Fetch(context.Background(), q, ""); errs <- err }()
			}
			eventually(t, "all connections at work", func() bool { return o.Stats().Pool.AcquiredConns() == connections })
			release()
			for range connections {
				if err := <-errs; err != nil {
					t.Errorf("%s: %v", describe(q), err)
				}
			}
		}
	}
	prepareEverywhere()
	for _, change := range []string{
		"ALTER TABLE items ADD COLUMN colour text", "ALTER TABLE items DROP COLUMN colour", "ALTER TABLE items ALTER COLUMN name TYPE varchar",
		"ALTER TABLE items ALTER COLUMN name TYPE text", "ALTER TABLE items ALTER COLUMN created_at SET DEFAULT '2026-01-01Z'",
		"ALTER TABLE items ALTER COLUMN description TYPE varchar(4000)", "DROP INDEX " + indexName(listtest.Items, "items_by_grams"), "VACUUM FULL items",
		"ANALYZE items",
	} {
		exec(t, conn, change)
		for range 2 * connections {
			for _, q := range queries {
				if _, err := o.Fetch(context.Background(), q, ""); err != nil {
					t.Fatalf("after %s: %s: %v", change, describe(q), err)
				}
			}
		}
		prepareEverywhere()
	}
	// A connection whose statement fails prepares it again, and stays open.
	if n := o.Stats().Pool.NewConnsCount(); n != connections {
		t.Errorf("%d connections were made, of %d", n, connections)
	}
	// A change that takes away what the API shows is an error, not a wrong page,
	// and not one that older pages could bridge.
	exec(t, conn, "ALTER TABLE items DROP CONSTRAINT items_sku_size, ALTER COLUMN sku TYPE jsonb USING NULL")
	if _, err := o.Fetch(context.Background(), anyPage, ""); err == nil || errors.Is(err, page.ErrUnavailable) || errors.Is(err, page.ErrTimeout) {
		t.Errorf("sku is no text: %v", err)
	}
	if s := o.Stats(); s.Pool.IdleConns() != s.Pool.TotalConns() || s.BreakerOpen {
		t.Errorf("%+v", s)
	}
}

func TestErrorsOfTheServerGetAKind(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	for code, want := range map[string]error{
		"57014": page.ErrTimeout, "55P03": page.ErrTimeout, "57P01": page.ErrUnavailable, "57P03": page.ErrUnavailable, "53300": page.ErrUnavailable,
		"53200": page.ErrUnavailable,
		"08006": page.ErrUnavailable, "58030": page.ErrUnavailable, "40001": page.ErrUnavailable, "40P01": page.ErrUnavailable,
		"42703": page.ErrSchema, "42P01": page.ErrSchema, "0A000": page.ErrSchema, "22012": nil, "XX000": nil,
	} {
		_, err := conn.Exec(t.Context(), fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '%s'; END $$", code))
		got := postgres.Classify(err)
		for _, kind := range []error{page.ErrTimeout, page.ErrUnavailable, page.ErrOverloaded, page.ErrSchema} {
			if errors.Is(got, kind) != (kind == want) {
				t.Errorf("%s is %v", code, got)
			}
		}
		if postgres.Code(got) != code {
			t.Errorf("%s was lost in %v", code, got)
		}
	}
	if postgres.Classify(nil) != nil || postgres.Code(nil) != "" || !errors.Is(postgres.Classify(errors.New("connection reset")), page.ErrUnavailable) {
		t.Error("no error, and one that is not the server's")
	}
}

// A server that does not let us in is away, whatever reason it gives.
func TestADatabaseThatRefusesConnectionsIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"no such database": server().URL("no_such_database"),
		"unknown user":     strings.Replace(server().URL("postgres"), "//postgres:", "//nobody:", 1),
		"nobody listens":   "postgres://postgres@127.0.0.1:1/postgres",
	} {
		db := openDatabase(t, postgres.Options{URL: url})
		if _, err := New(db, list.BuiltIn(), nil).Fetch(within(t, patience), anyPage, ""); !errors.Is(err, page.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if err := admin.NewReadiness(db, list.BuiltIn(), New(db, list.BuiltIn(), nil)).Ready(within(t, patience)); err == nil {
			t.Errorf("%s: ready", name)
		}
	}
	if _, err := postgres.Open(context.Background(), postgres.Options{URL: "postgres://%zz"}); err == nil {
		t.Error("a malformed URL is no error")
	}
}

// One server of its own goes through everything that happens to servers; the
// Origin and the key store stay the same throughout.
func TestAnOriginSurvivesItsServer(t *testing.T) {
	t.Parallel()
	pg := sandboxtest.Postgres(t)
	url := ownDatabase(t, pg)
	const timeout = 250 * time.Millisecond
	db := openDatabase(t, postgres.Options{URL: url, QueryTimeout: timeout, Connections: 4})
	o, keys := New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())
	ask := func() (read, key error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
		defer cancel()
		_, read = o.Fetch(ctx, anyPage, "")
		_, key = keys.Lookup(ctx, []apikey.Hash{{}}, "")
		return read, key
	}
	works := func() bool {
		keys.Probe(within(t, patience))
		read, key := ask()
		return read == nil && key == nil
	}
	eventually(t, "the first page", works)
	for _, event := range []struct {
		name        string
		away, again func() error
	}{
		{"crash", func() error { return pg.Kill(syscall.SIGQUIT) }, func() error { return pg.Restart(context.Background()) }},
		{"hang", pg.Freeze, pg.Thaw},
		{"shutdown", func() error { return pg.Kill(syscall.SIGINT) }, func() error { return pg.Restart(context.Background()) }},
	} {
		if err := event.away(); err != nil {
			t.Fatal(event.name, err)
		}
		eventually(t, "both breakers open", func() bool {
			cancelled, cancel := context.WithTimeout(context.Background(), timeout/20)
			defer cancel()
			_, _ = o.Fetch(cancelled, anyPage, "") // must not count as a success
			read, key := ask()
			if read == nil || key == nil || !errors.Is(read, page.ErrUnavailable) && !errors.Is(read, page.ErrTimeout) || !errors.Is(key, page.ErrUnavailable) {
				t.Fatalf("%s: pages %v, keys %v", event.name, read, key)
			}
			return o.Stats().BreakerOpen && keys.BreakerOpen()
		})
		eventually(t, event.name+": 15 of 20 fail at once", func() bool { // a trial may be among them
			quick := 0
			for range 20 {
				began := time.Now()
				if read, key := ask(); read == nil || key == nil {
					t.Errorf("%s: pages %v, keys %v", event.name, read, key)
				} else if errors.Is(read, page.ErrUnavailable) && errors.Is(key, page.ErrUnavailable) && time.Since(began) < timeout/4 {
					quick++
				}
			}
			return quick >= 15
		})
		if event.name == "hang" { // a page tries the server, for which its own requests wait, and no look-up of keys does
			eventually(t, "a page without an answer", func() bool {
				read, key := ask()
				if errors.Is(key, context.DeadlineExceeded) {
					t.Fatal(key)
				}
				return errors.Is(read, context.DeadlineExceeded)
			})
		}
		if err := event.again(); err != nil {
			t.Fatal(event.name, err)
		}
		eventually(t, "the server's return after a "+event.name, works)
		eventually(t, "ready, and both breakers closed", func() bool {
			return !o.Stats().BreakerOpen && !keys.BreakerOpen() && admin.NewReadiness(db, list.BuiltIn(), New(db, list.BuiltIn(), nil)).Ready(within(t,
				patience)) == nil
		})
	}
}
