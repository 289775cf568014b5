package admin

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

func openAdmin(t testing.TB, url string) *Conn {
	t.Helper()
	admin := must1(Open(within(t, patience), url))
	t.Cleanup(admin.Close)
	return admin
}

// acting opens a database with a workspace and a key.
func acting(t testing.TB) (*Conn, Workspace, Key) {
	t.Helper()
	c := openAdmin(t, newDatabase(t))
	w := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	return c, w, must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
}

// Each change of a workspace returns what the list shows then. What is not given stays.
func TestWorkspaces(t *testing.T) {
	t.Parallel()
	c, ctx := openAdmin(t, newDatabase(t)), t.Context()
	if all := must1(c.Workspaces(ctx)); len(all) != 0 {
		t.Fatal(all)
	}
	month, day := &apikey.Quota{Requests: 1_000_000, Period: apikey.Month}, &apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Day}
	var a, b uuid.UUID // the first and the second
	for _, s := range []struct {
		name string
		do   func() (Workspace, error)
		want string // name, tenant, rate, burst, quota, suspended; or an error
	}{
		{"created", func() (Workspace, error) { return c.CreateWorkspace(ctx, "Plain", nil, nil, nil, "") }, `["Plain","its id",null,null,null,false]`},
		{"with all", func() (Workspace, error) {
			return c.CreateWorkspace(ctx, "Plain", new(12.5), new(int32(40)), month, "42")
		}, // names need not be different
			`["Plain","42",12.5,40,{"requests":1000000,"period":"month"},false]`},
		{"a tenant of another", func() (Workspace, error) { return c.CreateWorkspace(ctx, "W", nil, nil, nil, "42") }, "another workspace has the tenant"},
		{"another's id", func() (Workspace, error) { return c.CreateWorkspace(ctx, "W", nil, nil, nil, a.String()) }, "another workspace has the tenant"},
		{"suspended", func() (Workspace, error) { return c.SuspendWorkspace(ctx, a) }, `["Plain","its id",null,null,null,true]`},
		{"and again", func() (Workspace, error) { return c.SuspendWorkspace(ctx, a) }, `["Plain","its id",null,null,null,true]`},
		{"another rate", func() (Workspace, error) { return c.UpdateWorkspace(ctx, b, new(5.0), nil, nil, "") },
			`["Plain","42",5,40,{"requests":1000000,"period":"month"},false]`},
		{"another quota", func() (Workspace, error) { return c.UpdateWorkspace(ctx, b, nil, nil, day, "") },
			`["Plain","42",5,40,{"requests":4000000000,"period":"day"},false]`},
		{"no quota", func() (Workspace, error) { return c.UpdateWorkspace(ctx, b, nil, nil, &apikey.Quota{}, "") }, `["Plain","42",5,40,null,false]`},
		{"another tenant", func() (Workspace, error) { return c.UpdateWorkspace(ctx, b, nil, nil, nil, "1") }, `["Plain","1",5,40,null,false]`},
		{"that of another", func() (Workspace, error) { return c.UpdateWorkspace(ctx, b, nil, nil, nil, a.String()) }, "another workspace has the tenant"},
		{"resumed", func() (Workspace, error) { return c.ResumeWorkspace(ctx, a) }, `["Plain","its id",null,null,null,false]`},
		{"and again", func() (Workspace, error) { return c.ResumeWorkspace(ctx, a) }, `["Plain","its id",null,null,null,false]`},
	} {
		t.Run(s.name, func(t *testing.T) {
			before := must1(c.Workspaces(ctx))
			w, err := s.do()
			if err != nil {
				if !strings.Contains(err.Error(), s.want) {
					t.Error(err)
				}
				return
			}
			if a == uuid.Nil {
				a = w.ID
			} else if w.ID != a {
				b = w.ID
			}
			all := must1(c.Workspaces(ctx))
			i := slices.IndexFunc(all, func(of Workspace) bool { return of.ID == w.ID })
			for _, of := range []Workspace{w, all[i]} {
				is, _ := json.Marshal([]any{of.Name, strings.Replace(of.Tenant, of.ID.String(), "its id", 1), of.RatePerSecond, of.Burst, of.Quota, of.SuspendedAt != nil})
				if string(is) != s.want || of.CreatedAt.IsZero() {
					t.Errorf("%s, want %s", is, s.want)
				}
			}
			if s.name == "and again" && fmt.Sprint(w.SuspendedAt) != fmt.Sprint(before[i].SuspendedAt) {
				t.Errorf("suspended at %v, before %v", w.SuspendedAt, before[i].SuspendedAt)
			}
		})
	}
	if e := entries(t, c, audit.Filter{Workspace: &b}); fmt.Sprint(e[0].Details) != "map[tenant:map[from:42 to:1]]" {
		t.Errorf("%+v", e)
	}
	for _, sql := range []string{ // by another system
		"UPDATE workspaces SET tenant = '1'", "INSERT INTO workspaces (name, tenant) VALUES ('A', 'A'), ('B', 'A')",
		"INSERT INTO workspaces (id, name, tenant) VALUES ('" + uuid.Max.String() + "', 'None', '" + a.String() + "')",
	} {
		if _, err := c.conn.Exec(ctx, sql); postgres.Code(err) != "23505" {
			t.Errorf("%s: %v, want SQLSTATE 23505", sql, err)
		}
	}
}

