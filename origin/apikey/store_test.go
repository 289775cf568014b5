package apikey_test

import (
	"crypto/sha256"
	"strconv"
	"strings"
	"testing"
	"time"
	"unique"

	"listedge/internal/lists"
	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

// lookupOne asks for one key among others that do not exist.
func lookupOne(t testing.TB, s *apikey.Store, key string) (apikey.Key, bool) {
	t.Helper()
	hash, ok := apikey.HashOf([]byte(key))
	if !ok {
		t.Fatalf("%q is no key", key)
	}
	found := must1(s.Lookup(within(t, patience), []apikey.Hash{{1}, hash, {2}}, ""))
	k, ok := found[hash]
	if len(found) > 1 || len(found) == 1 != ok {
		t.Fatalf("%+v", found)
	}
	if ok && (k.Limit.Version == 0 || k.WorkspaceLimit.Set != (k.WorkspaceLimit.Version != 0)) {
		t.Errorf("a limit without a version: %+v", k)
	}
	k.Limit.Version, k.WorkspaceLimit.Version = 0, 0 // which the tests cannot know
	return k, ok
}

// versions are those of the limits of a key and of its workspace.
func versions(t *testing.T, s *apikey.Store, hash apikey.Hash) [2]int64 {
	t.Helper()
	k := must1(s.Lookup(within(t, patience), []apikey.Hash{hash}, ""))[hash]
	return [2]int64{k.Limit.Version, k.WorkspaceLimit.Version}
}

func TestLookupKnowsEverythingAboutAKey(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := openAdmin(t, url)
	store := newStore(t, url)
	w := must1(conn.CreateWorkspace(t.Context(), "A workspace", nil, nil, nil))
	rate, burst, hour := 2.5, int32(7), time.Hour
	run := unique.Make(runOf(t, url))
	for name, c := range map[string]struct {
		spec admin.Key
		want apikey.Key
	}{
		"plain":      {admin.Key{}, apikey.Key{Scopes: 1<<lists.Items | 1<<lists.Contacts, Limit: apikey.DefaultLimit}},
		"items only": {admin.Key{Scopes: []string{"items:read"}}, apikey.Key{Scopes: 1 << lists.Items, Limit: apikey.DefaultLimit}},
		"contacts":   {admin.Key{Scopes: []string{"contacts:read"}}, apikey.Key{Scopes: 1 << lists.Contacts, Limit: apikey.DefaultLimit}},
		"own limit": {admin.Key{RatePerSecond: &rate, Burst: &burst}, apikey.Key{Scopes: 1<<lists.Items | 1<<lists.Contacts,
			Limit: apikey.Limit{Set: true, Rate: 2.5, Burst: 7}}},
		"rate alone":  {admin.Key{RatePerSecond: &rate}, apikey.Key{Scopes: 1<<lists.Items | 1<<lists.Contacts, Limit: apikey.Limit{Set: true, Rate: 2.5, Burst: 5}}},
		"burst alone": {admin.Key{Burst: &burst}, apikey.Key{Scopes: 1<<lists.Items | 1<<lists.Contacts, Limit: apikey.Limit{Set: true, Rate: 50, Burst: 7}}},
		"expiring":    {admin.Key{}, apikey.Key{Scopes: 1<<lists.Items | 1<<lists.Contacts, Limit: apikey.DefaultLimit, ExpiresAt: 1}},
	} {
		c.spec.WorkspaceID, c.spec.Name = w.ID, name
		var expiresIn *time.Duration
		if c.want.ExpiresAt != 0 {
			expiresIn = &hour
		}
		made, err := conn.CreateKey(t.Context(), c.spec, expiresIn)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, ok := lookupOne(t, store, made.Key)
		c.want.ID, c.want.Workspace, c.want.StartedAt = made.ID, w.ID, run
		c.want.Label = apikey.Label{Prefix: made.Key[:apikey.VisiblePrefix], Name: name}
		if c.want.ExpiresAt != 0 {
			c.want.ExpiresAt = made.ExpiresAt.UnixMicro()
			if in := made.ExpiresAt.Sub(*made.CreatedAt); in != hour {
				t.Errorf("expires in %v", in)
			}
		}
		if !ok || got != c.want || !got.Valid(time.Now()) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}

	// Rows that other systems wrote: nothing but what is required.
	exec := func(sql string, args ...any) { t.Helper(); postgrestest.Exec(t, url, sql, args...) }
	exec("ALTER TABLE api_keys ADD quota int, ADD quota_period int") // columns of another system
	key := apikey.Generate()
	hash, _ := apikey.HashOf([]byte(key))
	exec("INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) VALUES ($1, $2, 'lk_', '{}')", w.ID, hash[:])
	got, ok := lookupOne(t, store, key)
	if !ok || got.Limit != apikey.DefaultLimit || got.WorkspaceLimit.Set || got.Scopes != 0 || got.ExpiresAt != 0 {
		t.Errorf("%+v", got)
	}
	exec("ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check")
	for scopes, want := range map[string]uint8{ // as `keys list` reads them
		"{items:read,NULL,bogus}": 1 << lists.Items, "{NULL}": 0, "{{contacts:read,NULL},{x,y}}": 1 << lists.Contacts,
	} {
		exec("UPDATE api_keys SET scopes = $1::text::text[] WHERE key_hash = $2", scopes, hash[:])
		if got, ok := lookupOne(t, store, key); !ok || got.Scopes != want {
			t.Errorf("scopes %s: %v, want %v", scopes, got.Scopes, want)
		}
	}
	for _, c := range []struct {
		change string
		is     func(apikey.Key) bool
	}{
		{"UPDATE workspaces SET rate_per_second = 500", func(k apikey.Key) bool { return k.WorkspaceLimit == apikey.Limit{Set: true, Rate: 500, Burst: 1000} }},
		{"UPDATE workspaces SET burst = 5", func(k apikey.Key) bool { return k.WorkspaceLimit == apikey.Limit{Set: true, Rate: 500, Burst: 5} }},
		{"UPDATE workspaces SET quota = 1000000, quota_period = 'month'",
			func(k apikey.Key) bool { return k.Quota == apikey.Quota{Requests: 1_000_000, Period: apikey.Month} }},
		{"UPDATE workspaces SET quota = 5, quota_period = 'day'", func(k apikey.Key) bool { return k.Quota == apikey.Quota{Requests: 5, Period: apikey.Day} }},
		{"UPDATE workspaces SET quota = NULL, quota_period = NULL", func(k apikey.Key) bool { return k.Quota == apikey.Quota{} }},
		{"UPDATE workspaces SET rate_per_second = NULL", func(k apikey.Key) bool { return !k.WorkspaceLimit.Set }},
		{"UPDATE workspaces SET suspended_at = now() + interval '1 hour'", func(k apikey.Key) bool { return !k.Suspended && k.Scheduled }},
		{"UPDATE workspaces SET suspended_at = now()", func(k apikey.Key) bool { return k.Suspended && !k.Scheduled && k.Valid(time.Now()) }},
		{"UPDATE workspaces SET suspended_at = NULL", func(k apikey.Key) bool { return !k.Suspended }},
		{"UPDATE api_keys SET revoked_at = now() + interval '1 hour'", func(k apikey.Key) bool { return !k.Revoked && k.Scheduled }},
		{"UPDATE api_keys SET revoked_at = now()", func(k apikey.Key) bool { return k.Revoked && !k.Scheduled }},
		{"UPDATE api_keys SET revoked_at = NULL, expires_at = now() - interval '1 second'", func(k apikey.Key) bool { return !k.Revoked && !k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = 'infinity'", func(k apikey.Key) bool { return k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = '294276-12-31 23:59:59Z'", func(k apikey.Key) bool { return k.Valid(time.Now()) }}, // the latest that Postgres has
		{"UPDATE api_keys SET expires_at = '-infinity'", func(k apikey.Key) bool { return !k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = '1970-01-01Z'", func(k apikey.Key) bool { return !k.Valid(time.Now()) }},
	} {
		before := versions(t, store, hash)
		exec(c.change)
		if got, ok := lookupOne(t, store, key); !ok || !c.is(got) {
			t.Errorf("%s: %+v, %v", c.change, got, ok)
		}
		for i, version := range versions(t, store, hash) { // what is written again is newer, whatever it says
			if written := strings.Contains(c.change, []string{"api_keys", "workspaces"}[i]); version != 0 && written != (version > before[i]) {
				t.Errorf("%s: version %d of the limit, before %d", c.change, version, before[i])
			}
		}
	}
	exec("DELETE FROM workspaces") // and its keys with it
	if got, ok := lookupOne(t, store, key); ok {
		t.Errorf("%+v", got)
	}
}

// One query finds a whole batch, and only those that exist.
func TestLookupOfABatch(t *testing.T) {
	t.Parallel()
	const batch = 1000
	workspace := number(1 << 20)
	url := newDatabase(t)
	postgrestest.Exec(t, url, "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", workspace)
	postgrestest.Exec(t, url, `INSERT INTO api_keys (id, workspace_id, key_hash, key_prefix, scopes)
		SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $1, sha256(convert_to(n::text, 'UTF8')), '', '{items:read}'
		FROM generate_series(0, 998, 2) n`, workspace)
	var hashes []apikey.Hash
	for n := range batch {
		hashes = append(hashes, sha256.Sum256([]byte(strconv.Itoa(n))))
	}
	found, err := newStore(t, url).Lookup(t.Context(), hashes, "")
	if err != nil || len(found) != batch/2 {
		t.Fatalf("%d, %v", len(found), err)
	}
	for n, hash := range hashes {
		if key, ok := found[hash]; ok != (n%2 == 0) || ok && (key.ID != number(n) || key.Scopes != 1<<lists.Items) {
			t.Errorf("%d: %+v", n, key)
		}
	}
}
