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
	"listedge/origin/postgres"
)

func openAdmin(t testing.TB, url string) *Conn {
	t.Helper()
	admin := must1(Open(within(t, patience), url))
	t.Cleanup(admin.Close)
	return admin
}

func TestWorkspacesAreCreatedSuspendedAndResumed(t *testing.T) {
	t.Parallel()
	admin := openAdmin(t, newDatabase(t))
	if all, err := admin.Workspaces(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("%v, %v", all, err)
	}
	rate, burst := 12.5, int32(40)
	plain, err := admin.CreateWorkspace(t.Context(), "Plain", nil, nil, nil, "")
	if err != nil || plain.Name != "Plain" || plain.Tenant != plain.ID.String() || plain.ID == uuid.Nil || plain.SuspendedAt != nil ||
		plain.RatePerSecond != nil || plain.Burst != nil || plain.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", plain, err)
	}
	limited, err := admin.CreateWorkspace(t.Context(), "Plain", &rate, &burst, nil, "") // names need not be different
	if err != nil || limited.ID == plain.ID || *limited.RatePerSecond != rate || *limited.Burst != burst {
		t.Fatalf("%+v, %v", limited, err)
	}
	first, err := admin.SuspendWorkspace(t.Context(), plain.ID)
	if err != nil || first.SuspendedAt == nil {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := admin.SuspendWorkspace(t.Context(), plain.ID)
	if err != nil || !again.SuspendedAt.Equal(*first.SuspendedAt) {
		t.Errorf("suspended twice: %v and %v, %v", first.SuspendedAt, again.SuspendedAt, err)
	}
	all, err := admin.Workspaces(t.Context())
	if err != nil || len(all) != 2 || all[0].ID != plain.ID || all[0].SuspendedAt == nil || all[1].ID != limited.ID || all[1].SuspendedAt != nil {
		t.Errorf("%+v, %v", all, err)
	}
	for range 2 {
		if resumed, err := admin.ResumeWorkspace(t.Context(), plain.ID); err != nil || resumed.SuspendedAt != nil {
			t.Errorf("%+v, %v", resumed, err)
		}
	}
}

func TestTenantsOfWorkspaces(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	own := must1(admin.CreateWorkspace(t.Context(), "Own", nil, nil, nil, ""))
	shop := must1(admin.CreateWorkspace(t.Context(), "Shop", nil, nil, nil, "42"))
	t.Run("its id by default", func(t *testing.T) {
		if own.Tenant != own.ID.String() || shop.Tenant != "42" {
			t.Errorf("%q, %q", own.Tenant, shop.Tenant)
		}
	})
	t.Run("listed", func(t *testing.T) {
		all := must1(admin.Workspaces(t.Context()))
		if len(all) != 2 || all[0].Tenant != own.Tenant || all[1].Tenant != "42" {
			t.Errorf("%+v", all)
		}
	})
	for name, tenant := range map[string]string{"another's": "42", "another's id": own.ID.String()} {
		t.Run(name, func(t *testing.T) {
			_, err := admin.CreateWorkspace(t.Context(), "Second", nil, nil, nil, tenant)
			if err == nil || !strings.Contains(err.Error(), "another workspace has the tenant") {
				t.Error(err)
			}
		})
	}
	t.Run("written by another system", func(t *testing.T) {
		for _, sql := range []string{
			"UPDATE workspaces SET tenant = '42'",
			"INSERT INTO workspaces (id, name, tenant) VALUES ('" + uuid.Max.String() + "', 'None', '" + own.ID.String() + "')",
			"INSERT INTO workspaces (name, tenant) VALUES ('A', 'A'), ('B', 'A')",
		} {
			if _, err := admin.conn.Exec(t.Context(), sql); postgres.Code(err) != "23505" {
				t.Errorf("%s: %v, want SQLSTATE 23505", sql, err)
			}
		}
	})
	t.Run("changed", func(t *testing.T) {
		exec(t, admin.conn, "UPDATE workspaces SET tenant = 'T' WHERE id = $1", own.ID)
		if w := must1(admin.SuspendWorkspace(t.Context(), own.ID)); w.Tenant != "T" {
			t.Errorf("%+v", w)
		}
	})
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
	c := openAdmin(t, newDatabase(t))
	k := must1(c.CreateKey(t.Context(), Key{WorkspaceID: must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, "")).ID}, nil))
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

