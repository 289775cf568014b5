package origin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/internal/sandbox"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

// longPage is that of insertLongItems: of 100 rows it shows as many as a
// statement keeps.
var longPage = Query{Workspace: ourWorkspace, Limit: 100}

// long is how many bytes each image path of the long page has: what is sent
// for it is more than all buffers between hold.
const long = 60_000

func insertLongItems(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, type, image_path, cost_price, avg_cost, selling_price, taxable, track_stock, stock_on_hand, usage_30, active)
		SELECT $1, gen_random_uuid(), 'Item ' || n, 'GOODS', repeat(chr(64 + n % 50), $2), 1, 1, 1, true, false, 0, 0, true FROM generate_series(1, 100) n`, ourWorkspace, long)
}

// checkLongPage makes sure that the page is whole.
func checkLongPage(t testing.TB, rows []lists.Row) {
	t.Helper()
	if n := len(rows); sizeOf(rows[:n-1]) > lists.MaxBytes || sizeOf(rows) <= lists.MaxBytes {
		t.Fatalf("%d rows of %d bytes", n, sizeOf(rows))
	}
	for _, row := range rows {
		var r struct{ Name, ImagePath string }
		must(json.Unmarshal([]byte(row.Text), &r))
		var n int
		if _, err := fmt.Sscanf(r.Name, "Item %d", &n); err != nil || r.ImagePath != strings.Repeat(string(rune(64+n%50)), long) {
			t.Fatalf("%q has an image path of %d bytes: %v", r.Name, len(r.ImagePath), err)
		}
	}
}

// ownDatabase makes the schema on a server of its own.
func ownDatabase(t testing.TB, pg *sandbox.Postgres) string {
	t.Helper()
	url := pg.URL("listedge")
	must(admin.CreateDatabase(within(t, patience), pg.URL("postgres"), "listedge"))
	must1(admin.MigrateUp(within(t, patience), url))
	return url
}

// sessionsWhere counts the Origin's sessions at the server.
func sessionsWhere(t testing.TB, conn *pgx.Conn, condition string) (n int) {
	t.Helper()
	err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge' AND "+condition).Scan(&n)
	must(err)
	return n
}

// atRest says whether all connections of pages are in the pool, none at work,
// and the server knows of no others. (One that it ended itself it knows no more,
// the pool still does.)
func atRest(t testing.TB, o *Origin, db *postgres.Database, conn *pgx.Conn) bool {
	t.Helper()
	s := o.Stats()
	return s.Running == 0 && s.Queued == 0 && s.Pool.Idle == s.Pool.Total && sessionsWhere(t, conn, "state <> 'idle'") == 0 &&
		sessionsWhere(t, conn, "true") <= s.Pool.Total+int(db.Keys.Pool.Stat().TotalConns())
}

// fetchHeld begins to fetch the long page, and returns when so many bytes of
// the answer have arrived and no more come.
func fetchHeld(t testing.TB, ctx context.Context, o *Origin, r *relay, bytes int) <-chan error {
	t.Helper()
	answer := make(chan error, 1)
	r.hold(bytes)
	go func() { _, err := o.Fetch(ctx, longPage, ""); answer <- err }()
	eventually(t, "the middle of an answer", r.holds)
	return answer
}

// longWay is an Origin that reads the long page through a relay, and a
// connection that leads to its database straight.
func longWay(t testing.TB, url string, piece func() int, options postgres.Options) (conn *pgx.Conn, r *relay, db *postgres.Database, o *Origin) {
	t.Helper()
	conn = connect(t, url)
	insertLongItems(t, conn)
	r, options.URL = startRelay(t, url, piece)
	db = openDatabase(t, options)
	return conn, r, db, New(db)
}

// A caller that leaves amid an answer, and a network or server that stops
// there, cost a connection, which is made anew.
func TestAnAnswerThatStopsInTheMiddleIsCancelled(t *testing.T) {
	t.Parallel()
	conn, r, db, o := longWay(t, newDatabase(t), whole, postgres.Options{Connections: 2})
	for i, arrived := range []int{1, 5, 10_000, 6, 1_000_000} {
		if rows, err := o.Fetch(within(t, patience), longPage, ""); err != nil || len(rows.Rows) < 50 {
			t.Fatalf("%d rows, %v", len(rows.Rows), err)
		}
		ctx, leave := context.WithCancel(t.Context())
		want := context.Canceled
		if i%2 == 1 {
			ctx, leave = context.WithTimeout(t.Context(), time.Second)
			want = context.DeadlineExceeded
		}
		answer := fetchHeld(t, ctx, o, r, arrived)
		if i%2 == 0 {
			leave()
		}
		if err := <-answer; !errors.Is(err, want) || !errors.Is(err, ErrTimeout) {
			t.Errorf("%d bytes: %v", arrived, err)
		}
		leave()
		r.free()
		eventually(t, "rest", func() bool { return atRest(t, o, db, conn) })
	}
}

// A query that is ended between its rows is an error, and no short page; the
// connection is as good as before.
func TestAnErrorAfterRowsIsNoPage(t *testing.T) {
	t.Parallel()
	conn, r, _, o := longWay(t, newDatabase(t), whole, postgres.Options{Connections: 1})
	if _, err := o.Fetch(within(t, patience), longPage, ""); err != nil { // or preparing the statement would be held
		t.Fatal(err)
	}
	for range 2 {
		answer := fetchHeld(t, within(t, patience), o, r, 1_000_000)
		exec(t, conn, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge' AND state = 'active'")
		r.free()
		if err := <-answer; !errors.Is(err, ErrTimeout) || postgres.Code(err) != "57014" {
			t.Errorf("%v", err)
		}
		checkLongPage(t, must1(o.Fetch(within(t, patience), longPage, "")).Rows)
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}

// A server, or a pooler before it, forgets a connection's statements. They are
// prepared again.
func TestForgottenStatementsArePreparedAgain(t *testing.T) {
	t.Parallel()
	o := New(openDatabase(t, postgres.Options{URL: newDatabase(t), Connections: 1}))
	for range 3 {
		must1(o.Fetch(within(t, patience), anyPage, ""))
		must1(o.pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol))
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}
