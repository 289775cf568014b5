package follower_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/list"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
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

// Every missing prerequisite is reported with what to do, and a repair is noticed. No heartbeat
// sees rows that are not published.
func TestAMissingPrerequisiteIsReportedUntilItIsMended(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role, before, breaks, mends, why string
	}{
		"REPLICATION":   {"NOREPLICATION", "", "", "ALTER ROLE ROLENAME REPLICATION", "REPLICATION"},
		"publication":   {"", "", "DROP PUBLICATION listedge", "CREATE PUBLICATION listedge FOR ALL TABLES", "is missing"},
		"a table of it": {"", "", "ALTER PUBLICATION listedge DROP TABLE contacts", "ALTER PUBLICATION listedge ADD TABLE contacts", "contacts"},
		"a column of it": {"", "", "ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys (workspace_id)",
			"ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys", "api_keys"},
		"rows of it": {"", "", "ALTER PUBLICATION listedge SET TABLE items WHERE (active), contacts, workspaces, api_keys",
			"ALTER PUBLICATION listedge SET TABLE items, contacts, workspaces, api_keys", "items"},
		"an operation of it": {"", "", "ALTER PUBLICATION listedge SET (publish = 'insert')",
			"ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate')", "truncates"},
		"the key of it": {"", "", "ALTER TABLE items DROP CONSTRAINT items_pkey CASCADE; ALTER TABLE items ADD PRIMARY KEY (id)",
			"ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id)", "changed row of public.items"},
		"another identity": {"", "", "ALTER TABLE contacts DROP CONSTRAINT IF EXISTS one; ALTER TABLE contacts ADD CONSTRAINT one UNIQUE (id); " +
			"ALTER TABLE contacts REPLICA IDENTITY USING INDEX one", "ALTER TABLE contacts REPLICA IDENTITY FULL", "changed row of public.contacts"},
		"no identity": {"", "",
			"ALTER TABLE contacts REPLICA IDENTITY NOTHING", "ALTER TABLE contacts REPLICA IDENTITY DEFAULT", "changed row of public.contacts"},
		"no identity of keys": {"", "",
			"ALTER TABLE api_keys REPLICA IDENTITY NOTHING", "ALTER TABLE api_keys REPLICA IDENTITY DEFAULT", "changed row of public.api_keys"},
		"an unlogged table": {"", "", "ALTER PUBLICATION listedge DROP TABLE items; ALTER TABLE items SET UNLOGGED",
			"ALTER TABLE items SET LOGGED; ALTER PUBLICATION listedge ADD TABLE items", "lacks public.items"},
		"a table of a schema": {before: "CREATE SCHEMA away; DROP PUBLICATION listedge; CREATE PUBLICATION listedge FOR TABLES IN SCHEMA public",
			breaks: "ALTER TABLE items SET SCHEMA away", mends: "ALTER TABLE away.items SET SCHEMA public", why: "items"},
		"a view in a table's place": {before: "DROP PUBLICATION listedge; CREATE PUBLICATION listedge FOR ALL TABLES",
			breaks: "ALTER TABLE items RENAME TO items_old; CREATE VIEW items AS SELECT * FROM items_old",
			mends:  "DROP VIEW items; ALTER TABLE items_old RENAME TO items", why: "lacks public.items"},
		"a table":             {breaks: "ALTER TABLE items RENAME TO items_old", mends: "ALTER TABLE items_old RENAME TO items", why: "items"},
		"a column of a table": {breaks: "ALTER TABLE items RENAME sku TO sku2", mends: "ALTER TABLE items RENAME sku2 TO sku", why: "lacks public.items, or some"},
		"a foreign partition": {before: `ALTER TABLE items RENAME TO items_old; CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS) PARTITION BY HASH (workspace_id);
			CREATE TABLE near PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0); ALTER TABLE items REPLICA IDENTITY FULL; ALTER TABLE near REPLICA IDENTITY FULL;
			ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w`,
			breaks: "CREATE FOREIGN TABLE far PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1) SERVER s", // whose rows are in no WAL of this server
			mends:  "ALTER TABLE public.items DETACH PARTITION public.far; DROP FOREIGN TABLE far", why: "lacks the rows of public.far, which"},
		"a table that inherits": {before: "CREATE TABLE child (LIKE items INCLUDING ALL)", breaks: "ALTER TABLE child INHERIT items",
			mends: "ALTER TABLE child NO INHERIT items", why: "the rows of public.child, which"},
		"a new table that inherits": {breaks: "CREATE TABLE child () INHERITS (items)", mends: "DROP TABLE child", why: "the rows of public.child, which"},
		"an unlogged partition of a partition": {before: deep, breaks: "ALTER TABLE deeper SET UNLOGGED", mends: "ALTER TABLE deeper SET LOGGED",
			why: "lacks the rows of public.deeper, which"},
		"a new unlogged partition": {before: deep, breaks: `CREATE UNLOGGED TABLE "Quick" PARTITION OF deep FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
			mends: `DROP TABLE "Quick"`, why: `lacks the rows of public."Quick", which`},
		"an unlogged table that becomes a partition": {before: deep + `; CREATE UNLOGGED TABLE "quick one" (LIKE items INCLUDING ALL)`,
			breaks: `ALTER TABLE deep ATTACH PARTITION "quick one" FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
			mends:  `ALTER TABLE deep DETACH PARTITION "quick one"`, why: `ALTER TABLE public."quick one" SET LOGGED`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			address := w.url
			var role string
			if c.role != "" {
				role, address = w.role(c.role)
			}
			for _, sql := range []string{c.before, c.breaks} {
				if sql != "" {
					w.exec(sql)
				}
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
			epoch := w.epoch
			w.exec(c.breaks) // and while it follows
			xid := w.text("SELECT pg_current_xact_id()::text")
			w.incapable(f, c.why)
			unpublished := strings.Contains(f.Incapable().Error(), "lacks the rows of")
			for _, e := range must2(readLog(w.ctx(), w.log, w.epoch, w.at, time.Millisecond)) {
				if unpublished && e.Heartbeat != nil && sees(e.Heartbeat.Snapshot, xid) {
					t.Error("a heartbeat sees it")
				}
			}
			w.exec(c.mends)
			if w.awaitFollowing(f); w.epoch == epoch {
				t.Error("the epoch goes on, although changes may be missing")
			}
		})
	}
}

