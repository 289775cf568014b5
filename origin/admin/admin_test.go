package admin

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/apikey"
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
	plain, err := admin.CreateWorkspace(t.Context(), "Plain", nil, nil, nil)
	if err != nil || plain.Name != "Plain" || plain.ID == uuid.Nil || plain.SuspendedAt != nil || plain.RatePerSecond != nil || plain.Burst != nil ||
		plain.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", plain, err)
	}
	limited, err := admin.CreateWorkspace(t.Context(), "Plain", &rate, &burst, nil) // names need not be different
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
	negative, none := -1.0, int32(0)
	if _, err := admin.CreateWorkspace(t.Context(), "", nil, nil, nil); err == nil {
		t.Error("a workspace without a name")
	}
	if _, err := admin.CreateWorkspace(t.Context(), "x", &negative, nil, nil); err == nil {
		t.Error("a negative rate")
	}
	if _, err := admin.CreateWorkspace(t.Context(), "x", &rate, &none, nil); err == nil {
		t.Error("a bucket without room")
	}
}

func TestKeysAreCreatedListedAndRevoked(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	w := must1(admin.CreateWorkspace(t.Context(), "w", nil, nil, nil))
	other := must1(admin.CreateWorkspace(t.Context(), "other", nil, nil, nil))
	day := 24 * time.Hour
	first := must1(admin.CreateKey(t.Context(), Key{WorkspaceID: w.ID, Name: "first"}, nil))
	if !slices.Equal(first.Scopes, Scopes) || *first.RatePerSecond != 50 || *first.Burst != 100 || first.ExpiresAt != nil || first.RevokedAt != nil ||
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

func TestCommandsSayWhatTheDatabaseIs(t *testing.T) {
	t.Parallel()
	if _, err := Open(t.Context(), "postgres://postgres@127.0.0.1:1/x"); err == nil {
		t.Error("connected to nobody")
	}
	if _, err := Open(t.Context(), "postgres://%zz"); err == nil {
		t.Error("a malformed URL")
	}
}

// A standby may come first in the URL: where nothing can be written.
func TestCommandsFindThePrimaryOfSeveralServers(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	standby := sandboxtest.Standby(t, primary, nil)
	url := strings.Replace(primary.URL("postgres"), primary.Addr(), standby.Addr()+","+primary.Addr(), 1)
	must1(MigrateUp(within(t, patience), url))
	if _, err := openAdmin(t, url).CreateWorkspace(t.Context(), "W", nil, nil, nil); err != nil {
		t.Error(err)
	}
}
