package origin

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime"

	"listedge/origin/postgres"
)

func TestKeysAreWhatTheContractSays(t *testing.T) {
	const keys = 62 * 200
	seen, count := map[string]bool{}, map[byte]int{}
	for range keys {
		key := NewKey()
		hash, ok := HashKey([]byte(key))
		if !ok || hash != sha256.Sum256([]byte(key)) {
			t.Fatalf("%s: %x, %v", key, hash, ok)
		}
		if len(key) != 43 || !strings.HasPrefix(key, "lk_") || strings.Trim(key[3:], base62) != "" || seen[key] {
			t.Fatalf("%s", key)
		}
		seen[key] = true
		for i := range keyRandom {
			count[key[3+i]]++
		}
	}
	for i := range len(base62) { // 6,800 of each are expected; 400 off is almost five standard deviations
		if n := count[base62[i]]; n < 6400 || n > 7200 {
			t.Errorf("%c comes %d times in %d keys", base62[i], n, keys)
		}
	}
}

// The checksum ends every slip of the pen before any look-up.
func TestAMistypedKeyIsNoKey(t *testing.T) {
	for range 20 {
		key := NewKey()
		refused := func(mistyped string) {
			t.Helper()
			if _, ok := HashKey([]byte(mistyped)); ok && mistyped != key {
				t.Errorf("%q instead of %s", mistyped, key)
			}
		}
		for i := range key {
			for c := range 256 {
				refused(key[:i] + string([]byte{byte(c)}) + key[i+1:])
			}
			refused(key[:i])
			refused(key[i:])
			refused(key[:i] + key[i+1:])
			refused(key[:i] + "0" + key[i:])
			if i > 0 {
				refused(key[:i-1] + key[i:i+1] + key[i-1:i] + key[i+1:]) // neighbours swapped
			}
		}
		for _, wrong := range []string{"", "lk_", key + "0", key + " ", " " + key, key + "\n", "\x00" + key[1:], strings.ToUpper(key), strings.ToLower(key), "Bearer " + key} {
			refused(wrong)
		}
	}
}

// A key written down once: what is stored depends on none of this changing.
func TestTheFormOfKeysDoesNotChange(t *testing.T) {
	random := strings.Repeat("0", keyRandom)
	sum := keyChecksum([]byte(random))
	if string(sum[:]) != "0iqUEf" {
		t.Errorf("the checksum of %s is %s", random, sum)
	}
	if _, ok := HashKey([]byte("lk_" + random + string(sum[:]))); !ok {
		t.Error("a key of zeros is a key")
	}
}

func TestAKeyIsValidUntilItIsRevokedOrExpires(t *testing.T) {
	now := time.UnixMicro(1_000_000)
	for _, c := range []struct {
		key   Key
		valid bool
	}{
		{Key{}, true}, {Key{Suspended: true}, true}, {Key{Revoked: true}, false}, {Key{Revoked: true, ExpiresAt: 2_000_000}, false},
		{Key{ExpiresAt: 1_000_001}, true}, {Key{ExpiresAt: 1_000_000}, false}, {Key{ExpiresAt: 1}, false}, {Key{ExpiresAt: -1}, false},
	} {
		if c.key.Valid(now) != c.valid {
			t.Errorf("%+v", c.key)
		}
	}
	if k := (Key{Items: true}); !k.May(Items) || k.May(Contacts) {
		t.Errorf("%+v", k)
	}
	if k := (Key{Contacts: true}); k.May(Items) || !k.May(Contacts) {
		t.Errorf("%+v", k)
	}
}