// What is read of the tables waits for no lock of them, nor of their partitions.
func TestLockedTablesHoldNoCheckUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(deep)
	conn := open(t, w.url)
	must2(conn.Exec(w.ctx(), "SET lock_timeout = 1"))
	w.exec("BEGIN; LOCK TABLE items, contacts, api_keys IN ACCESS EXCLUSIVE MODE")
	p, err := follower.ReadPublication(w.ctx(), conn, w.lists)
	if defect, _ := p.Defect(); err != nil || defect != "" {
		t.Errorf("%v: %s", err, defect)
	}
	if steps, err := admin.MissingOfLists(w.ctx(), conn, w.lists); err != nil || len(steps) == 0 {
		t.Errorf("%v: %v", err, steps)
	}
	text, err := list.Parse("lists.yaml", []byte("lists:\n  items: {key: id, tenant: workspace_id, fields: {id: }, orders: {name: }}\n"))
	must(err)
	address, err := url.Parse(w.url)
	must(err)
	address.RawQuery = "lock_timeout=1&" + address.RawQuery
	if _, err := admin.ResolveLists(w.ctx(), address.String(), text); err != nil {
		t.Error(err)
	}
	w.exec("ROLLBACK") // for it new slots wait
}

// deep divides items into partitions of partitions.
const deep = partitioned + `ALTER TABLE items DETACH PARTITION items_1;
	CREATE TABLE deep PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1) PARTITION BY HASH (workspace_id);
	CREATE TABLE deeper PARTITION OF deep FOR VALUES WITH (MODULUS 2, REMAINDER 0)`

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
		w.exec("TRUNCATE played.settings; INSERT INTO played.settings VALUES ('wal_level', '" + c.level +
			"'), ('effective_wal_level', nullif('" + c.effective + "', ''))")
		w.exec("SET search_path = played, pg_catalog")
		if level := w.text("SELECT " + follower.WALLevelSQL); level != c.want {
			t.Errorf("%+v: %s", c, level)
		}
		w.exec("RESET search_path")
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

