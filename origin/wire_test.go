package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

// longPage is that of insertLongItems: of 100 rows it shows as many as a page
// may hold.
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
func checkLongPage(t testing.TB, page Page) {
	t.Helper()
	var read struct {
		Data []struct{ Name, ImagePath string }
	}
	if err := json.Unmarshal(append(page.Body[:len(page.Body):len(page.Body)], '}'), &read); err != nil {
		t.Fatal(err)
	}
	if row := len(page.Body) / page.Rows; len(read.Data) != page.Rows || len(page.Body) < maxPage-2*row || len(page.Body) > maxPage+row {
		t.Fatalf("%d rows, said to be %d, of %d bytes", len(read.Data), page.Rows, len(page.Body))
	}
	for _, r := range read.Data {
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
	if err := admin.CreateDatabase(within(t, patience), pg.URL("postgres"), "listedge"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.MigrateUp(within(t, patience), url); err != nil {
		t.Fatal(err)
	}
	return url
}

// sessionsWhere counts the Origin's sessions at the server.
func sessionsWhere(t testing.TB, conn *pgx.Conn, condition string) (n int) {
	t.Helper()
	err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge' AND "+condition).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
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

// Pages are the same, however the network splits the messages.
func TestAPageIsTheSameHoweverTheNetworkSplitsIt(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	insert(t, conn, lists.Items, awkwardItems(rand.New(rand.NewPCG(40, 41)), ourWorkspace)...)
	straight := openOrigin(t, url)
	for name, piece := range map[string]func() int{
		"single bytes":     func() int { return 1 },
		"a few":            func() int { return 1 + rand.IntN(20) },
		"more":             func() int { return 1 + rand.IntN(10_000) },
		"as large as ever": whole,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, through := startRelay(t, url, piece)
			o := New(openDatabase(t, postgres.Options{URL: through, Connections: 1}))
			for _, q := range []Query{anyPage, {Workspace: ourWorkspace, Sort: lists.ByName, Limit: 25}, {Workspace: ourWorkspace, Search: "chai", Limit: 5}, {Workspace: ourWorkspace, Collection: lists.Contacts, Limit: 5}} {
				want, err := straight.Fetch(within(t, patience), q, "")
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					page, err := o.Fetch(within(t, patience), q, "")
					if err != nil || !bytes.Equal(page.Body, want.Body) || page.NextCursor != want.NextCursor {
						t.Fatalf("%s: %.200s instead of %.200s: %v", describe(q), page.Body, want.Body, err)
					}
				}
			}
			if n := o.pool.Stat().NewConnsCount(); n != 1 {
				t.Errorf("%d connections were needed", n)
			}
		})
	}
}