func TestKeysAreCreatedListedAndRevoked(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	w := must1(admin.CreateWorkspace(t.Context(), "w", nil, nil, nil, ""))
	other := must1(admin.CreateWorkspace(t.Context(), "other", nil, nil, nil, ""))
	day := 24 * time.Hour
	first := must1(admin.CreateKey(t.Context(), Key{WorkspaceID: w.ID, Name: "first", Scopes: list.BuiltIn().Scopes()}, nil))
	if !slices.Equal(first.Scopes, []string{"items:read", "contacts:read"}) || *first.RatePerSecond != 50 || *first.Burst != 100 || first.ExpiresAt != nil ||
		first.RevokedAt != nil ||
		first.Name != "first" || first.WorkspaceID != w.ID || len(first.Prefix) != apikey.VisiblePrefix || !strings.HasPrefix(first.Key, first.Prefix) {
		t.Errorf("%+v", first)
	}
	second, err := admin.CreateKey(t.Context(), Key{WorkspaceID: w.ID, Scopes: []string{"items:read"}}, &day)
	if err != nil || !slices.Equal(second.Scopes, []string{"items:read"}) || !second.ExpiresAt.After(time.Now()) || second.Key == first.Key {
		t.Errorf("%+v, %v", second, err)
	}
	must1(admin.CreateKey(t.Context(), Key{WorkspaceID: other.ID}, nil))

	// A key is seen once: neither the list nor the table has it.
	list, err := admin.Keys(t.Context(), w.ID, nil)
	if err != nil || len(list) != 2 || list[0].ID != first.ID || list[1].ID != second.ID || list[0].Key+list[1].Key != "" {
		t.Errorf("%+v, %v", list, err)
	}
	var dump string
	must(connect(t, url).QueryRow(t.Context(), "SELECT string_agg(k::text, ' ') FROM api_keys k").Scan(&dump))
	if secret := first.Key[apikey.VisiblePrefix:]; strings.Contains(dump, secret) || strings.Contains(dump, hex.EncodeToString([]byte(secret))) {
		t.Error("the key is in the table")
	}

	revoked, err := admin.RevokeKey(t.Context(), first.ID)
	if err != nil || revoked.RevokedAt == nil || revoked.ID != first.ID || revoked.Key != "" {
		t.Fatalf("%+v, %v", revoked, err)
	}
	again, err := admin.RevokeKey(t.Context(), first.ID)
	if err != nil || !again.RevokedAt.Equal(*revoked.RevokedAt) {
		t.Errorf("revoked twice: %v and %v, %v", revoked.RevokedAt, again.RevokedAt, err)
	}
	if list, err := admin.Keys(t.Context(), w.ID, nil); err != nil || len(list) != 2 || list[0].RevokedAt == nil || list[1].RevokedAt != nil {
		t.Errorf("%+v, %v", list, err)
	}
	for _, never := range []string{"infinity", "294276-12-31Z"} { // as other systems write it
		exec(t, connect(t, url), "UPDATE api_keys SET expires_at = '"+never+"'; UPDATE workspaces SET suspended_at = '"+never+"'")
		if list, err := admin.Keys(t.Context(), w.ID, nil); err != nil || len(list) != 2 || list[1].ExpiresAt != nil || list[1].State != KeyActive {
			t.Errorf("%s: %+v, %v", never, list, err)
		}
		if list, err := admin.Workspaces(t.Context()); err != nil || list[0].SuspendedAt != nil {
			t.Errorf("%s: %+v, %v", never, list, err)
		}
	}
	// One that was to end later ends now.
	exec(t, connect(t, url), "UPDATE api_keys SET revoked_at = now() + interval '1 day' WHERE id = $1", second.ID)
	if now, err := admin.RevokeKey(t.Context(), second.ID); err != nil || now.RevokedAt.After(time.Now().Add(time.Minute)) {
		t.Errorf("%+v, %v", now, err)
	}
}

