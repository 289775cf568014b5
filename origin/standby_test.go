package origin

import (
	"cmp"
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

func identity(t *testing.T, address string) fleet.Server {
	t.Helper()
	return must1(postgres.IdentifyAt(within(t, patience), address))
}

// primaryNow is what is known of the primary now.
func primaryNow(t *testing.T, primary *pgx.Conn, server string) changefeed.Proof {
	t.Helper()
	p := changefeed.Proof{Timeline: server, StartedAt: "the only one", Moment: time.Now()}
	must(primary.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0'").Scan(&p.LSN))
	must1(primary.Exec(t.Context(), "SELECT pg_current_xact_id()")) // flushes that WAL: nothing else would, for seconds
	return p
}

// Rows come from standbys that are this primary's, and from none that is not. They say up to
// where the standby had replayed, and up to where it may show WAL.
func TestFetchFromStandby(t *testing.T) {
	primary := sandboxtest.Postgres(t)
	address := ownDatabase(t, primary)
	standby, other := sandboxtest.Standby(t, primary, nil), sandboxtest.Standby(t, primary, nil)
	o := New(openDatabase(t, postgres.Options{URL: address, Replicas: []string{standby.URL("listedge"), other.URL("listedge")}}), list.BuiltIn(), nil)
	db := connect(t, address)
	workspace := number(1)
	add := func(name string) (lsn uint64) {
		t.Helper()
		exec(t, db, "INSERT INTO items (workspace_id, name) VALUES ($1, $2)", workspace, name)
		var at int64
		must(db.QueryRow(t.Context(), "SELECT (pg_current_wal_lsn() - '0/0')::int8").Scan(&at))
		return uint64(at)
	}
	server := identity(t, address).TimelineName()
	query := page.Query{Tenant: workspace, List: listtest.Items, Limit: 50}
	fetch := func() (page.Read, error) {
		return o.FetchFromStandby(within(t, patience), query, primaryNow(t, db, server))
	}
	fetched := func(n int, ok func(page.Read) bool) {
		t.Helper()
		eventually(t, "rows of a standby", func() bool {
			rows, err := fetch()
			if err != nil || !ok(rows) {
				return false
			}
			if len(rows.Rows) != n || rows.At.Timeline != server || rows.At.Through < rows.At.LSN || rows.At.Snapshot.Xmax != 0 || rows.At.StartedAt != "" {
				t.Fatalf("%+v; want %d rows of %s", rows, n, server)
			}
			return true
		})
	}
	replayed := func(lsn uint64) func(page.Read) bool { return func(r page.Read) bool { return r.At.LSN >= lsn } }

	one := add("one")
	fetched(1, replayed(one))
	if rows := must1(o.Fetch(within(t, patience), query, "")); rows.At.Through != 0 || rows.At.LSN != 0 || rows.At.Snapshot.Xmax == 0 || rows.At.StartedAt == "" {
		t.Errorf("rows of the primary: %+v", rows)
	}
	if rows, err := answerOfStandby(t, o, query, primaryNow(t, db, "another/1")); !errors.Is(err, postgres.ErrOtherPrimary) {
		t.Fatalf("%+v, %v", rows, err)
	}
	if first, second := o.CheckStandby(t.Context(), 0), o.CheckStandby(t.Context(), 1); !errors.Is(cmp.Or(first, second), postgres.ErrOtherPrimary) {
		t.Errorf("%v, %v", first, second)
	}
	fetched(1, replayed(one))

	// While replay is paused, rows say that they do not show the WAL that the standby has got.
	for _, s := range []string{standby.URL("postgres"), other.URL("postgres")} {
		execOn(t, s, "SELECT pg_wal_replay_pause()")
		eventually(t, "paused", func() bool {
			var state string
			must(connect(t, s).QueryRow(t.Context(), "SELECT pg_get_wal_replay_pause_state()").Scan(&state))
			return state == "paused"
		})
	}
	two := add("two")
	fetched(1, func(r page.Read) bool { return r.At.LSN < two && r.At.Through >= two })
	for _, s := range []string{standby.URL("postgres"), other.URL("postgres")} {
		execOn(t, s, "SELECT pg_wal_replay_resume()")
	}
	fetched(2, replayed(two))

	// A standby that hangs is skipped, and soon gets no queries.
	must(standby.Freeze())
	eventually(t, "the hung one's breaker opens", func() bool {
		_, _ = fetch()
		return o.Stats().Standbys[0].BreakerOpen
	})
	before, began := o.Stats().Standbys[0].Fetches["failed"], time.Now()
	for range 10 {
		fetched(2, replayed(two))
	}
	if failed := o.Stats().Standbys[0].Fetches["failed"] - before; failed > 1+uint64(time.Since(began)/postgres.StandbyCooldown) { // a probe in each cooldown
		t.Errorf("the hung one got %d queries", failed)
	}
	must(standby.Thaw())
	eventually(t, "it gets queries again", func() bool {
		o.Probe(within(t, patience))
		return !o.Stats().Standbys[0].BreakerOpen
	})

	// One that is promoted is a standby no more, whatever it had replayed.
	must(standby.Kill(syscall.SIGINT))
	execOn(t, other.URL("postgres"), "SELECT pg_promote()")
	eventually(t, "the promoted one is refused", func() bool {
		_, err := fetch()
		return errors.Is(err, postgres.ErrOtherPrimary) || errors.Is(err, page.ErrUnavailable) && errors.Is(o.CheckStandby(t.Context(), 1), postgres.ErrOtherPrimary)
	})
	before = o.Stats().Standbys[1].Fetches["ok"]
	for range 10 {
		_, _ = fetch()
	}
	if o.Stats().Standbys[1].Fetches["ok"] != before {
		t.Error("the promoted one was used")
	}
}

// beforeEach is a tracer that calls the function before each statement.
type beforeEach func(sql string)

func (f beforeEach) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	f(q.SQL)
	return ctx
}

func (f beforeEach) TracePrepareStart(ctx context.Context, _ *pgx.Conn, p pgx.TracePrepareStartData) context.Context {
	f(p.SQL)
	return ctx
}

func (beforeEach) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (beforeEach) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

// Rows of a standby show all up to their LSN, also if it replays a row between the statement that
// reads its position and the page's.
func TestRowsOfAStandbyShowAllUpToTheirLSN(t *testing.T) {
	server := sandboxtest.Postgres(t)
	address := ownDatabase(t, server)
	replica := sandboxtest.Standby(t, server, nil).URL("listedge")
	primary, standby := connect(t, address), connect(t, replica)
	query, timeline := page.Query{Tenant: number(1), List: listtest.Items, Limit: page.MaxLimit}, identity(t, address).TimelineName()
	db := openDatabase(t, postgres.Options{URL: address, Replicas: []string{replica}})
	config := db.Standbys[0].Config()
	first, added, addedAt, between := "", 0, uint64(0), false
	config.ConnConfig.Tracer = beforeEach(func(sql string) {
		if first = cmp.Or(first, sql); sql == first || between {
			return
		}
		exec(t, primary, "INSERT INTO items (workspace_id, name) VALUES ($1, 'replayed')", query.Tenant)
		added, addedAt, between = added+1, primaryNow(t, primary, timeline).LSN, true
		eventually(t, "the row is replayed", func() (is bool) {
			must(standby.QueryRow(t.Context(), "SELECT pg_last_wal_replay_lsn() - '0/0' >= $1", addedAt).Scan(&is))
			return is
		})
	})
	db.Standbys[0] = must1(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(db.Standbys[0].Close)
	o := New(db, list.BuiltIn(), nil)
	var rows page.Read
	eventually(t, "rows of the standby", func() bool {
		first, between = "", false
		proof, err := primaryNow(t, primary, timeline), error(nil)
		rows, err = o.fetchFrom(within(t, patience), o.standbys[0], &query, &proof)
		return err == nil
	})
	if !between || rows.At.LSN >= addedAt && len(rows.Rows) < added {
		t.Errorf("%d rows up to %d; of %d the last is at %d", len(rows.Rows), rows.At.LSN, added, addedAt)
	}
}

// A standby that follows its primary onto a new timeline is one of that, and not of the old one. The old primary lives on: no standby of the
// one is taken for one of the other, be it that it receives no WAL now.
func TestStandbysAfterAFailOver(t *testing.T) {
	primary := sandboxtest.PostgresWith(t, map[string]string{"full_page_writes": "on"}) // or no standby can be made of a standby
	old := ownDatabase(t, primary)
	first := identity(t, old).TimelineName()
	rival := sandboxtest.Standby(t, primary, map[string]string{"wal_keep_size": "64MB"})
	stays, cascades := sandboxtest.Standby(t, primary, nil), sandboxtest.Standby(t, rival, nil)
	execOn(t, rival.URL("postgres"), "SELECT pg_promote()")
	next := rival.URL("listedge")
	second := identity(t, next).TimelineName()
	if first == second {
		t.Fatal("the same timeline: the test tries nothing")
	}
	query := page.Query{Tenant: number(1), List: listtest.Items, Limit: 50}
	read := func(url string, standby *sandbox.Postgres) *Origin {
		return New(openDatabase(t, postgres.Options{URL: url, Replicas: []string{standby.URL("listedge")}}), list.BuiltIn(), nil)
	}
	refused := func(what string, o *Origin, p changefeed.Proof) {
		t.Helper()
		if rows, err := answerOfStandby(t, o, query, p); !errors.Is(err, postgres.ErrOtherPrimary) {
			t.Errorf("%s: %+v, %v", what, rows, err)
		}
	}
	follows := read(next, cascades)
	eventually(t, "the standby is on the new timeline", func() bool {
		_, err := follows.FetchFromStandby(within(t, patience), query, primaryNow(t, connect(t, next), second))
		return err == nil
	})
	refused("on the new timeline, for the old one", follows, primaryNow(t, connect(t, old), first))
	refused("on the old timeline, for the new one", read(next, stays), primaryNow(t, connect(t, next), second))
	for n := range 20 {
		execOn(t, next, "INSERT INTO items (workspace_id, name) VALUES ($1, 'of the rival')", number(1))
		if n == 0 {
			execOn(t, old, "INSERT INTO items (workspace_id, name) VALUES ($1, 'of the primary')", number(1))
		}
	}
	eventually(t, "the cascade has what the rival wrote", func() bool {
		return must1(postgrestest.Value[int](cascades.URL("listedge"), "SELECT count(*) FROM items")) == 20
	})
	must(rival.Kill(syscall.SIGQUIT))
	eventually(t, "it receives from nobody", func() bool {
		return must1(postgrestest.Value[int](cascades.URL("listedge"), "SELECT count(*) FROM pg_stat_wal_receiver")) == 0
	})
	refused("that receives no WAL", read(old, cascades), primaryNow(t, connect(t, old), first))
}

// answerOfStandby is what the standby says once it answers within its budget:
// on a busy machine the first connection alone may take longer than that.
func answerOfStandby(t *testing.T, o *Origin, q page.Query, p changefeed.Proof) (rows page.Read, err error) {
	t.Helper()
	eventually(t, "an answer of the standby", func() bool {
		rows, err = o.FetchFromStandby(within(t, patience), q, p)
		return !errors.Is(err, page.ErrUnavailable) && !errors.Is(err, page.ErrTimeout)
	})
	return rows, err
}
