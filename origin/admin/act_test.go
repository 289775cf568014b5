package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// newest is the newest entry of the log.
func newest(t testing.TB, c *Conn) audit.Entry {
	t.Helper()
	list := entries(t, c, audit.Filter{})
	if len(list) == 0 {
		t.Fatal("the audit log is empty")
	}
	return list[0]
}

func entries(t testing.TB, c *Conn, f audit.Filter) []audit.Entry {
	t.Helper()
	if f.Limit == 0 {
		f.Limit = 1000
	}
	list := must1(c.Audit(t.Context(), f))
	return list
}

// count is how many rows a table has.
func count(t testing.TB, c *Conn, table string) (rows int) {
	t.Helper()
	must(c.conn.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&rows))
	return rows
}

// oneAct is a call of a method that changes something, with its row in the audit log.
type oneAct struct {
	action  string
	do      func(ctx context.Context, c *Conn, w Workspace, k Key) error
	key     bool     // the act is on the key k; otherwise on the workspace w
	changed []string // the names of the details
}

// The methods of Conn: actsByMethod, makers and purge change something, reads do not.
var (
	actsByMethod = map[string]oneAct{
		"UpdateWorkspace": {"workspaces.update", func(ctx context.Context, c *Conn, w Workspace, _ Key) error {
			_, err := c.UpdateWorkspace(ctx, w.ID, new(7.0), new(int32(70)), &apikey.Quota{Requests: 9, Period: apikey.Day}, "")
			return err
		}, false, []string{"burst", "quota", "ratePerSecond"}},
		"SuspendWorkspace": {"workspaces.suspend", func(ctx context.Context, c *Conn, w Workspace, _ Key) error {
			_, err := c.SuspendWorkspace(ctx, w.ID)
			return err
		}, false, []string{"suspendedAt"}},
		"ResumeWorkspace": {"workspaces.resume", func(ctx context.Context, c *Conn, w Workspace, _ Key) error {
			_, err := c.ResumeWorkspace(ctx, w.ID)
			return err
		}, false, []string{"suspendedAt"}},
		"UpdateKey": {"keys.update", func(ctx context.Context, c *Conn, _ Workspace, k Key) error {
			_, err := c.UpdateKey(ctx, k.ID, new(8.5), nil)
			return err
		}, true, []string{"ratePerSecond"}},
		"RotateKey": {"keys.rotate", func(ctx context.Context, c *Conn, _ Workspace, k Key) error {
			_, err := c.RotateKey(ctx, k.ID, time.Hour, nil)
			return err
		}, true, []string{"expiresAt", "newKey"}},
		"RevokeKey": {"keys.revoke", func(ctx context.Context, c *Conn, _ Workspace, k Key) error {
			_, err := c.RevokeKey(ctx, k.ID)
			return err
		}, true, []string{"revokedAt"}},
	}
	makers = []string{"CreateWorkspace", "CreateKey", "ImportKeys"}
	purge  = []string{"Purge"} // needs a follower
	reads  = []string{"Audit", "Close", "Key", "Keys", "Stored", "Usage", "UsageSince", "Workspaces"}
)

// A method that is in neither list is new: say there whether it changes something.
func TestEveryMethodIsKnownToChangeOrToRead(t *testing.T) {
	t.Parallel()
	known := slices.Concat(makers, purge, reads, slices.Collect(maps.Keys(actsByMethod)))
	for method := range reflect.TypeFor[*Conn]().Methods() {
		if !slices.Contains(known, method.Name) {
			t.Errorf("does %s write a row of listedge_audit_log?", method.Name)
		}
	}
}

