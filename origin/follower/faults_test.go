package follower_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/sandbox/sandboxtest"
)

// Between two terms, and while nothing is missed, the epoch goes on: the next follower publishes what came meanwhile. It begins anew
// where something may be missed.
func TestEpochsBeginWhereSomethingMayBeMissed(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"
	for name, c := range map[string]struct {
		before, during, between string // run before a node follows, while it does, and then while none does
		anew                    bool
		want                    string // changes that the first has not published
	}{
		"nothing happened":      {"", "", "", false, ""},
		"changes":               {"", "", insert, false, "items:1"},
		"slot dropped":          {"", "", insert + "; SELECT pg_drop_replication_slot('SLOT')", true, ""},
		"slot dropped and made": {"", "", "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')", true, ""},
		"slot advanced":         {"", "", insert + "; SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())", true, ""},
		"publication changed":   {"", "", "ALTER PUBLICATION listedge DROP TABLE items; ALTER PUBLICATION listedge ADD TABLE items", true, ""},
		"publication written to": {"", "", "ALTER PUBLICATION listedge SET (publish = 'insert'); " + insert +
			"; ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate')", true, ""},
		"publication away, writes":            {"", "", "DROP PUBLICATION listedge; " + insert + "; MIGRATE", true, ""},
		"rows rewritten":                      {"", "", "ALTER TABLE items ALTER unit TYPE text USING 'x'", false, all},
		"another's table":                     {"", "", "CREATE TABLE another (a int)", false, ""},
		"the log trimmed while it is written": {"", "TRIM; INSERT INTO items (workspace_id, name) VALUES ($2, 'x')", "", false, ""},
		"the log trimmed to nothing":          {"", "", "TRIM", true, ""},
		// A change that is decoded late may be of a table that was dropped or renamed meanwhile.
		"tables that are gone": {`CREATE TABLE part (a int) PARTITION BY LIST (a); CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
			CREATE TABLE other (a int); ALTER PUBLICATION listedge ADD TABLE part, other`, "", `INSERT INTO part VALUES (1); DROP TABLE part_1;
			INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x'); ALTER TABLE contacts RENAME TO contacts_old; INSERT INTO other VALUES (1);
			ALTER TABLE contacts_old RENAME TO contacts`, false, "contacts:1, " + all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.exec(c.before)
			f := w.follow()
			w.awaitFollowing(f)
			w.heartbeat()
			slot := w.slotName()
			run := func(all string) {
				for sql := range strings.SplitSeq(all, ";") {
					end := must2(w.log.Last(w.ctx(), w.epoch))
					switch sql = strings.TrimSpace(sql); sql {
					case "":
					case "MIGRATE":
						w.migrate()
					case "TRIM":
						must(w.log.Trim(w.ctx(), w.epoch, changefeed.Position{Term: end.Term, N: end.N + 1}))
						w.at = end // a node that has read everything goes on
					default:
						w.exec(strings.ReplaceAll(sql, "SLOT", slot))
					}
				}
			}
			run(c.during)
			if published := w.covered(); len(published) != strings.Count(c.during, "INSERT") {
				t.Errorf("published: %v", published)
			}
			before := w.epoch
			f.stop()
			w.awaitFree()
			run(c.between)
			w.awaitFollowingFrom(w.follow())
			epoch := func() string { return must2(w.log.Epoch(w.ctx())) }
			end := w.at
			for n := 0; c.anew && epoch() == before && n < 60; n++ { // entries of the former epoch, at most
				w.eventually("the log goes on, or another epoch", func() bool {
					at := must2(w.log.Last(w.ctx(), before))
					goes := at != end
					end = at
					return goes || epoch() != before
				})
			}
			if (epoch() != before) != c.anew {
				t.Fatalf("epoch %s, then %s", before, epoch())
			}
			for want := range strings.SplitSeq(c.want, ", ") {
				if want != "" {
					if is := touched(w.newChange()); is != want {
						t.Errorf("%s, want %s", is, want)
					}
				}
			}
			w.eventually("changes of what follows", func() bool {
				w.exec("INSERT INTO items (workspace_id, name) VALUES ($9, 'marker')")
				w.epoch = must2(w.log.Epoch(w.ctx()))
				for _, e := range must2(readLog(w.ctx(), w.log, w.epoch, changefeed.Position{}, time.Millisecond)) {
					if e.Change != nil && touched(*e.Change) == "items:9" {
						return true
					}
				}
				return false
			})
		})
	}
}