// What is wrong with the tables of lists is said with their schemas, and with what mends it.
func TestDefectsOfShapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."Goods" (id int, shop int NOT NULL, name text NOT NULL);
		CREATE UNIQUE INDEX "of shop" ON "Shop"."Goods" (shop, id);
		ALTER TABLE "Shop"."Goods" ALTER id SET NOT NULL; CREATE TABLE parent (LIKE "Shop"."Goods" INCLUDING ALL); CREATE SEQUENCE once`)
	w.describe(`
lists:
  goods:
    table: Shop.Goods
    tenant: shop
    key: id
    fields: {id: , name: }
    orders: {name: {by: name}}
`)
	publication := func() (defect, remedy, reason string) {
		p := must2(follower.ReadPublication(w.ctx(), w.db, w.lists))
		defect, remedy = p.Defect()
		reason, _ = p.RowsUnnamed()
		return defect, remedy, reason
	}
	for _, c := range []struct{ sql, defect, remedy, reason string }{
		{"", `lacks "Shop"."Goods", or some`, "listedge lists plan", "which row of Shop.Goods was"},
		{`ALTER PUBLICATION listedge ADD TABLE "Shop"."Goods" (id, shop)`, `lacks "Shop"."Goods", or some`, "listedge lists plan", "which row of Shop.Goods was"},
		{`ALTER PUBLICATION listedge SET TABLE "Shop"."Goods", api_keys, workspaces`, `changed row of "Shop"."Goods"`,
			`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY USING INDEX "of shop"`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY USING INDEX "of shop"`, "", "", ""},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT; ALTER TABLE "Shop"."Goods" ADD PRIMARY KEY (id); DROP INDEX "Shop"."of shop"`,
			`changed row of "Shop"."Goods"`, `ALTER TABLE "Shop"."Goods" REPLICA IDENTITY FULL`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY FULL`, "", "", ""},
		{`ALTER TABLE "Shop"."Goods" DROP CONSTRAINT "Goods_pkey"`, "", "", "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" ADD PRIMARY KEY (shop, id); ALTER TABLE "Shop"."Goods" REPLICA IDENTITY NOTHING`, `changed row of "Shop"."Goods"`,
			`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT; CREATE TABLE "Shop".child () INHERITS ("Shop"."Goods")`,
			`lacks the rows of "Shop".child, which`, `ALTER TABLE "Shop".child NO INHERIT "Shop"."Goods"`, ""},
		{`DROP TABLE "Shop".child; ALTER TABLE "Shop"."Goods" RENAME name TO title`, `lacks "Shop"."Goods", or some`, "listedge lists plan", ""},
		{`DROP TABLE "Shop"."Goods"`, `lacks "Shop"."Goods", or some`, "listedge lists plan", ""},
	} {
		if c.sql != "" {
			w.exec(c.sql)
		}
		defect, remedy, reason := publication()
		for _, p := range [][2]string{{defect, c.defect}, {remedy, c.remedy}, {reason, c.reason}} {
			if p[1] == "" && p[0] != "" || !strings.Contains(p[0], p[1]) {
				t.Errorf("%s: %q, want %q", c.sql, p[0], p[1])
			}
		}
	}
}
