package follower_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/follower"
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
	must2(t.Exec(w.ctx(), "BEGIN; "+w.sqlOf(sql)))
	must(t.QueryRow(w.ctx(), "SELECT pg_current_xact_id()::text").Scan(&t.xid))
	return t
}

func (w *world) rollback(t transaction) {
	w.Helper()
	must2(t.Exec(w.ctx(), "ROLLBACK"))
}

// awaitWaiting waits until a follower waits for the transaction to end.
func (w *world) awaitWaiting(t transaction) {
	w.Helper()
	w.eventually("the new slot waits for a transaction", func() bool {
		return w.text("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = '"+t.xid+"')::text") == "true"
	})
}

// A transaction may commit while a slot is being made, and not be visible when the slot is
// ready. The follower must publish it or wait for it: otherwise a page without it is kept
// for ever. Postgres waits, at two moments, for the transactions that run then. One that
// begins after the second moment, writes its commit record and hangs in synchronous
// replication is not awaited, and its commit record is before what the slot decodes.
func TestANewSlotMissesNoCommitThatIsNotYetVisible(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"persistent", "temporary"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			makeWhileACommitHangs(t, kind)
		})
	}
}

func makeWhileACommitHangs(t *testing.T, kind string) {
	p := sandboxtest.Postgres(t)
	w := newWorld(t, p)
	w.slot = kind
	w.exec("SET synchronous_commit = local") // for the test's own session
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
	w.checkNoStalePageIsKept(f)
	// What commits from now on is published, even if that was before the slot was ready.
	w.exec("INSERT INTO contacts (workspace_id, name) VALUES ($3, 'x')")
	w.endHanging(hanging, done)
	w.awaitFollowing(f)
	w.at = changefeed.Position{}
	if is := touched(w.change()); is != "contacts:3" {
		t.Errorf("published: %s", is)
	}
	if is := w.text("SELECT string_agg(slot_name, ' ') FROM pg_replication_slots"); is != w.slotName() {
		t.Errorf("slots: %s", is)
	}
	end()
	f.stop()
}

// The same for a commit that the slot does not send because the publication lacked its table.
func TestAMendedPublicationMissesNoCommitThatIsNotYetVisible(t *testing.T) {
	t.Parallel()
	p := sandboxtest.Postgres(t)
	w := newWorld(t, p)
	w.exec("SET synchronous_commit = local") // for the test's own session
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
	w.checkNoStalePageIsKept(f)
	w.endHanging(hanging, done)
	w.eventually("another epoch", func() bool { epoch, _ := w.log.Epoch(w.ctx()); return epoch != before })
	w.awaitFollowing(f)
	w.publishes()
	if s := f.Stats(); s.Terms > 3 {
		t.Errorf("%+v", s)
	}
	end()
	f.stop()
}

// hang begins a commit of an item of workspace 7, which waits for a standby that does not
// exist.
func (w *world) hang() (conn *pgx.Conn, done chan error) {
	w.Helper()
	conn, done = open(w.T, w.url), make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), w.sqlOf("INSERT INTO items (workspace_id, name) VALUES ($7, 'hangs')"))
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

// checkNoStalePageIsKept fails if the hanging commit is neither visible nor in a heartbeat: a
// page that is read now would lack it and be kept.
func (w *world) checkNoStalePageIsKept(f running) {
	w.Helper()
	const visible = "SELECT EXISTS (SELECT FROM items WHERE name = 'hangs')::text"
	if f.Following() && w.text(visible) == "false" {
		w.skipToEnd()
		w.heartbeat()
		if h := w.heartbeat(); len(h.Unsettled) == 0 && w.text(visible) == "false" {
			w.Errorf("a page that is read now is kept, and nothing will ever correct it: %+v", h)
		}
	}
}

// If many nodes start at once, one makes the slot and the others find it. A node that fails
// to make the slot leaves nothing behind.
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
			name, created, err := follower.CreateSlot(ctx, w.url, "", w.lists)
			c <- result{name, created, err}
		}()
		return c
	}

	long := w.begin("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	impatient, stop := context.WithCancel(w.ctx())
	canceled := create(impatient)
	w.awaitWaiting(long)
	if r := <-create(w.ctx()); r.created || r.err != nil || r.name != w.slotName() {
		t.Errorf("while another makes it: %+v", r)
	}
	stop()
	if r := <-canceled; r.created || r.err == nil {
		t.Errorf("canceled: %+v", r)
	}
	w.eventually("nothing is left", func() bool { return w.text(slots) == "" })

	terminated := create(w.ctx())
	w.awaitWaiting(long)
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listedge follower'")
	if r := <-terminated; r.created || r.err == nil {
		t.Errorf("terminated: %+v", r)
	}
	w.eventually("nothing is left", func() bool { return w.text(slots) == "" })

	w.eventually("it waits until its timeout", func() bool { // which includes the time to connect, long on a busy machine
		hurried, stop := context.WithTimeout(w.ctx(), 2*time.Second)
		defer stop()
		r := <-create(hurried)
		if r.created || r.err == nil {
			t.Fatalf("after its timeout: %+v", r)
		}
		return strings.Contains(r.err.Error(), "Postgres waits for the end of a write transaction")
	})
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