// A caller that leaves amid an answer, and a network or server that stops
// there, cost a connection, which is made anew.
func TestAnAnswerThatStopsInTheMiddleIsCancelled(t *testing.T) {
	t.Parallel()
	conn, r, db, o := longWay(t, newDatabase(t), whole, postgres.Options{Connections: 2})
	for i, arrived := range []int{1, 5, 10_000, 6, 1_000_000} {
		if page, err := o.Fetch(within(t, patience), longPage, ""); err != nil || page.Rows < 50 {
			t.Fatalf("%d rows, %v", page.Rows, err)
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
		page, err := o.Fetch(within(t, patience), longPage, "")
		if err != nil {
			t.Fatal(err)
		}
		checkLongPage(t, page)
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}

// activeSession is the process that answers the Origin. When the server is
// killed, it goes on until it finds out, and might have no more to say by then.
func activeSession(t testing.TB, url string) (pid int) {
	t.Helper()
	conn := connect(t, url)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'listedge' AND state = 'active'").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// A server that ends amid an answer is unavailable, and what arrived is no page.
func TestAServerThatStopsDuringAnAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	pg := sandboxtest.Postgres(t)
	url := ownDatabase(t, pg)
	_, r, _, o := longWay(t, url, whole, postgres.Options{Connections: 2})
	for name, end := range map[string]func() error{
		"one session": func() error {
			execOn(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listedge' AND state = 'active'")
			return nil
		},
		"a crash": func() error { return pg.Kill(syscall.SIGQUIT) },
		"a kill":  func() error { return pg.Kill(syscall.SIGKILL) },
	} {
		eventually(t, "a page", func() bool { _, err := o.Fetch(within(t, patience), longPage, ""); return err == nil })
		answer := fetchHeld(t, within(t, patience), o, r, 1_000_000)
		session := activeSession(t, url)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the session's end", func() bool { return errors.Is(syscall.Kill(session, 0), syscall.ESRCH) })
		r.free()
		if err := <-answer; !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		eventually(t, "rest", func() bool { s := o.Stats(); return s.Running == 0 && s.Pool.Idle == s.Pool.Total })
		if err := pg.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a page", func() bool { _, err := o.Fetch(within(t, patience), longPage, ""); return err == nil })
}

// If a server hangs in the middle of an answer, the fetch ends at its time limit and closes the
// connection. When the server continues, no query runs for it.
func TestAServerThatHangsDuringAnAnswerKeepsNoConnection(t *testing.T) {
	t.Parallel()
	pg := sandboxtest.Postgres(t)
	conn, r, db, o := longWay(t, ownDatabase(t, pg), whole, postgres.Options{Connections: 1, QueryTimeout: 10 * patience})
	if _, err := o.Fetch(within(t, patience), longPage, ""); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), time.Second)
	defer leave()
	answer := fetchHeld(t, ctx, o, r, 10_000)
	if err := pg.Freeze(); err != nil {
		t.Fatal(err)
	}
	r.free()
	if err := <-answer; !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
		t.Errorf("%v", err)
	}
	eventually(t, "the connection's end", func() bool { return o.Stats().Pool.Total == 0 })
	if err := pg.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a page", func() bool { _, err := o.Fetch(within(t, patience), longPage, ""); return err == nil })
	eventually(t, "rest", func() bool { return atRest(t, o, db, conn) })
}

// A connection that the server closed between two queries costs one fetch at most,
// even where the next query comes too soon for the pool to notice.
func TestAConnectionClosedBetweenQueriesCostsOneFetch(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	o := New(openDatabase(t, postgres.Options{URL: url, Connections: 1}))
	conn := connect(t, url)
	for range 3 {
		if _, err := o.Fetch(within(t, patience), anyPage, ""); err != nil {
			t.Fatal(err)
		}
		exec(t, conn, "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge'")
		if _, err := o.Fetch(within(t, patience), anyPage, ""); err != nil && (!errors.Is(err, ErrUnavailable) || postgres.Code(err) != "57P01") {
			t.Errorf("%v", err)
		}
	}
}

// What the server has to say beside the answer changes nothing.
func TestNoticesChangeNoAnswer(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	insert(t, conn, lists.Items, awkwardItems(rand.New(rand.NewPCG(42, 43)), ourWorkspace)...)
	want, err := openOrigin(t, url).Fetch(within(t, patience), anyPage, "")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = debug5', current_database()); END $$")
	o := New(openDatabase(t, postgres.Options{URL: url, Connections: 1}))
	for range 3 {
		page, err := o.Fetch(within(t, patience), anyPage, "")
		if err != nil || !bytes.Equal(page.Body, want.Body) {
			t.Errorf("%.200s: %v", page.Body, err)
		}
		// The server reports a changed setting before its answer ends.
		r, err := o.open(within(t, patience), &o.upstream)
		if err != nil {
			t.Fatal(err)
		}
		change := &postgres.Statement{Name: "change", SQL: "SELECT set_config('IntervalStyle', $1, false)", Parameters: []uint32{pgtype.TextOID}, Columns: []postgres.Column{{Type: pgtype.TextOID}}, Formats: []int16{0}}
		for _, style := range []string{"iso_8601", "postgres"} {
			got := ""
			err := change.Query(within(t, patience), r.conn.Conn(), [][]byte{[]byte(style)}, func(row [][]byte) error { got = string(row[0]); return nil })
			if err != nil || got != style {
				t.Errorf("%q, %v", got, err)
			}
		}
		o.close(r)
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
		if _, err := o.Fetch(within(t, patience), anyPage, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := o.pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	if n := o.pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were needed", n)
	}
}