// A standby may come first in the URL: where nothing can be written.
func TestCommandsFindThePrimaryOfSeveralServers(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	standby := sandboxtest.Standby(t, primary, nil)
	url := strings.Replace(primary.URL("postgres"), primary.Addr(), standby.Addr()+","+primary.Addr(), 1)
	must1(MigrateUp(within(t, patience), url, list.BuiltIn()))
	if _, err := openAdmin(t, url).CreateWorkspace(t.Context(), "W", nil, nil, nil, ""); err != nil {
		t.Error(err)
	}
}

func TestRotatingAKey(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c := openAdmin(t, url)
	w := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	made := func(t *testing.T, k Key) Key {
		t.Helper()
		k.WorkspaceID = w.ID
		key, err := c.CreateKey(t.Context(), k, nil)
		must(err)
		return key
	}
	works := func(t *testing.T, k Key) bool {
		t.Helper()
		return must1(c.Key(t.Context(), k.ID)).State == KeyActive
	}
	near := func(at *time.Time, want time.Duration) bool { // the database's clock is this machine's
		return at != nil && (time.Until(*at)-want).Abs() < patience
	}

	t.Run("copies what the key may do", func(t *testing.T) {
		old := made(t, Key{Name: "Sync", Scopes: []string{"contacts:read"}, RatePerSecond: new(7.5), Burst: new(int32(11))})
		next := must1(c.RotateKey(t.Context(), old.ID, 24*time.Hour, nil))
		if next.ID == old.ID || next.Key.Key == old.Key || !strings.HasPrefix(next.Key.Key, next.Prefix) || next.WorkspaceID != w.ID || next.Name != "Sync" ||
			!slices.Equal(next.Scopes, old.Scopes) || *next.RatePerSecond != 7.5 || *next.Burst != 11 || next.ExpiresAt != nil || next.State != KeyActive {
			t.Errorf("%+v", next)
		}
		if !works(t, old) || !works(t, next.Key) || next.Replaces.ID != old.ID || !near(next.Replaces.ExpiresAt, 24*time.Hour) {
			t.Errorf("%+v", next.Replaces)
		}
		if shown := must1(c.Key(t.Context(), old.ID)); shown.State != KeyActive || !shown.ExpiresAt.Equal(*next.Replaces.ExpiresAt) || shown.Key != "" {
			t.Errorf("%+v", shown)
		}
	})
	t.Run("copies that there is no limit of its own", func(t *testing.T) {
		old := made(t, Key{})
		exec(t, c.conn, "UPDATE api_keys SET rate_per_second = NULL, burst = NULL WHERE id = $1", old.ID)
		if next := must1(c.RotateKey(t.Context(), old.ID, 0, nil)); next.RatePerSecond != nil || next.Burst != nil {
			t.Errorf("%+v", next)
		}
	})
	t.Run("at once", func(t *testing.T) {
		old := made(t, Key{})
		next := must1(c.RotateKey(t.Context(), old.ID, 0, new(2*time.Hour)))
		if works(t, old) || !works(t, next.Key) || !near(next.ExpiresAt, 2*time.Hour) {
			t.Errorf("%+v", next)
		}
		if shown := must1(c.Key(t.Context(), old.ID)); shown.State != KeyExpired {
			t.Errorf("%+v", shown)
		}
	})
	t.Run("extends nothing", func(t *testing.T) {
		for name, set := range map[string]string{
			"that expires":  "UPDATE api_keys SET expires_at = now() + interval '1 hour' WHERE id = $1",
			"to be revoked": "UPDATE api_keys SET revoked_at = now() + interval '1 hour' WHERE id = $1",
		} {
			t.Run(name, func(t *testing.T) {
				old := made(t, Key{})
				exec(t, c.conn, set, old.ID)
				next := must1(c.RotateKey(t.Context(), old.ID, 24*time.Hour, nil))
				shown := must1(c.Key(t.Context(), old.ID))
				if end := min(ptrOr(shown.ExpiresAt), ptrOr(shown.RevokedAt)); end > time.Hour || !near(next.ExpiresAt, time.Hour) || shown.State != KeyActive {
					t.Errorf("%+v: %+v", shown, next)
				}
			})
		}
	})
	t.Run("twice", func(t *testing.T) {
		old := made(t, Key{})
		first := must1(c.RotateKey(t.Context(), old.ID, time.Hour, nil))
		second := must1(c.RotateKey(t.Context(), first.ID, 2*time.Hour, nil)) // the new one
		third := must1(c.RotateKey(t.Context(), old.ID, 24*time.Hour, nil))   // the old one again: it ends no later
		if !works(t, old) || !works(t, first.Key) || !works(t, second.Key) || !works(t, third.Key) {
			t.Error("a key does not work")
		}
		if !third.Replaces.ExpiresAt.Equal(*first.Replaces.ExpiresAt) || !near(second.Replaces.ExpiresAt, 2*time.Hour) || second.ExpiresAt != nil ||
			!near(third.ExpiresAt, time.Hour) {
			t.Errorf("%+v, %+v, %+v", first, second, third)
		}
	})
	t.Run("refused", func(t *testing.T) {
		revoked, expired := made(t, Key{}), made(t, Key{})
		must1(c.RevokeKey(t.Context(), revoked.ID))
		exec(t, c.conn, "UPDATE api_keys SET expires_at = now() WHERE id = $1", expired.ID)
		before := count(t, c, "api_keys")
		if _, err := c.RotateKey(t.Context(), revoked.ID, time.Hour, nil); err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("a revoked key: %v", err)
		}
		if _, err := c.RotateKey(t.Context(), expired.ID, time.Hour, nil); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("an expired key: %v", err)
		}
		if _, err := c.RotateKey(t.Context(), uuid.New(), time.Hour, nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("no key: %v", err)
		}
		if after := count(t, c, "api_keys"); after != before {
			t.Errorf("%d keys, before %d", after, before)
		}
	})
}