func TestEachActHasOneRowInTheAuditLog(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c := openAdmin(t, url)
	const actor = "Zoë (on call)"
	ctx := audit.As(t.Context(), actor)
	check := func(t *testing.T, before int, action string, workspace uuid.UUID, key *uuid.UUID, changed ...string) audit.Entry {
		t.Helper()
		e := newest(t, c)
		if rows := count(t, c, "listedge_audit_log") - before; rows != 1 {
			t.Errorf("%d rows", rows)
		}
		if e.Actor != actor || e.Role != "postgres" || e.Action != action || e.WorkspaceID == nil || *e.WorkspaceID != workspace ||
			!reflect.DeepEqual(e.KeyID, key) ||
			time.Since(e.At).Abs() > time.Hour {
			t.Errorf("%+v", e)
		}
		if names := slices.Sorted(maps.Keys(e.Details)); !slices.Equal(names, changed) {
			t.Errorf("%s: %v, want %v", action, e.Details, changed)
		}
		return e
	}

	before := count(t, c, "listedge_audit_log")
	w, err := c.CreateWorkspace(ctx, strings.Repeat("W", 60_000), new(5.0), nil, nil, "")
	must(err)
	e := check(t, before, "workspaces.create", w.ID, nil, "burst", "name", "quota", "ratePerSecond", "tenant")
	if name := e.Details["name"].(string); len(name) > 300 || e.Details["ratePerSecond"] != 5.0 {
		t.Errorf("%v", e.Details)
	}
	before = count(t, c, "listedge_audit_log")
	k, err := c.CreateKey(ctx, Key{WorkspaceID: w.ID, Name: "Sync"}, nil)
	must(err)
	check(t, before, "keys.create", w.ID, &k.ID, "burst", "expiresAt", "name", "ratePerSecond", "scopes")
	for _, method := range []string{"UpdateWorkspace", "SuspendWorkspace", "ResumeWorkspace", "UpdateKey", "RotateKey", "RevokeKey"} {
		t.Run(method, func(t *testing.T) {
			act := actsByMethod[method]
			before := count(t, c, "listedge_audit_log")
			must(act.do(ctx, c, w, k))
			var key *uuid.UUID
			if act.key {
				key = &k.ID
			}
			check(t, before, act.action, w.ID, key, act.changed...)
		})
	}

	t.Run("values before and after", func(t *testing.T) {
		for _, e := range entries(t, c, audit.Filter{}) {
			if e.Action == "workspaces.update" && fmt.Sprint(e.Details) !=
				"map[burst:map[from:<nil> to:70] quota:map[from:<nil> to:map[period:day requests:9]] ratePerSecond:map[from:5 to:7]]" {
				t.Errorf("%v", e.Details)
			}
		}
	})
	t.Run("neither the text nor the hash of a key", func(t *testing.T) {
		rotated, err := c.RotateKey(ctx, must1(c.CreateKey(ctx, Key{WorkspaceID: w.ID}, nil)).ID, 0, nil)
		must(err)
		var dump string
		must(c.conn.QueryRow(t.Context(), "SELECT string_agg(a::text, ' ') FROM listedge_audit_log a").Scan(&dump))
		for _, text := range []string{k.Key, rotated.Key.Key} {
			hash, _ := apikey.HashOf([]byte(text))
			for _, secret := range []string{text[apikey.VisiblePrefix:], hex.EncodeToString(hash[:])} {
				if strings.Contains(dump, secret) {
					t.Errorf("the log has %q", secret)
				}
			}
		}
	})
	t.Run("without an actor, the system user's", func(t *testing.T) {
		must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
		me, err := user.Current()
		must(err)
		if e := newest(t, c); e.Actor != me.Username {
			t.Errorf("%+v, want %s", e, me.Username)
		}
	})
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// The row and the change are committed together, or neither is.
func TestAFailedActLeavesNoRow(t *testing.T) {
	t.Parallel()
	// Each trigger lets both statements pass and the commit fail, or the second statement.
	for name, sql := range map[string]string{
		"the commit fails": `
			CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$;
			CREATE CONSTRAINT TRIGGER broken AFTER INSERT ON listedge_audit_log DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION broken()`,
		"the log cannot be written": `
			CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$;
			CREATE TRIGGER broken BEFORE INSERT ON listedge_audit_log FOR EACH ROW EXECUTE FUNCTION broken()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, w, k := acting(t)
			exec(t, c.conn, sql)
			state := func() (all string) {
				for _, table := range []string{"workspaces", "api_keys", "listedge_audit_log"} {
					var rows *string
					must(c.conn.QueryRow(t.Context(), `SELECT string_agg(r::text, ' ' ORDER BY r::text) FROM `+table+` r`).Scan(&rows))
					all += table + fmt.Sprintln(*rows)
				}
				return all
			}
			before := state()
			for method, act := range actsByMethod {
				if err := act.do(t.Context(), c, w, k); err == nil || !strings.Contains(err.Error(), "broken") {
					t.Errorf("%s: %v", method, err)
				}
			}
			if made, err := c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil); err == nil || made.Key != "" {
				t.Errorf("%+v, %v", made, err)
			}
			if _, err := c.CreateWorkspace(t.Context(), "V", nil, nil, nil, ""); err == nil {
				t.Error("a workspace")
			}
			if after := state(); after != before {
				t.Errorf("%s\nbefore: %s", after, before)
			}
		})
	}
	t.Run("what the command refuses", func(t *testing.T) {
		t.Parallel()
		c := openAdmin(t, newDatabase(t))
		before := count(t, c, "listedge_audit_log")
		for method, act := range actsByMethod {
			if err := act.do(t.Context(), c, Workspace{ID: uuid.New()}, Key{ID: uuid.New()}); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s of nothing: %v", method, err)
			}
		}
		if rows := count(t, c, "listedge_audit_log"); rows != before {
			t.Errorf("%d rows, before %d", rows, before)
		}
	})
	t.Run("a schema without the log", func(t *testing.T) {
		t.Parallel()
		c := openAdmin(t, newDatabase(t))
		exec(t, c.conn, "DROP TABLE listedge_audit_log")
		if _, err := c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""); err == nil || !strings.Contains(err.Error(), "listedge migrate up") {
			t.Error(err)
		}
		if n := count(t, c, "workspaces"); n != 0 {
			t.Errorf("%d workspaces", n)
		}
	})
}

func TestTheAuditLogIsAppendOnly(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c := openAdmin(t, url)
	must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	rows := count(t, c, "listedge_audit_log")
	role := "owner_" + strings.ReplaceAll(uuid.NewString()[:8], "-", "")
	exec(t, c.conn, "CREATE ROLE "+role+"; ALTER TABLE listedge_audit_log OWNER TO "+role+"; GRANT ALL ON SCHEMA public TO "+role)
	t.Cleanup(func() { execOn(t, url, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	for who, settings := range map[string]string{
		"a superuser": "RESET ROLE", "the owner": "SET ROLE " + role, "a replication session": "SET session_replication_role = replica",
	} {
		t.Run(who, func(t *testing.T) {
			conn := connect(t, url)
			exec(t, conn, settings)
			for _, change := range []string{
				"UPDATE listedge_audit_log SET actor = 'nobody'", "UPDATE listedge_audit_log SET actor = 'nobody' WHERE false",
				"DELETE FROM listedge_audit_log", "TRUNCATE listedge_audit_log",
			} {
				if _, err := conn.Exec(t.Context(), change); postgres.Code(err) != "42501" || !strings.Contains(err.Error(), "append-only") {
					t.Errorf("%s: %v", change, err)
				}
			}
		})
	}
	t.Run("a logical subscription", func(t *testing.T) { // it fires only the triggers of rows
		for _, change := range []string{"UPDATE listedge_audit_log SET actor = 'nobody'", "DELETE FROM listedge_audit_log"} {
			tx := must1(connect(t, url).Begin(t.Context()))
			must1(tx.Exec(t.Context(), "SET session_replication_role = replica; ALTER TABLE listedge_audit_log DISABLE TRIGGER listedge_audit_log_append_only"))
			if _, err := tx.Exec(t.Context(), change); postgres.Code(err) != "42501" {
				t.Errorf("%s: %v", change, err)
			}
			_ = tx.Rollback(t.Context()) // where the trigger is broken the row is locked
		}
	})
	for what, insert := range map[string]string{
		"without an actor":    "INSERT INTO listedge_audit_log (actor, action) VALUES ('', 'purge')",
		"a long actor":        "INSERT INTO listedge_audit_log (actor, action) VALUES (repeat('x', 129), 'purge')",
		"endless details":     "INSERT INTO listedge_audit_log (actor, action, details) VALUES ('x', 'purge', to_jsonb(repeat('x', 9000)))",
		"a number of its own": "INSERT INTO listedge_audit_log (id, actor, action) VALUES (1, 'x', 'purge')",
	} {
		if _, err := c.conn.Exec(t.Context(), insert); err == nil {
			t.Error(what)
		}
	}
	if n := count(t, c, "listedge_audit_log"); n != rows {
		t.Errorf("%d rows, of %d", n, rows)
	}
}

// A role with the rights that docs/SECURITY.md names runs the commands, and can forge
// neither when a row was written nor by whom.
func TestARoleOfAPersonCannotForgeRows(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	role, as := postgrestest.Role(t, url, `GRANT USAGE ON SCHEMA public TO $ROLE; GRANT SELECT, INSERT, UPDATE ON workspaces, api_keys TO $ROLE;
		GRANT SELECT ON listedge_key_last_used, listedge_key_usage, listedge_usage_writers TO $ROLE; GRANT SELECT, INSERT ON listedge_key_forms TO $ROLE;
		GRANT SELECT, INSERT (actor, action, workspace_id, key_id, details) ON listedge_audit_log TO $ROLE`)
	c := openAdmin(t, as)
	w := must1(c.CreateWorkspace(audit.As(t.Context(), "Somebody else"), "W", nil, nil, nil, ""))
	k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
	must1(c.ImportKeys(t.Context(), w.ID, apikey.Form{Digest: apikey.SHA256}, []ImportedKey{hashedAs("theirs")}))
	for method, act := range actsByMethod {
		if method != "RevokeKey" { // after which it cannot be rotated
			must(act.do(t.Context(), c, w, k))
		}
	}
	must1(c.RevokeKey(t.Context(), k.ID))
	must1(c.Workspaces(t.Context()))
	must1(c.Usage(t.Context(), w.ID, time.Hour))
	must1(c.Keys(t.Context(), w.ID, new(time.Hour)))
	must1(c.UsageSince(t.Context()))
	list := entries(t, c, audit.Filter{Workspace: &w.ID})
	if len(list) != 3+len(actsByMethod) || list[len(list)-1].Actor != "Somebody else" {
		t.Errorf("%+v", list)
	}
	for _, e := range list {
		if e.Role != role {
			t.Errorf("%+v", e)
		}
	}
	for _, forged := range []string{
		"INSERT INTO listedge_audit_log (at, actor, action) VALUES ('2020-01-01', 'x', 'purge')",
		"INSERT INTO listedge_audit_log (role, actor, action) VALUES ('postgres', 'x', 'purge')",
		"ALTER TABLE listedge_audit_log DISABLE TRIGGER ALL", "DROP TABLE listedge_audit_log", "DELETE FROM listedge_audit_log",
	} {
		if _, err := c.conn.Exec(t.Context(), forged); postgres.Code(err) != "42501" {
			t.Errorf("%s: %v", forged, err)
		}
	}
}

func TestTheAuditLogIsFiltered(t *testing.T) {
	t.Parallel()
	c := openAdmin(t, newDatabase(t))
	w, other := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, "")), must1(c.CreateWorkspace(t.Context(), "Other", nil, nil, nil, ""))
	k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
	must1(c.CreateKey(t.Context(), Key{WorkspaceID: other.ID}, nil))
	next := must1(c.RotateKey(t.Context(), k.ID, time.Hour, nil))
	must1(c.RevokeKey(t.Context(), k.ID))
	// Yesterday's, which no command can write.
	exec(t, c.conn, `INSERT INTO listedge_audit_log (at, actor, action, workspace_id) VALUES (now() - interval '25 hours', 'x', 'purge', $1)`, w.ID)
	for name, s := range map[string]struct {
		filter audit.Filter
		want   string
	}{
		"a workspace":      {audit.Filter{Workspace: &w.ID}, "keys.revoke keys.rotate keys.create workspaces.create purge"},
		"another":          {audit.Filter{Workspace: &other.ID}, "keys.create workspaces.create"},
		"a key":            {audit.Filter{Key: &k.ID}, "keys.revoke keys.rotate keys.create"},
		"what replaced it": {audit.Filter{Key: &next.ID}, "keys.rotate"},
		"a day":            {audit.Filter{Workspace: &w.ID, Since: new(24 * time.Hour)}, "keys.revoke keys.rotate keys.create workspaces.create"},
		"so many":          {audit.Filter{Workspace: &w.ID, Limit: 2}, "keys.revoke keys.rotate"},
		"both":             {audit.Filter{Workspace: &other.ID, Key: &k.ID}, ""},
		"all that is there": {audit.Filter{Since: new(time.Hour)},
			"keys.revoke keys.rotate keys.create keys.create workspaces.create workspaces.create migrate.publication migrate.lists migrate.up"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range entries(t, c, s.filter) {
				got = append(got, e.Action)
			}
			if strings.Join(got, " ") != s.want {
				t.Errorf("%v, want %s", got, s.want)
			}
		})
	}
}

// What "migrate up" does is in the log; where it finds nothing to do, nothing is.
func TestMigrationsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c := openAdmin(t, url)
	all := entries(t, c, audit.Filter{})
	if len(all) != 3 || all[2].Action != "migrate.up" || len(all[2].Details["applied"].([]any)) == 0 || all[1].Action != "migrate.lists" ||
		!strings.HasPrefix(fmt.Sprint(all[1].Details), "map[made:[items contacts ") || all[0].Action != "migrate.publication" ||
		fmt.Sprint(all[0].Details) != "map[did:made the publication]" {
		t.Errorf("%+v", all)
	}
	must1(MigrateUp(t.Context(), url, list.BuiltIn()))
	if n := count(t, c, "listedge_audit_log"); n != 3 {
		t.Errorf("nothing to apply, and %d rows", n)
	}
	exec(t, c.conn, "ALTER PUBLICATION listedge DROP TABLE items")
	must1(MigrateUp(audit.As(t.Context(), "Ann"), url, list.BuiltIn()))
	if e := newest(t, c); count(t, c, "listedge_audit_log") != 4 || e.Actor != "Ann" || fmt.Sprint(e.Details) != "map[did:mended the publication]" {
		t.Errorf("%+v", e)
	}
}

// A change and its row are a transaction, which a pooler may or may not know.
func TestActsThroughAPooler(t *testing.T) {
	t.Parallel()
	for mode, works := range map[string]bool{"session": true, "transaction": true, "statement": false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			_, through := sandboxtest.PgBouncer(t, url, map[string]string{"pool_mode": mode})
			c := openAdmin(t, through)
			w, err := c.CreateWorkspace(t.Context(), "W", nil, nil, nil, "")
			if !works {
				if err == nil || !strings.Contains(err.Error(), "statement pooling mode") {
					t.Error(err)
				}
				return
			}
			must(err)
			k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
			must1(c.RotateKey(t.Context(), k.ID, 0, nil))
			if list := entries(t, c, audit.Filter{Workspace: &w.ID}); len(list) != 3 {
				t.Errorf("%+v", list)
			}
		})
	}
}