// A crash begins a new epoch, even if the role has no right but to replicate.
func TestACrashIsNoticedWithoutTheRightToStatistics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Postgres(t))
	_, address := w.role("REPLICATION")
	w.awaitFollowing(w.followWith(address, w.log, silent))
	w.heartbeat()
	before := w.epoch
	must(syscall.Kill(int(w.db.PgConn().PID()), syscall.SIGKILL))
	w.eventually("a new epoch", func() bool { e, _ := w.log.Epoch(w.ctx()); return e != before })
}

// TestServersThatFail crashes, promotes and restores a server of its own.
func TestServersThatFail(t *testing.T) {
	t.Parallel()
	p := sandboxtest.PostgresWith(t, map[string]string{
		"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})
	w := newWorld(t, p)
	f := w.follow()
	w.awaitFollowing(f)
	w.heartbeat()
	newEpoch := func(what string, fail func()) {
		t.Helper()
		before := w.epoch
		fail()
		w.eventually(what+": a new epoch", func() bool { e, _ := w.log.Epoch(w.ctx()); return e != before })
		w.connect()
		w.awaitFollowing(f)
		w.exec("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
		w.await(what+": a change", func(e changefeed.Entry) bool { return e.Change != nil })
		w.heartbeat()
	}
	restart := func(s syscall.Signal) func() {
		return func() {
			must(p.Kill(s))
			must(p.Restart(w.ctx()))
		}
	}
	newEpoch("SIGQUIT", restart(syscall.SIGQUIT))
	newEpoch("SIGINT", restart(syscall.SIGINT))
	newEpoch("one backend", func() {
		must(syscall.Kill(int(w.db.PgConn().PID()), syscall.SIGKILL))
	})
	newEpoch("lost by max_slot_wal_keep_size", func() {
		f.stop()
		for range 3 {
			w.exec("SELECT pg_logical_emit_message(true, 'fill', repeat('x', 17000000))")
			w.exec("SELECT pg_switch_wal()")
			w.exec("CHECKPOINT")
		}
		if is := w.text("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '" + w.slotName() + "'"); is != "lost" {
			t.Fatalf("the slot is %s", is)
		}
		f = w.follow()
	})

	t.Run("a commit that hangs in synchronous replication stays unsettled", func(t *testing.T) {
		w := *w
		w.T = t
		end := w.withSetting("synchronous_standby_names", "nobody")
		waiting, done := w.hang()
		c := *w.await("the change", func(e changefeed.Entry) bool { return e.Change != nil && touched(*e.Change) == "items:7" }).Change
		unsettled := func(h changefeed.Heartbeat) bool {
			return len(h.Unsettled) == 1 && h.Unsettled[0].XID == c.XID && touched(h.Unsettled[0]) == "whole:items"
		}
		// Wait longer than the slot retains published WAL. Then the next term begins.
		for began := time.Now(); time.Since(began) < 4*time.Second; {
			if h := w.heartbeat(); !unsettled(h) {
				t.Fatalf("%+v", h)
			}
		}
		f.stop()
		f = w.follow()
		w.awaitFollowing(f)
		w.heartbeat() // the first of the term may come before the commit is decoded again
		if h := w.heartbeat(); !unsettled(h) {
			t.Fatalf("the next term does not know of it: %+v", h)
		}
		if w.text("SELECT count(*)::text FROM items WHERE name = 'hangs'") != "0" {
			t.Error("visible already")
		}
		w.endHanging(waiting, done)
		w.await("it settles", func(e changefeed.Entry) bool { return e.Heartbeat != nil && len(e.Heartbeat.Unsettled) == 0 })
		end()
	})

	// Between two views a partition is attached, and a row of it is committed that is not
	// visible yet.
	t.Run("a commit that hangs, of a partition that was attached since the last view", func(t *testing.T) {
		w := newWorld(t, p)
		w.exec(partitioned + "CREATE TABLE elsewhere (LIKE items INCLUDING ALL); ALTER TABLE items DETACH PARTITION items_1; SET synchronous_commit = local")
		seldom := w.follower(w.url, w.log, silent, &fleet.Followed{})
		seldom.SetPeriod(2 * time.Second)
		f := w.run(seldom)
		w.awaitFollowing(f)
		before := w.heartbeat().Catalog
		end := w.withSetting("synchronous_standby_names", "nobody")
		w.heartbeat()
		w.exec("ALTER TABLE items ATTACH PARTITION elsewhere FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
		waiting, done := open(t, w.url), make(chan error, 1)
		var xid uint64
		must2(waiting.Exec(w.ctx(), "BEGIN"))
		must(waiting.QueryRow(w.ctx(), `WITH row AS (INSERT INTO elsewhere (workspace_id, name) SELECT id, 'hangs'
			FROM (SELECT gen_random_uuid() id FROM generate_series(1, 50)) x WHERE satisfies_hash_partition('items'::regclass, 2, 1, id) LIMIT 1)
			SELECT pg_current_xact_id()::text::bigint`).Scan(&xid))
		go func() {
			_, err := waiting.Exec(context.Background(), "COMMIT")
			done <- err
		}()
		w.eventually("the commit hangs", func() bool {
			return w.text("SELECT coalesce((SELECT wait_event FROM pg_stat_activity WHERE pid = "+pidOf(waiting)+"), '')") == "SyncRep"
		})
		hung := w.text("SELECT pg_current_wal_flush_lsn()::text")
		w.eventually("it is decoded", func() bool {
			return w.text("SELECT coalesce(bool_or(write_lsn >= '"+hung+"'), false)::text FROM pg_stat_replication "+
				"WHERE application_name = 'listedge follower'") == "true"
		})
		decoded := must2(pglogrepl.ParseLSN(hung))
		published := false
		w.await("a heartbeat of the changed catalog, behind the commit", func(e changefeed.Entry) bool {
			published = published || e.Change != nil && e.Change.XID == xid
			return e.Heartbeat != nil && e.Heartbeat.Catalog != before && pglogrepl.LSN(e.Heartbeat.LSN) >= decoded
		})
		if !published {
			t.Error("the hanging commit is not published")
		}
		w.exec("SELECT pg_cancel_backend(" + pidOf(waiting) + ")")
		must(<-done)
		end()
		f.stop()
	})

	t.Run("a frozen server does not keep the follower from ending", func(t *testing.T) {
		must(p.Freeze())
		defer func() { must(p.Thaw()) }()
		began := time.Now()
		f.stop()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %s", took)
		}
	})
	f.stop()
	w.eventually("no connection is left", func() bool {
		return w.text("SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'listedge follower'") == "0"
	})
}

// withSetting changes a setting of the server until the returned function is called.
func (w *world) withSetting(name, value string) (end func()) {
	w.Helper()
	set := func(sql string, on bool) {
		w.Helper()
		conn := open(w.T, w.postgres.URL("postgres"))
		for _, sql := range []string{sql, "SELECT pg_reload_conf()"} {
			must2(conn.Exec(w.ctx(), sql))
		}
		w.eventually(sql, func() (is bool) {
			fresh := open(w.T, w.postgres.URL("postgres"))
			defer fresh.Close(context.Background())
			if err := fresh.QueryRow(w.ctx(), "SELECT current_setting($1) = $2", name, value).Scan(&is); err != nil {
				w.Fatal(err)
			}
			return is == on
		})
	}
	set(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value), true)
	return func() { set("ALTER SYSTEM RESET "+name, false) }
}
