package follower_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
)

// smallMemory is so little that a transaction of some hundred rows is streamed.
const smallMemory = "64kB"

// rows inserts more of a table than smallMemory holds, all of one workspace.
func rows(table string, workspace int) string {
	return fmt.Sprintf("INSERT INTO %s (workspace_id, name) SELECT $%d, 'x' FROM generate_series(1, 900)", table, workspace)
}

// decodedBytes returns how many bytes the walsender has streamed of open transactions, and
// how many it has decoded in all.
func (w *world) decodedBytes() (streamed, total int64) {
	w.Helper()
	must(w.db.QueryRow(w.ctx(), "SELECT stream_bytes, total_bytes FROM pg_stat_replication_slots WHERE slot_name = $1", w.slotName()).Scan(&streamed, &total))
	return streamed, total
}

// write runs a statement of an open transaction. If the statement writes rows, write waits
// until the walsender has streamed some of them, and then for heartbeats that cover them.
// No change may be published meanwhile.
func (w *world) write(tx transaction, sql string) {
	w.Helper()
	before, _ := w.decodedBytes()
	must2(tx.Exec(w.ctx(), w.sqlOf(sql)))
	if strings.Contains(sql, "generate_series") {
		w.eventually("rows are streamed", func() bool { now, _ := w.decodedBytes(); return now > before })
	}
	w.quiet()
}

// covered awaits a heartbeat that covers what has been written by now, and returns what the changes before it touch.
func (w *world) covered() (published []string) {
	w.Helper()
	at := must2(strconv.ParseUint(w.text("SELECT (pg_current_wal_insert_lsn() - '0/0')::text"), 10, 64))
	w.await("a heartbeat", func(e changefeed.Entry) bool {
		if e.Change != nil && e.Change.LSN > w.lastLSN {
			published, w.lastLSN = append(published, touched(*e.Change)), e.Change.LSN
		}
		return e.Heartbeat != nil && e.Heartbeat.LSN >= at
	})
	return published
}

// quiet awaits such a heartbeat, and no change before it.
func (w *world) quiet() {
	w.Helper()
	if published := w.covered(); len(published) > 0 {
		w.Fatalf("published: %s", published)
	}
}

// A large transaction is published as one change, when it commits and not before, with the
// id and the position of the top-level transaction.
func TestALargeTransactionIsPublishedAtItsCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.followWith(withMemory(w.url, smallMemory), w.log, silent))
	items := func(n int) string { return rows("items", n) }
	for _, c := range []struct {
		name string
		sql  []string // the last one ends it
		want string   // changes, in order
	}{
		{"commit", []string{items(1), rows("contacts", 2), items(3), "COMMIT"}, "contacts:2 items:1 items:3"},
		{"abort", []string{items(1), items(2), "ROLLBACK"}, ""},
		{"abort of a subtransaction, which counts", []string{items(1), "SAVEPOINT s", items(2), "ROLLBACK TO s", items(3), "COMMIT"}, "items:1 items:2 items:3"},
		{"a subtransaction that is released", []string{"SAVEPOINT s", items(1), "RELEASE s", "COMMIT"}, "items:1"},
		{"nothing but a subtransaction that aborts", []string{"SAVEPOINT s", items(1), "ROLLBACK TO s", "COMMIT"}, "items:1"},
		{"abort of both", []string{items(1), "SAVEPOINT s", items(2), "ROLLBACK TO s", "ROLLBACK"}, ""},
		{"more workspaces than are named", []string{"INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 1500)",
			"INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x')", "COMMIT"}, "whole:contacts whole:items"},
		{"a move", []string{"UPDATE items SET workspace_id = $5 WHERE workspace_id = $1 AND 1500 IN (SELECT generate_series(1, 1500))", "COMMIT"}, "items:1 items:5"},
		{"delete", []string{"DELETE FROM items WHERE workspace_id = $5 AND 1500 IN (SELECT generate_series(1, 1500))", "COMMIT"}, "items:5"},
		{"TRUNCATE", []string{items(1), "TRUNCATE contacts", items(2), "COMMIT"}, "items:1 items:2 whole:contacts, " + all},
		{"TRUNCATE that aborts", []string{items(1), "TRUNCATE items", items(2), "ROLLBACK"}, ""},
		{"DDL", []string{items(1), "ALTER TABLE items ADD other text DEFAULT 'x'", items(2), "COMMIT"}, "items:1 items:2, " + all},
		{"DDL that aborts", []string{items(1), "ALTER TABLE contacts RENAME workspace_id TO was; ALTER TABLE contacts ADD workspace_id uuid",
			"INSERT INTO contacts (was, workspace_id, name) SELECT $1, $2, 'x' FROM generate_series(1, 1500)", "ROLLBACK"}, ""},
		{"a purge's message", []string{items(1), "SELECT pg_logical_emit_message(true, 'listedge', 'x')", items(2), "COMMIT"}, all},
		{"prepared", []string{items(1), "PREPARE TRANSACTION 'DATABASE'", "COMMIT PREPARED 'DATABASE'"}, "items:1"},
		{"another at the same time, which aborts", []string{items(1), "OTHER " + items(3), items(2), "OTHER " + items(4), items(2), "OTHER ROLLBACK", "COMMIT"},
			"items:1 items:2"},
		{"prepared, and aborted", []string{items(1), "PREPARE TRANSACTION 'DATABASE'", "ROLLBACK PREPARED 'DATABASE'"}, ""},
	} {
		tx, other := w.begin("SELECT"), w.begin("SELECT") // with ids
		end := len(c.sql) - 1
		for _, sql := range c.sql[:end] {
			if sql, ofOther := strings.CutPrefix(sql, "OTHER "); ofOther {
				w.write(other, sql)
			} else {
				w.write(tx, sql)
			}
		}
		before := w.text("SELECT pg_current_wal_insert_lsn()::text")
		must2(tx.Exec(w.ctx(), w.sqlOf(c.sql[end])))
		if c.want != "" {
			for i, want := range strings.Split(c.want, ", ") {
				got := w.change()
				if slices.ContainsFunc(got.Touched, func(p changefeed.Touched) bool { return p.Rows != nil }) { // rows of subtransactions that aborted were among them
					t.Errorf("%s: it names rows: %s", c.name, named(got))
				}
				// If a view is read between the commit and its decoding, the transaction touches everything.
				if is := touched(got); is != want && !(is == all && strings.HasSuffix(c.want, ", "+all)) {
					t.Fatalf("%s: %s, want %s", c.name, is, want)
				}
				if xid := strconv.FormatUint(got.XID, 10); i == 0 &&
					(xid != tx.xid || w.text(fmt.Sprintf("SELECT ('0/0'::pg_lsn + %d > '%s')::text", got.LSN, before)) != "true") {
					t.Errorf("%s: published as %s at %d, want %s behind %s", c.name, xid, got.LSN, tx.xid, before)
				}
			}
		}
		w.quiet() // nothing more
		must(tx.Close(w.ctx()))
		must(other.Close(w.ctx()))
		w.exec("INSERT INTO contacts (workspace_id, name) VALUES ($9, 'marker')") // later transactions are decoded correctly
		if is := touched(w.change()); is != "contacts:9" {
			t.Fatalf("after %s: %s", c.name, is)
		}
	}
}

