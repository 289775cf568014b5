package follower

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
)

// transaction is one that a test keeps open.
type transaction struct {
	*pgx.Conn
	xid string
}

// begin opens a write transaction.
func (w *world) begin(sql string) transaction {
	w.Helper()
	t := transaction{Conn: open(w.T, w.url)}
	for _, sql := range []string{"BEGIN", ids(sql)} {
		if _, err := t.Exec(w.ctx(), sql); err != nil {
			w.Fatal(err)
		}
	}
	must(t.QueryRow(w.ctx(), "SELECT pg_current_xact_id()::text").Scan(&t.xid))
	return t
}

func (w *world) rollback(t transaction) {
	w.Helper()
	if _, err := t.Exec(w.ctx(), "ROLLBACK"); err != nil {
		w.Fatal(err)
	}
}

// awaitWaiting waits until a follower waits for the transaction to end.
func (w *world) awaitWaiting(t transaction) {
	w.Helper()
	w.eventually("the new slot waits for a transaction", func() bool {
		return w.text("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = '"+t.xid+"')::text") == "true"
	})
}

// What commits while a slot is being made, and is not visible when it is made,
// must be told or awaited: else a page without it is kept for ever. A slot
// waits for what runs at each of two moments while it is made. Whoever begins
// after the second, writes its commit record and hangs in synchronous
// replication is in neither, and lies before what the slot decodes.
func TestANewSlotMissesNoCommitThatIsNotYetVisible(t *testing.T) {
	t.Parallel()
	p := sandboxtest.Postgres(t)
	w := newWorld(t, p)
	w.exec("SET synchronous_commit = local") // of the test itself
	end := w.withSetting("synchronous_standby_names", "nobody")

	first := w.begin("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	f := w.follow()
	w.awaitWaiting(first)
	second := w.begin("INSERT INTO items (workspace_id, name) VALUES ($2, 'x')")
	w.rollback(first)
	w.awaitWaiting(second)
	hanging, done := w.hang()
	w.rollback(second)
	w.eventually("the slot is made, or awaits the hanging commit", func() bool { return f.Following() || w.waits(hanging) })
	w.toldOrVisible(f)
	// What commits from now on is told, even what was committed before the slot was ready.
	w.exec(ids("INSERT INTO contacts (workspace_id, name) VALUES ($3, 'x')"))
	w.endHanging(hanging, done)
	w.awaitFollowing(f)
	w.at = changefeed.Position{}
	if is := touched(w.change()); is != "contacts:3" {
		t.Errorf("told: %s", is)
	}
	if is := w.text("SELECT string_agg(slot_name, ' ') FROM pg_replication_slots"); is != w.slotName() {
		t.Errorf("slots: %s", is)
	}
	end()
	f.stop()
}

// The same of a commit that the publication did not tell while it lacked its table.
func TestAMendedPublicationMissesNoCommitThatIsNotYetVisible(t *testing.T) {
	t.Parallel()
	p := sandboxtest.Postgres(t)
	w := newWorld(t, p)
	w.exec("SET synchronous_commit = local") // of the test itself
	f := w.follow()
	w.awaitFollowing(f)
	w.heartbeat()
	before := w.epoch
	w.exec("ALTER PUBLICATION listedge DROP TABLE items")
	w.incapable(f, "items")
	end := w.withSetting("synchronous_standby_names", "nobody")
	hanging, done := w.hang()
	w.exec("ALTER PUBLICATION listedge ADD TABLE items")
	w.eventually("another epoch, or the hanging commit is awaited", func() bool {
		epoch, _ := w.log.Epoch(w.ctx())
		return epoch != before || w.waits(hanging)
	})
	w.toldOrVisible(f)
	w.endHanging(hanging, done)
	w.eventually("another epoch", func() bool { epoch, _ := w.log.Epoch(w.ctx()); return epoch != before })
	w.awaitFollowing(f)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($3, 'x')"))
	if is := touched(w.change()); is != "items:3" {
		t.Errorf("told: %s", is)
	}
	if s := f.Stats(); s.Terms > 3 {
		t.Errorf("%+v", s)
	}
	end()
	f.stop()
}

// hang begins a commit of an item of workspace 7, which waits for a standby
// that is not there.
func (w *world) hang() (conn *pgx.Conn, done chan error) {
	w.Helper()
	conn, done = open(w.T, w.url), make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), ids("INSERT INTO items (workspace_id, name) VALUES ($7, 'hangs')"))
		done <- err
	}()
	w.eventually("the commit hangs", func() bool {
		return w.text("SELECT coalesce((SELECT wait_event FROM pg_stat_activity WHERE pid = "+pidOf(conn)+"), '')") == "SyncRep"
	})
	return conn, done
}