func TestLimitsOfRows(t *testing.T) {
	rate, burst := func(f float64) *float64 { return &f }, func(n int32) *int32 { return &n }
	for _, c := range []struct {
		rate    *float64
		burst   *int32
		missing Limit
		want    Limit
	}{
		{nil, nil, DefaultLimit, Limit{Set: true, Rate: 50, Burst: 100}}, {nil, burst(7), DefaultLimit, Limit{Set: true, Rate: 50, Burst: 7}},
		{rate(10), nil, DefaultLimit, Limit{Set: true, Rate: 10, Burst: 20}}, {rate(10), burst(3), DefaultLimit, Limit{Set: true, Rate: 10, Burst: 3}},
		{rate(0.1), nil, DefaultLimit, Limit{Set: true, Rate: 0.1, Burst: 1}}, {rate(0), nil, DefaultLimit, Limit{Set: true, Rate: 0, Burst: 1}},
		{rate(1e300), nil, DefaultLimit, Limit{Set: true, Rate: 1e300, Burst: math.MaxInt32}},
		{nil, nil, Limit{}, Limit{}}, {nil, burst(7), Limit{}, Limit{}}, {rate(2.5), burst(9), Limit{}, Limit{Set: true, Rate: 2.5, Burst: 9}},
	} {
		if got := LimitOf(c.rate, c.burst, c.missing); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// lookupOne asks for one key among others that do not exist.
func lookupOne(t testing.TB, s *KeyStore, key string) (Key, bool) {
	t.Helper()
	hash, ok := HashKey([]byte(key))
	if !ok {
		t.Fatalf("%q is no key", key)
	}
	found, err := s.Lookup(within(t, patience), []KeyHash{{1}, hash, {2}}, "")
	if err != nil {
		t.Fatal(err)
	}
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

// A limit that is written again is newer, whatever it says.
func TestVersionsOfALimitGrow(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	store := NewKeyStore(openDatabase(t, postgres.Options{URL: url}))
	rate := 5.0
	w, err := admin.CreateWorkspace(t.Context(), "A workspace", &rate, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := admin.CreateKey(t.Context(), NewKeySpec{Workspace: w.ID})
	if err != nil {
		t.Fatal(err)
	}
	hash, _ := HashKey([]byte(made.Key))
	versions := func() (key, workspace int64) {
		found, err := store.Lookup(t.Context(), []KeyHash{hash}, "")
		if err != nil {
			t.Fatal(err)
		}
		return found[hash].Limit.Version, found[hash].WorkspaceLimit.Version
	}
	key, workspace := versions()
	if _, err := admin.UpdateKey(t.Context(), made.ID, &rate, nil); err != nil {
		t.Fatal(err)
	}
	if k, w := versions(); k <= key || w != workspace {
		t.Errorf("versions %d and %d, before %d and %d", k, w, key, workspace)
	}
	if _, err := admin.UpdateWorkspace(t.Context(), w.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, w := versions(); w <= workspace {
		t.Errorf("the workspace's version stays %d", w)
	}
}

func TestLookupKnowsEverythingAboutAKey(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	store := NewKeyStore(openDatabase(t, postgres.Options{URL: url}))
	w, err := admin.CreateWorkspace(t.Context(), "A workspace", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	rate, burst, hour := 2.5, int32(7), time.Hour
	page, err := openOrigin(t, url).Fetch(t.Context(), anyPage, "")
	if err != nil || page.Incarnation == "" {
		t.Fatal(page.Incarnation, err)
	}
	for name, c := range map[string]struct {
		spec NewKeySpec
		want Key
	}{
		"plain":       {NewKeySpec{}, Key{Items: true, Contacts: true, Limit: DefaultLimit}},
		"items only":  {NewKeySpec{Scopes: []string{"items:read"}}, Key{Items: true, Limit: DefaultLimit}},
		"contacts":    {NewKeySpec{Scopes: []string{"contacts:read"}}, Key{Contacts: true, Limit: DefaultLimit}},
		"own limit":   {NewKeySpec{Rate: &rate, Burst: &burst}, Key{Items: true, Contacts: true, Limit: Limit{Set: true, Rate: 2.5, Burst: 7}}},
		"rate alone":  {NewKeySpec{Rate: &rate}, Key{Items: true, Contacts: true, Limit: Limit{Set: true, Rate: 2.5, Burst: 5}}},
		"burst alone": {NewKeySpec{Burst: &burst}, Key{Items: true, Contacts: true, Limit: Limit{Set: true, Rate: 50, Burst: 7}}},
		"expiring":    {NewKeySpec{ExpiresIn: &hour}, Key{Items: true, Contacts: true, Limit: DefaultLimit, ExpiresAt: 1}},
	} {
		c.spec.Workspace, c.spec.Name = w.ID, name
		made, err := admin.CreateKey(t.Context(), c.spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, ok := lookupOne(t, store, made.Key)
		c.want.ID, c.want.Workspace, c.want.Run = made.ID, w.ID, page.Incarnation
		if c.want.ExpiresAt != 0 {
			c.want.ExpiresAt = made.ExpiresAt.UnixMicro()
			if in := made.ExpiresAt.Sub(made.CreatedAt); in != hour {
				t.Errorf("expires in %v", in)
			}
		}
		if !ok || got != c.want || !got.Valid(time.Now()) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}

	// Rows that other systems wrote: nothing but what is required.
	conn := connect(t, url)
	key := NewKey()
	hash, _ := HashKey([]byte(key))
	exec(t, conn, "INSERT INTO api_keys (workspace_id, key_hash, key_prefix, scopes) VALUES ($1, $2, 'lk_', '{}')", w.ID, hash[:])
	got, ok := lookupOne(t, store, key)
	if !ok || got.Limit != DefaultLimit || got.WorkspaceLimit.Set || got.Items || got.Contacts || got.ExpiresAt != 0 {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		change string
		is     func(Key) bool
	}{
		{"UPDATE workspaces SET rate_per_second = 500", func(k Key) bool { return k.WorkspaceLimit == Limit{Set: true, Rate: 500, Burst: 1000} }},
		{"UPDATE workspaces SET burst = 5", func(k Key) bool { return k.WorkspaceLimit == Limit{Set: true, Rate: 500, Burst: 5} }},
		{"UPDATE workspaces SET rate_per_second = NULL", func(k Key) bool { return !k.WorkspaceLimit.Set }},
		{"UPDATE workspaces SET suspended_at = now() + interval '1 hour'", func(k Key) bool { return !k.Suspended && k.Scheduled }},
		{"UPDATE workspaces SET suspended_at = now()", func(k Key) bool { return k.Suspended && !k.Scheduled && k.Valid(time.Now()) }},
		{"UPDATE workspaces SET suspended_at = NULL", func(k Key) bool { return !k.Suspended }},
		{"UPDATE api_keys SET revoked_at = now() + interval '1 hour'", func(k Key) bool { return !k.Revoked && k.Scheduled }},
		{"UPDATE api_keys SET revoked_at = now()", func(k Key) bool { return k.Revoked && !k.Scheduled }},
		{"UPDATE api_keys SET revoked_at = NULL, expires_at = now() - interval '1 second'", func(k Key) bool { return !k.Revoked && !k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = 'infinity'", func(k Key) bool { return k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = '-infinity'", func(k Key) bool { return !k.Valid(time.Now()) }},
		{"UPDATE api_keys SET expires_at = '1970-01-01Z'", func(k Key) bool { return !k.Valid(time.Now()) }},
	} {
		exec(t, conn, c.change)
		if got, ok := lookupOne(t, store, key); !ok || !c.is(got) {
			t.Errorf("%s: %+v, %v", c.change, got, ok)
		}
	}
	exec(t, conn, "DELETE FROM workspaces") // and its keys with it
	if got, ok := lookupOne(t, store, key); ok {
		t.Errorf("%+v", got)
	}
}

// One query finds a whole batch, and only those that exist.
func TestLookupOfABatch(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", ourWorkspace)
	var hashes []KeyHash
	for n := range lookupBatch {
		hash := KeyHash(sha256.Sum256([]byte{byte(n), byte(n >> 8)}))
		hashes = append(hashes, hash)
		if n%2 == 0 {
			exec(t, conn, "INSERT INTO api_keys (id, workspace_id, key_hash, key_prefix, scopes) VALUES ($1, $2, $3, '', '{items:read}')", number(n), ourWorkspace, hash[:])
		}
	}
	found, err := NewKeyStore(openDatabase(t, postgres.Options{URL: url})).Lookup(t.Context(), hashes, "")
	if err != nil || len(found) != lookupBatch/2 {
		t.Fatalf("%d, %v", len(found), err)
	}
	for n, hash := range hashes {
		if key, ok := found[hash]; ok != (n%2 == 0) || ok && (key.ID != number(n) || !key.Items || key.Contacts) {
			t.Errorf("%d: %+v", n, key)
		}
	}
}

// The same through all of it: command, table, look-up, memory.
func TestARevocationReachesANode(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := openAdmin(t, url)
	w, err := admin.CreateWorkspace(t.Context(), "w", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := admin.CreateKey(t.Context(), NewKeySpec{Workspace: w.ID})
	if err != nil {
		t.Fatal(err)
	}
	hash, _ := HashKey([]byte(made.Key))
	ring := NewKeyring(NewKeyStore(openDatabase(t, postgres.Options{URL: url})).Lookup, func(k Key, _, made *uuid.UUID) { *made = k.ID }, time.Minute, boottime.New())
	defer ring.Close()
	ask := func() Key {
		key, id, ok := knownTo(ring, hash, time.Now())
		if !ok {
			var err error
			if key, id, err = loadFrom(context.Background(), ring, hash); err != nil {
				t.Fatal(err)
			}
		}
		if id != made.ID || key.ID != made.ID || key.Workspace != w.ID {
			t.Fatalf("%+v", key)
		}
		return key
	}
	if ask().Revoked {
		t.Fatal("revoked to begin with")
	}
	if _, _, err := loadFrom(t.Context(), ring, KeyHash{1}); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("%v", err)
	}
	if _, err := admin.RevokeKey(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the revocation", func() bool { return ask().Revoked })
}