func TestQuotasOfWorkspaces(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	rate := 5.0
	month, day := &apikey.Quota{Requests: 1_000_000, Period: apikey.Month}, &apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Day}
	w, err := admin.CreateWorkspace(t.Context(), "W", nil, nil, month, "")
	for i, step := range []struct {
		rate  *float64
		quota *apikey.Quota
		want  string
	}{
		{nil, nil, `{"requests":1000000,"period":"month"}`}, // as it was created
		{&rate, nil, `{"requests":1000000,"period":"month"}`},
		{nil, day, `{"requests":4000000000,"period":"day"}`},
		{nil, &apikey.Quota{}, `null`},
		{&rate, nil, `null`},
		{nil, month, `{"requests":1000000,"period":"month"}`},
	} {
		if i > 0 {
			w, err = admin.UpdateWorkspace(t.Context(), w.ID, step.rate, nil, step.quota, "")
		}
		must(err)
		list, err := admin.Workspaces(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		for _, row := range []Workspace{w, list[0]} {
			if got, _ := json.Marshal(row.Quota); string(got) != step.want {
				t.Errorf("step %d: %s instead of %s", i, got, step.want)
			}
		}
	}
}

// What is used of a quota is what was counted in its present period, but for 304s and 429s.
func TestWhatIsUsedOfAQuota(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, conn := openAdmin(t, url), connect(t, url)
	for _, period := range []apikey.Period{apikey.Day, apikey.Month} {
		w, err := admin.CreateWorkspace(t.Context(), "W", nil, nil, &apikey.Quota{Requests: 100, Period: period}, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO listedge_key_usage SELECT $1, hour, gen_random_uuid(), 10, 2, 3, 0, 0, 0
			FROM unnest(ARRAY[date_trunc($2, now(), 'UTC'), date_trunc($2, now(), 'UTC') - interval '1 hour', date_trunc('hour', now())]) hour`,
			w.ID, string(period)); err != nil {
			t.Fatal(err)
		}
		u, err := admin.Usage(t.Context(), w.ID, time.Hour)
		if err != nil || u.QuotaUsed == nil || *u.QuotaUsed != 10 || u.Quota.Requests != 100 {
			t.Errorf("%s: %+v, %v", period, u, err)
		}
	}
	list, err := admin.Workspaces(t.Context())
	if err != nil || len(list) != 2 || *list[0].QuotaUsed != 10 || *list[1].QuotaUsed != 10 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A workspace gets another tenant, unless one has it; the audit log has both.
func TestAnotherTenant(t *testing.T) {
	t.Parallel()
	c := openAdmin(t, newDatabase(t))
	first := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, "2"))
	w, err := c.UpdateWorkspace(t.Context(), first.ID, nil, nil, nil, "1")
	if err != nil || w.Tenant != "1" {
		t.Errorf("%+v: %v", w, err)
	}
	if e := newest(t, c); e.Action != "workspaces.update" || fmt.Sprint(e.Details) != "map[tenant:map[from:"+first.ID.String()+" to:1]]" {
		t.Errorf("%+v", e)
	}
	_, err = c.UpdateWorkspace(t.Context(), first.ID, nil, nil, nil, "2")
	if err == nil || err.Error() != `another workspace has the tenant "2"` {
		t.Error(err)
	}
	w, err = c.UpdateWorkspace(t.Context(), first.ID, new(2.0), nil, nil, "")
	if err != nil || w.Tenant != "1" {
		t.Errorf("%+v: %v", w, err)
	}
}