func (w *world) endHanging(conn *pgx.Conn, done chan error) {
	w.Helper()
	w.exec("SELECT pg_cancel_backend(" + pidOf(conn) + ")")
	must(<-done)
}

// waits says whether a slot that is being made waits for the transaction.
func (w *world) waits(of *pgx.Conn) bool {
	return w.text(`SELECT EXISTS (SELECT FROM pg_stat_activity f WHERE f.application_name = 'listedge follower'
		AND (f.wait_event = 'PgSleep' OR `+pidOf(of)+` = ANY (pg_blocking_pids(f.pid))))::text`) == "true"
}

// toldOrVisible checks that a page that is read now, and lacks what hangs, will
// not be kept.
func (w *world) toldOrVisible(f running) {
	w.Helper()
	const visible = "SELECT EXISTS (SELECT FROM items WHERE name = 'hangs')::text"
	if f.Following() && w.text(visible) == "false" {
		w.turn()
		w.heartbeat()
		if h := w.heartbeat(); len(h.Unsettled) == 0 && w.text(visible) == "false" {
			w.Errorf("a page that is read now is kept, and nothing will ever correct it: %+v", h)
		}
	}
}

// Many nodes start at once: one makes the slot, the others find it. Whoever is
// kept from it leaves nothing.
func TestASlotIsMadeByOneAndWhole(t *testing.T) {
	t.Parallel()
	p := sandboxtest.PostgresWith(t, map[string]string{"max_replication_slots": "2"})
	w := newWorld(t, p)
	const slots = "SELECT coalesce(string_agg(slot_name, ' '), '') FROM pg_replication_slots"
	type result struct {
		name    string
		created bool
		err     error
	}
	create := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() {
			name, created, err := CreateSlot(ctx, w.url, "")
			c <- result{name, created, err}
		}()
		return c
	}

	long := w.begin("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	impatient, stop := context.WithCancel(w.ctx())
	leaves := create(impatient)
	w.awaitWaiting(long)
	if r := <-create(w.ctx()); r.created || r.err != nil || r.name != w.slotName() {
		t.Errorf("while another makes it: %+v", r)
	}
	stop()
	if r := <-leaves; r.created || r.err == nil {
		t.Errorf("it left: %+v", r)
	}
	w.eventually("nothing is left", func() bool { return w.text(slots) == "" })

	dies := create(w.ctx())
	w.awaitWaiting(long)
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listedge follower'")
	if r := <-dies; r.created || r.err == nil {
		t.Errorf("it died: %+v", r)
	}
	w.eventually("nothing is left", func() bool { return w.text(slots) == "" })

	hurried, stop := context.WithTimeout(w.ctx(), 2*time.Second) // which is for connecting, too
	defer stop()
	if r := <-create(hurried); r.created || r.err == nil || !strings.Contains(r.err.Error(), "a write transaction has been open for long") {
		t.Errorf("in vain: %+v", r)
	}
	w.eventually("nothing is left", func() bool { return w.text(slots) == "" })
	w.rollback(long)

	made, racers := 0, []chan result{}
	for range 6 {
		racers = append(racers, create(w.ctx()))
	}
	for _, c := range racers {
		r := <-c
		if r.err != nil || r.name != w.slotName() {
			t.Errorf("%+v", r)
		}
		if r.created {
			made++
		}
	}
	if is := w.text(slots); made != 1 || is != w.slotName() {
		t.Errorf("%d made it; there is %q", made, is)
	}
	if is := w.text("SELECT plugin || ' ' || temporary FROM pg_replication_slots"); is != "pgoutput false" {
		t.Error(is)
	}
}

func pidOf(conn *pgx.Conn) string { return fmt.Sprint(conn.PgConn().PID()) }