// What happens to a key while a rotation waits for its row counts.
func TestARotationThatWaited(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c, holder, watcher := openAdmin(t, url), connect(t, url), connect(t, url)
	w := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	// behind rotates the key while another transaction has its row, does what is said, and commits.
	behind := func(t *testing.T, k Key, overlap time.Duration, do string) error {
		t.Helper()
		exec(t, holder, "BEGIN")
		exec(t, holder, "SELECT FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", k.ID)
		rotated := make(chan error, 1)
		go func() {
			_, err := c.RotateKey(t.Context(), k.ID, overlap, new(90*24*time.Hour))
			rotated <- err
		}()
		eventually(t, "a rotation that waits", func() (waits bool) {
			must(watcher.QueryRow(t.Context(), "SELECT $1 = ANY (pg_blocking_pids($2))", holder.PgConn().PID(), c.conn.PgConn().PID()).Scan(&waits))
			return waits
		})
		if do != "" {
			exec(t, holder, do, k.ID)
		}
		exec(t, holder, "COMMIT")
		return <-rotated
	}
	for name, s := range map[string]struct{ before, meanwhile, want string }{
		"for a revocation": {"", "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE id = $1", "revoked"},
		"for an expiry":    {"", "UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = $1", "expired"},
		"until the key had ended": {"UPDATE api_keys SET expires_at = clock_timestamp() + interval '1 s' WHERE id = $1",
			"SELECT pg_sleep_until(expires_at) FROM api_keys WHERE id = $1", "expired"},
		"for nothing that matters": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
			if s.before != "" {
				exec(t, c.conn, s.before, k.ID)
			}
			before := count(t, c, "api_keys")
			err := behind(t, k, time.Hour, s.meanwhile)
			if s.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "it is "+s.want) {
				t.Errorf("%v", err)
			}
			if after := count(t, c, "api_keys"); after != before {
				t.Errorf("%d keys, before %d", after, before)
			}
		})
	}
	t.Run("for another that ended the key at once", func(t *testing.T) {
		k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
		first, second := openAdmin(t, url), openAdmin(t, url)
		errs := make(chan error, 2)
		exec(t, holder, "BEGIN")
		exec(t, holder, "SELECT FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", k.ID)
		for _, c := range []*Conn{first, second} {
			go func() { _, err := c.RotateKey(t.Context(), k.ID, 0, nil); errs <- err }()
			eventually(t, "a rotation that waits", func() (waits bool) {
				must(watcher.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", c.conn.PgConn().PID()).Scan(&waits))
				return waits
			})
		}
		exec(t, holder, "COMMIT")
		a, b := <-errs, <-errs
		if a == nil {
			a, b = b, a
		}
		if b != nil || a == nil || !strings.Contains(a.Error(), "it is expired") {
			t.Errorf("%v, %v", a, b)
		}
	})
	t.Run("nor makes a key that has ended", func(t *testing.T) {
		k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: w.ID}, nil))
		if _, err := c.RotateKey(t.Context(), k.ID, time.Hour, new(time.Duration(0))); err == nil {
			t.Error("made")
		}
	})
}

