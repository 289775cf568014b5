package follower_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/follower"
)

// role makes a role that may read the tables, with the attributes, and returns
// the URL to connect as it.
func (w *world) role(attributes string) (name, address string) {
	w.Helper()
	name = "role_" + w.name
	w.exec("CREATE ROLE " + name + " LOGIN PASSWORD 'p' " + attributes)
	u, err := url.Parse(w.url)
	if err != nil {
		w.Fatal(err)
	}
	u.User = url.UserPassword(name, "p")
	return name, u.String()
}

// incapable waits until the follower says why it cannot follow.
func (w *world) incapable(f running, why string) {
	w.Helper()
	w.eventually("incapable: "+why, func() bool {
		err := f.Incapable()
		return errors.Is(err, follower.ErrIncapable) && strings.Contains(err.Error(), why)
	})
}

// Every missing prerequisite is reported with what to do, and a repair is noticed.
func TestAMissingPrerequisiteIsReportedUntilItIsMended(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role, breaks, mends, why string
	}{
		"REPLICATION":   {"NOREPLICATION", "", "ALTER ROLE ROLENAME REPLICATION", "REPLICATION"},
		"publication":   {"", "DROP PUBLICATION listedge", "CREATE PUBLICATION listedge FOR ALL TABLES", "is missing"},
		"a table of it": {"", "ALTER PUBLICATION listedge DROP TABLE contacts", "ALTER PUBLICATION listedge ADD TABLE contacts", "contacts"},
		"a column of it": {"", "ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys (workspace_id)",
			"ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys", "api_keys"},
		"rows of it": {"", "ALTER PUBLICATION listedge SET TABLE items WHERE (active), contacts, workspaces, api_keys",
			"ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys", "items"},
		"an operation of it": {"", "ALTER PUBLICATION listedge SET (publish = 'insert')",
			"ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate')", "truncates"},
		"the key of it": {"", "ALTER TABLE items DROP CONSTRAINT items_pkey CASCADE; ALTER TABLE items ADD PRIMARY KEY (id)",
			"ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id)", "changed row of items"},
		"another identity": {"", "ALTER TABLE contacts DROP CONSTRAINT IF EXISTS one; ALTER TABLE contacts ADD CONSTRAINT one UNIQUE (id); " +
			"ALTER TABLE contacts REPLICA IDENTITY USING INDEX one", "ALTER TABLE contacts REPLICA IDENTITY FULL", "changed row of contacts"},
		"no identity":         {"", "ALTER TABLE contacts REPLICA IDENTITY NOTHING", "ALTER TABLE contacts REPLICA IDENTITY DEFAULT", "changed row of contacts"},
		"no identity of keys": {"", "ALTER TABLE api_keys REPLICA IDENTITY NOTHING", "ALTER TABLE api_keys REPLICA IDENTITY DEFAULT", "changed row of api_keys"},
		"an unlogged table": {"", "ALTER PUBLICATION listedge DROP TABLE items; ALTER TABLE items SET UNLOGGED",
			"ALTER TABLE items SET LOGGED; ALTER PUBLICATION listedge ADD TABLE items", "lacks items"},
		"a table": {"", "ALTER TABLE items RENAME TO items_old", "ALTER TABLE items_old RENAME TO items", "items"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			address := w.url
			var role string
			if c.role != "" {
				role, address = w.role(c.role)
			}
			if c.breaks != "" {
				w.exec(c.breaks)
			}
			f := w.followWith(address, w.log, silent)
			w.incapable(f, c.why)
			w.exec(strings.ReplaceAll(c.mends, "ROLENAME", role))
			w.awaitFollowing(f)
			w.heartbeat()
			if f.Incapable() != nil {
				t.Error(f.Incapable())
			}
			if c.breaks == "" || strings.Contains(c.breaks, "SET TABLE items WHERE") {
				return
			}
			w.exec(c.breaks) // and while it follows
			w.incapable(f, c.why)
		})
	}
}