// The next follower receives the transaction from its beginning.
func TestALargeTransactionOutlivesItsFollower(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			url := withMemory(w.url, smallMemory)
			first := w.followWith(url, w.log, silent)
			w.awaitFollowing(first)
			tx := w.begin("SELECT")
			w.write(tx, rows("items", 1))
			first.stop()
			w.awaitFree()
			must2(tx.Exec(w.ctx(), w.sqlOf(rows("items", 2)))) // while no node follows
			epoch := w.epoch
			w.awaitFollowingFrom(w.followWith(url, w.log, silent))
			w.write(tx, rows("items", 3))
			must2(tx.Exec(w.ctx(), end))
			w.exec("INSERT INTO contacts (workspace_id, name) VALUES ($9, 'marker')")
			want := "contacts:9"
			if end == "COMMIT" {
				want = "items:1 items:2 items:3, contacts:9"
			}
			for want := range strings.SplitSeq(want, ", ") {
				if is := touched(w.change()); is != want {
					t.Errorf("%s, want %s", is, want)
				}
			}
			if w.epoch != epoch {
				t.Error("a new epoch, though nothing was missed")
			}
		})
	}
}

// A transaction on another table is decoded while it is written. At its commit at most
// decodingMemory is left to decode, however large it is, so heartbeats are hardly delayed.
func TestAForeignTransactionIsDecodedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Postgres(t))
	w.awaitFollowing(w.follow())
	w.exec("CREATE TABLE other (n int, t text)")
	w.quiet()
	_, from := w.decodedBytes()
	tx := w.begin("SELECT")
	for range 10 {
		must2(tx.Exec(w.ctx(), "INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n"))
		w.quiet() // heartbeats go on
	}
	streamed, _ := w.decodedBytes()
	must2(tx.Exec(w.ctx(), "COMMIT"))
	w.quiet()
	_, total := w.decodedBytes()
	const memory = 4 << 20
	if size, left := total-from, total-from-streamed; size < 5*memory || left > memory {
		t.Errorf("%d of %d bytes were left to decode at the commit, want at most %d", left, size, memory)
	}
	if spilled := w.text("SELECT spill_bytes::text FROM pg_stat_replication_slots WHERE slot_name = '" + w.slotName() + "'"); spilled != "0" {
		t.Errorf("%s bytes went to disk", spilled)
	}
}
