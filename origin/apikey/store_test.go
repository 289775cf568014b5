package apikey_test

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unique"

	"listedge/internal/list"
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
	w := must1(conn.CreateWorkspace(t.Context(), "A workspace", nil, nil, nil, ""))
	rate, burst, hour := 2.5, int32(7), time.Hour
	run := unique.Make(runOf(t, url))
	for name, c := range map[string]struct {
		spec admin.Key
		want apikey.Key
	}{
		"plain":       {admin.Key{Scopes: list.BuiltIn().Scopes()}, apikey.Key{Scopes: 0b11, Limit: apikey.DefaultLimit}},
		"items only":  {admin.Key{Scopes: []string{"items:read"}}, apikey.Key{Scopes: 0b01, Limit: apikey.DefaultLimit}},
		"contacts":    {admin.Key{Scopes: []string{"contacts:read"}}, apikey.Key{Scopes: 0b10, Limit: apikey.DefaultLimit}},
		"own limit":   {admin.Key{RatePerSecond: &rate, Burst: &burst}, apikey.Key{Limit: apikey.Limit{Set: true, Rate: 2.5, Burst: 7}}},
		"rate alone":  {admin.Key{RatePerSecond: &rate}, apikey.Key{Limit: apikey.Limit{Set: true, Rate: 2.5, Burst: 5}}},
		"burst alone": {admin.Key{Burst: &burst}, apikey.Key{Limit: apikey.Limit{Set: true, Rate: 50, Burst: 7}}},
		"expiring":    {admin.Key{}, apikey.Key{Limit: apikey.DefaultLimit, ExpiresAt: 1}},
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
		c.want.ID, c.want.Workspace, c.want.Tenant, c.want.StartedAt = made.ID, w.ID, w.ID.String(), run
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
	exec("ALTER TABLE api_keys ADD quota int, ADD quota_period int, ADD tenant int, ADD scope int, ADD n int") // columns of another system
	key := apikey.Generate()
	hash, _ := apikey.HashOf([]byte(key))
	exec("INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) VALUES ($1, $2, 'lk_', '{}')", w.ID, hash[:])
	got, ok := lookupOne(t, store, key)
	if !ok || got.Limit != apikey.DefaultLimit || got.WorkspaceLimit.Set || got.Scopes != 0 || got.ExpiresAt != 0 {
		t.Errorf("%+v", got)
	}
	exec("ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check")
	for scopes, want := range map[string]uint64{ // as `keys list` reads them
		"{items:read,NULL,bogus}": 0b01, "{NULL}": 0, "{{contacts:read,NULL},{x,y}}": 0b10,
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
		{"UPDATE workspaces SET tenant = '42'", func(k apikey.Key) bool { return k.Tenant == "42" && k.Workspace == w.ID }},
		{"UPDATE workspaces SET tenant = NULL", func(k apikey.Key) bool { return k.Tenant == w.ID.String() }},
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
	exec("ALTER TABLE workspaces DROP CONSTRAINT workspaces_tenant")
	for tenant, want := range map[string]string{"": "", strings.Repeat("t", list.MaxTenant): strings.Repeat("t", list.MaxTenant),
		strings.Repeat("t", list.MaxTenant+1): ""} { // not cut: it would be another's
		exec("UPDATE workspaces SET tenant = $1", tenant)
		if got, ok := lookupOne(t, store, key); !ok || got.Tenant != want {
			t.Errorf("tenant %s: %q, want %q", tenant, got.Tenant, want)
		}
	}
	exec("DELETE FROM workspaces") // and its keys with it
	if got, ok := lookupOne(t, store, key); ok {
		t.Errorf("%+v", got)
	}
}

// The scopes of a key are those of the lists in force, whichever they are.
func TestScopesOfDescribedLists(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := openAdmin(t, url)
	w := must1(conn.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	lists := &list.Set{}
	for n := range list.MaxLists {
		lists.Lists = append(lists.Lists, &list.List{Name: "list-" + strconv.Itoa(n), Number: n})
	}
	store := apikey.NewStore(openPools(t, url), lists)
	for _, c := range []struct {
		name   string
		scopes []string
		may    []int
	}{
		{"none", nil, nil},
		{"the first and the last", []string{"list-0:read", "list-63:read"}, []int{0, 63}},
		{"of another description", []string{"items:read", "list-7:read", "list-64:read"}, []int{7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := must1(conn.CreateKey(t.Context(), admin.Key{WorkspaceID: w.ID, Scopes: c.scopes}, nil))
			key, _ := lookupOne(t, store, made.Key)
			for _, l := range lists.Lists {
				if may := slices.Contains(c.may, l.Number); key.May(l) != may {
					t.Errorf("%s: %v, want %v", l.Name, key.May(l), may)
				}
			}
		})
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
		if key, ok := found[hash]; ok != (n%2 == 0) || ok && (key.ID != number(n) || key.Scopes != 0b01) {
			t.Errorf("%d: %+v", n, key)
		}
	}
}