func TestAMissingSettingIsReported(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"wal_level": "replica", "max_replication_slots": "2", "max_wal_senders": "1"}
	p := sandboxtest.PostgresWith(t, settings)
	w := newWorld(t, p)
	f := w.follow()
	w.incapable(f, "wal_level is replica")
	settings["wal_level"] = "logical"
	must(p.Restart(w.ctx()))
	w.connect()
	w.exec("SELECT pg_create_physical_replication_slot('another')")
	w.incapable(f, "max_replication_slots")
	w.exec("SELECT pg_drop_replication_slot('another')")
	w.awaitFollowing(f)
	w.exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	w.exec("SELECT pg_reload_conf()")
	w.incapable(f, "synchronous_standby_names")
	w.awaitFree() // otherwise a commit would wait for the walsender
	w.exec("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (listedge, \"a*\")'")
	w.exec("SELECT pg_reload_conf()")
	w.awaitFollowing(f)
	f.stop()
}

// Since Postgres 19 a slot raises the level that is in force. The settings of such a server are played
// by a function that hides Postgres' own.
func TestTheLevelThatASlotGets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE SCHEMA played;
		CREATE TABLE played.settings (name text, value text);
		CREATE FUNCTION played.current_setting(n text, missing bool DEFAULT false) RETURNS text LANGUAGE sql AS 'SELECT value FROM played.settings WHERE name = n'`)
	for _, c := range []struct{ level, effective, want string }{
		{"logical", "", "logical"}, {"replica", "", "replica"}, {"minimal", "", "minimal"}, // up to 18
		{"logical", "logical", "logical"}, {"replica", "replica", "logical"}, {"replica", "logical", "logical"}, {"minimal", "minimal", "minimal"},
	} {
		w.exec("TRUNCATE played.settings; INSERT INTO played.settings VALUES ('wal_level', '" + c.level + "'), ('effective_wal_level', nullif('" + c.effective + "', ''))")
		w.exec("SET search_path = played, pg_catalog")
		if level := w.text("SELECT " + follower.WALLevelSQL); level != c.want {
			t.Errorf("%+v: %s", c, level)
		}
		w.exec("RESET search_path")
	}
}

func TestHeartbeatsGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	f := w.follow()
	w.awaitFollowing(f)
	proofs := func(what string, n int) {
		t.Helper()
		for range n {
			end, err := w.log.Last(t.Context(), w.epoch)
			if err != nil {
				t.Fatal(err)
			}
			beats := 0
			w.await("a proof", func(e changefeed.Entry) bool {
				if e.Heartbeat != nil && e.Position.Compare(end) > 0 {
					beats++
				}
				return e.Heartbeat != nil && e.Heartbeat.After.Compare(end) > 0
			})
			if beats > 2 { // the first one's snapshot may have been taken before
				t.Errorf("%s: a proof takes %d heartbeats", what, beats)
			}
		}
	}
	proofs("idle", 10)
	long := open(t, w.url)
	must2(long.Exec(t.Context(), "BEGIN; INSERT INTO items (workspace_id, name) SELECT gen_random_uuid(), 'x' FROM generate_series(1, 500)"))
	proofs("an open write transaction", 20)
	w.exec("SET synchronous_commit = off")
	for n := range 20 {
		w.exec(ids(fmt.Sprintf("INSERT INTO items (workspace_id, name) VALUES ($%d, 'x')", n%9+1)))
		if n%5 == 0 {
			proofs("asynchronous commits", 1)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if _, err := w.db.Exec(ctx, ids("INSERT INTO contacts (workspace_id, name) VALUES ($1, 'x')")); err == nil {
				n++
			}
		}
		done <- n
	}()
	proofs("load", 20)
	stop()
	t.Logf("%d commits under load", <-done)
	if s := f.Stats(); s.Terms != 1 || s.Commits < 20 || !s.Following || s.Retained == 0 {
		t.Errorf("%+v", s)
	}
}

func TestAnIdleDatabaseRetainsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	confirmed := func() pglogrepl.LSN {
		l, err := pglogrepl.ParseLSN(w.text("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '" + w.slotName() + "'"))
		must(err)
		return l
	}
	here := w.heartbeat().LSN
	w.eventually("the slot is confirmed", func() bool { return confirmed() >= pglogrepl.LSN(here) })
}

// If the URL names several servers, the primary is followed even if a standby comes first.
func TestThePrimaryIsFollowedWhereverTheURLNamesIt(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	w := newWorld(t, primary)
	standby := sandboxtest.Standby(t, primary, nil)
	f := w.followWith(strings.Replace(w.url, primary.Addr(), standby.Addr()+","+primary.Addr(), 1), w.log, silent)
	w.awaitFollowing(f)
	if err := f.Incapable(); err != nil {
		t.Error(err)
	}
}
