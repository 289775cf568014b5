package admin

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// hashedAs is an imported key with the hash of a text.
func hashedAs(text string) ImportedKey {
	return ImportedKey{Hash: sha256.Sum256([]byte(text)), Name: "of " + text, Scopes: []string{"contacts:read", "items:read"}, Rate: 50, Burst: 100}
}

// An imported key is a key: it is listed, changed, rotated to one of ours and revoked, and each is in the audit log.
func TestImportedKeysAreKeys(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	c, ctx := openAdmin(t, url), audit.As(t.Context(), "Importer")
	w := must1(c.CreateWorkspace(ctx, "W", nil, nil, nil, ""))
	one, two := hashedAs("one"), hashedAs("two")
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	two.Rate, two.Burst, two.ExpiresAt, two.Scopes = 2.5, 7, &end, []string{"items:read"}
	made := must1(c.ImportKeys(ctx, w.ID, apikey.Form{Digest: apikey.SHA256, Behind: "|"}, []ImportedKey{one, two}))
	listed := must1(c.Keys(ctx, w.ID, nil))
	if len(made) != 2 || len(listed) != 2 {
		t.Fatalf("%+v, %+v", made, listed)
	}
	if k := made[0]; k.Name != "of one" || k.Prefix != apikey.ImportedPrefix || *k.RatePerSecond != 50 || *k.Burst != 100 || k.ExpiresAt != nil ||
		fmt.Sprint(k.Scopes) != "[contacts:read items:read]" || k.State != KeyActive || k.Key != "" {
		t.Errorf("%+v", k)
	}
	if k := made[1]; k.Name != "of two" || *k.RatePerSecond != 2.5 || *k.Burst != 7 || !k.ExpiresAt.Equal(end) || fmt.Sprint(k.Scopes) != "[items:read]" {
		t.Errorf("%+v", k)
	}
	for _, k := range made {
		e := entries(t, c, audit.Filter{Key: &k.ID})
		if len(e) != 1 || e[0].Actor != "Importer" || e[0].Action != "keys.import" || *e[0].WorkspaceID != w.ID || e[0].Details["behind"] != "|" ||
			e[0].Details["name"] != k.Name {
			t.Errorf("%+v", e)
		}
	}
	must1(c.UpdateKey(ctx, made[0].ID, new(9.0), nil))
	rotated := must1(c.RotateKey(ctx, made[0].ID, time.Hour, nil))
	if _, ours := apikey.HashOf([]byte(rotated.Key.Key)); !ours || rotated.Name != "of one" || *rotated.RatePerSecond != 9 || rotated.Replaces.ExpiresAt == nil {
		t.Errorf("%+v", rotated)
	}
	if k := must1(c.RevokeKey(ctx, made[1].ID)); k.State != KeyRevoked {
		t.Errorf("%+v", k)
	}
	store := apikey.NewStore(openDatabase(t, postgres.Options{URL: url}), list.BuiltIn())
	must1(c.ImportKeys(ctx, w.ID, apikey.Form{Digest: apikey.SHA512}, []ImportedKey{hashedAs("three")}))
	must1(c.ImportKeys(ctx, w.ID, apikey.Form{Digest: apikey.SHA512}, []ImportedKey{hashedAs("four")}))
	forms, run, err := store.Forms(ctx, "")
	if fmt.Sprint(forms) != "[{sha256 |} {sha512 }]" || run == "" || err != nil {
		t.Errorf("forms %v, %q, %v", forms, run, err)
	}
	found := must1(store.Lookup(ctx, []apikey.Hash{one.Hash, two.Hash}, ""))
	if !found[two.Hash].Revoked || found[one.Hash].Revoked || found[one.Hash].Label.Name != "of one" {
		t.Errorf("%+v", found)
	}
	stored := must1(c.Stored(ctx, []apikey.Hash{one.Hash, hashedAs("none").Hash}))
	if len(stored) != 1 || !stored[one.Hash] {
		t.Errorf("%v", stored)
	}
}

// All keys are imported with their rows in the audit log and their form, or nothing is.
func TestAnImportThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	c := openAdmin(t, newDatabase(t))
	w := must1(c.CreateWorkspace(t.Context(), "W", nil, nil, nil, ""))
	form := apikey.Form{Digest: apikey.SHA256}
	for i := range apikey.MaxForms {
		must1(c.ImportKeys(t.Context(), w.ID, apikey.Form{Digest: apikey.SHA256, Behind: string(rune('a' + i))}, []ImportedKey{hashedAs(fmt.Sprint("first", i))}))
	}
	named := hashedAs("named")
	named.Name = strings.Repeat("n", MaxTextSize+1)
	counted := func() [3]int {
		return [3]int{count(t, c, "api_keys"), count(t, c, "listedge_audit_log"), count(t, c, "listedge_key_forms")}
	}
	before := counted()
	for _, f := range []struct {
		name      string
		workspace uuid.UUID
		form      apikey.Form
		last      ImportedKey
		says      string
	}{
		{"a hash that is stored", w.ID, form, hashedAs("first0"), "has stored one of the hashes"},
		{"a hash twice", w.ID, form, hashedAs("new"), "has stored one of the hashes"},
		{"no such workspace", uuid.New(), form, hashedAs("other"), "not found"},
		{"a constraint", w.ID, form, named, "api_keys_name_size"},
		{"too many forms", w.ID, form, hashedAs("other"), "no room for another"},
		{"no such digest", w.ID, apikey.Form{Digest: "md5", Behind: "a"}, hashedAs("other"), "listedge_key_forms"},
		{"no such character", w.ID, apikey.Form{Digest: apikey.SHA256, Behind: "ab"}, hashedAs("other"), "listedge_key_forms"},
	} {
		made, err := c.ImportKeys(t.Context(), f.workspace, f.form, []ImportedKey{hashedAs("new"), f.last})
		if err == nil || !strings.Contains(err.Error(), f.says) || errors.Is(err, ErrNotFound) != (f.says == "not found") {
			t.Errorf("%s: %+v, %v", f.name, made, err)
		}
		if after := counted(); after != before {
			t.Errorf("%s: %v, before %v", f.name, after, before)
		}
	}
}