// ptrOr is how long it is until a moment; a month if there is none.
func ptrOr(at *time.Time) time.Duration {
	if at == nil {
		return 30 * 24 * time.Hour
	}
	return time.Until(*at)
}

func TestStatesOfKeys(t *testing.T) {
	t.Parallel()
	c, _, k := acting(t)
	for _, s := range []struct {
		expires, revoked string
		want             KeyState
	}{
		{"NULL", "NULL", KeyActive}, {"'infinity'", "'infinity'", KeyActive},
		{"now() + interval '1 hour'", "NULL", KeyActive}, {"NULL", "now() + interval '1 hour'", KeyActive},
		{"now()", "NULL", KeyExpired}, {"'-infinity'", "NULL", KeyExpired},
		{"NULL", "now()", KeyRevoked}, {"now()", "now()", KeyRevoked}, {"NULL", "'-infinity'", KeyRevoked},
	} {
		exec(t, c.conn, "UPDATE api_keys SET expires_at = "+s.expires+", revoked_at = "+s.revoked)
		if shown, err := c.Key(t.Context(), k.ID); err != nil || shown.State != s.want {
			t.Errorf("expires %s, revoked %s: %+v, %v", s.expires, s.revoked, shown, err)
		} else if ends, hour := shown.Ends(), strings.Contains(s.expires+s.revoked, "hour"); (ends != nil) != (hour || s.want != KeyActive) {
			t.Errorf("expires %s, revoked %s: ends %v", s.expires, s.revoked, ends)
		}
		if _, err := c.UpdateKey(t.Context(), k.ID, new(9.0), nil); (err == nil) != (s.want == KeyActive) {
			t.Errorf("%s: the limit of a key that is %s is changed: %v", s.revoked, s.want, err)
		}
	}
	if _, err := c.Key(t.Context(), uuid.New()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// What is used of a quota is what was counted in its present period, but for 304s and 429s.
func TestWhatIsUsedOfAQuota(t *testing.T) {
	t.Parallel()
	c := openAdmin(t, newDatabase(t))
	for _, period := range []apikey.Period{apikey.Day, apikey.Month} {
		w := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, &apikey.Quota{Requests: 100, Period: period}, ""))
		exec(t, c.conn, `INSERT INTO listedge_key_usage SELECT $1, hour, gen_random_uuid(), 10, 2, 3, 0, 0, 0
			FROM unnest(ARRAY[date_trunc($2, now(), 'UTC'), date_trunc($2, now(), 'UTC') - interval '1 hour', date_trunc('hour', now())]) hour`, w.ID, string(period))
		if u := must1(c.Usage(t.Context(), w.ID, time.Hour)); u.QuotaUsed == nil || *u.QuotaUsed != 10 || u.Quota.Requests != 100 {
			t.Errorf("%s: %+v", period, u)
		}
	}
	if all := must1(c.Workspaces(t.Context())); len(all) != 2 || *all[0].QuotaUsed != 10 || *all[1].QuotaUsed != 10 {
		t.Errorf("%+v", all)
	}
}
