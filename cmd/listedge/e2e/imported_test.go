package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

// fileOfKeys is a file as `keys import` reads it, of keys that may read all lists.
func fileOfKeys(form apikey.Form, keys ...string) string {
	file := "hash,name,scopes\n"
	for i, key := range keys {
		_, behind, _ := strings.Cut(key, form.Behind) // all of it without a character
		digest := fmt.Sprintf("%x", sha256.Sum256([]byte(behind)))
		if form.Digest == apikey.SHA512 {
			long := sha512.Sum512([]byte(behind))
			digest = base64.URLEncoding.EncodeToString(long[:])
		}
		file += fmt.Sprintf("%s,Their key %d,\"items:read,contacts:read\"\n", digest, i)
	}
	return file
}

// importFile runs `keys import` with the file on standard input.
func importFile(t *testing.T, url, workspace string, form apikey.Form, file string, flags ...string) *program {
	t.Helper()
	c := exec.Command(listedge, append([]string{"keys", "import", "--database-url", url, "--workspace", workspace, "--hash", string(form.Digest),
		"--behind", form.Behind, "-"}, flags...)...)
	c.Stdin = strings.NewReader(file)
	p := startCommand(t, c)
	<-p.ended
	return p
}

// Customers keep their keys: a running fleet serves the keys of another maker once their hashes are imported. They
// are limited, counted, rotated and revoked like ours.
func TestKeysOfAnotherMaker(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, ours := workspaceWithKey(t, url)
	redis := sandboxtest.Redis(t)
	nodes := []*testNode{startFollowed(t, url, "--redis-url", redis.URL()), startFollowed(t, url, "--redis-url", redis.URL())}
	const theirs, limited, other = "42|kept by a customer", "an old key with a limit", "a key that nobody has"
	answers := func(key string, status int, says string) {
		t.Helper()
		for _, n := range nodes {
			within(t, patience, fmt.Sprint(status, " for the key ", key), func() bool {
				a := n.get(t, "/v1/items", key)
				return a.StatusCode == status && strings.Contains(string(a.body), says)
			})
		}
	}
	for _, key := range []string{theirs, limited, other} {
		answers(key, 401, "look for a typing error")
	}
	sanctum, whole := apikey.Form{Digest: apikey.SHA256, Behind: "|"}, apikey.Form{Digest: apikey.SHA512}

	bad := importFile(t, url, workspace, sanctum, fileOfKeys(sanctum, theirs)+"0123,short,items:read\n")
	if said := bad.err.String(); bad.code != exitFailed || !strings.Contains(said, "listedge: line 3: the hash has 3 bytes, and a sha256 has 32\n") ||
		!strings.HasSuffix(said, "listedge: nothing was imported\n") {
		t.Errorf("exit %d: %s", bad.code, said)
	}
	answers(theirs, 401, "look for a typing error")

	file := filepath.Join(t.TempDir(), "keys.csv")
	must(os.WriteFile(file, []byte(fileOfKeys(sanctum, theirs)), 0o600))
	args := []string{"keys", "import", "--database-url", url, "--workspace", workspace, "--hash", "sha256", "--behind", "|", "--actor", "Mover", file}
	if said := command(t, args...); said != "imported 1 keys\n" {
		t.Error(said)
	}
	answers(theirs, 200, "")
	again := untilAnswered(t, args...)
	if said := again.err.String(); again.code != exitFailed || !strings.Contains(said, "line 2: a key with this hash is stored already\n") {
		t.Errorf("exit %d: %s", again.code, said)
	}
	answers(other, 401, "This is not an API key") // no key of that form was imported
	csv := strings.Replace(fileOfKeys(whole, limited), "scopes\n", "scopes,rate,burst\n", 1)
	p := importFile(t, url, workspace, whole, strings.TrimSuffix(csv, "\n")+",0.0001,3\n", "--json")
	if p.code != exitFine || !strings.Contains(p.out.String(), `"imported":1,`) {
		t.Fatalf("exit %d: %s%s", p.code, p.out.String(), p.err.String())
	}
	answered := map[int]int{}
	within(t, patience, "its limit", func() bool {
		answered[nodes[0].get(t, "/v1/items", limited).StatusCode]++
		return answered[429] > 0
	})
	if answered[200] == 0 || answered[200] > 4 {
		t.Errorf("a burst of 3: %v", answered)
	}
	answers(other, 401, "This API key is not valid.")

	listed := map[string]admin.Key{}
	for _, k := range parsed[[]admin.Key](t, "keys", "list", "--database-url", url, "--workspace", workspace) {
		if k.Prefix == apikey.ImportedPrefix {
			listed[fmt.Sprint(*k.Burst)] = k
		}
	}
	kept := listed["100"]
	if len(listed) != 2 || kept.State != admin.KeyActive {
		t.Fatalf("%+v", listed)
	}
	within(t, patience, "its usage is counted", func() bool {
		return strings.Contains(command(t, "usage", "--database-url", url, "--workspace", workspace), kept.ID.String()+"  "+apikey.ImportedPrefix)
	})
	rotated := strings.TrimSpace(command(t, "keys", "rotate", "--database-url", url, kept.ID.String()))
	answers(rotated, 200, "")
	answers(theirs, 200, "")
	command(t, "keys", "revoke", "--database-url", url, kept.ID.String())
	answers(theirs, 401, "This API key is not valid.")
	answers(rotated, 200, "")
	answers(ours, 200, "")
	for _, n := range nodes {
		for _, key := range []string{theirs, limited, other} {
			if strings.Contains(n.err.String(), key) {
				t.Errorf("the log has the key %s", key)
			}
		}
	}
	if log := auditLog(t, url, "--key", kept.ID.String()); len(log) != 3 || log[2].Action != "keys.import" || log[2].Actor != "Mover" {
		t.Errorf("%+v", log)
	}
}

// Keys come over from each maker as docs/SECURITY.md says. Texts and hashes are made as the makers make them.
func TestKeysOfEachMaker(t *testing.T) {
	t.Parallel()
	url, from := database(t), database(t)
	workspace, _ := workspaceWithKey(t, url)
	n := startNode(t, url)
	digest := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	row := func(hash string) string { return "hash,name,scopes\n" + hash + ",One,items:read\n" }

	const kong, gone = "kong-key-of-a-consumer", "kong-key-that-has-expired"
	execute(t, from, "CREATE TABLE keyauth_credentials (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text, ttl timestamptz)")
	execute(t, from, "INSERT INTO keyauth_credentials (key, ttl) VALUES ($1, now() + '1 h'), ($2, now() - interval '1 s')", kong, gone)
	export := regexp.MustCompile(`(?s)-- Kong's keys.*?\n(SELECT .*?);`).FindStringSubmatch(string(must1(os.ReadFile("../../../docs/SECURITY.md"))))[1]
	ofKong := must1(postgrestest.Value[string](from,
		`SELECT 'hash,name,scopes,expires' || string_agg(format(E'\n%s,%s,%s,%s', hash, name, scopes, expires), '') FROM (`+export+`) e`))

	tyk := base64.StdEncoding.EncodeToString([]byte(`{"org":"5e9d9544a1dcd60001d0ed20","id":"9bf1ee95e17b4bd6a2c8d6d5b1c2a3f4","h":"sha256"}`))
	const unkey = "acme_3ZkT9YQ7Vh1mWnN4uXyJtP"
	ofUnkey := sha256.Sum256([]byte(unkey))
	entropy := rand.Text() + rand.Text()[:14]
	sanctum := "acme_" + entropy + fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(entropy)))
	other := "acme_" + rand.Text()
	_, listedge := workspaceWithKey(t, from)
	ofListedge := must1(postgrestest.Value[string](from, "SELECT encode(key_hash, 'hex') FROM api_keys"))

	whole, behind := apikey.Form{Digest: apikey.SHA256}, apikey.Form{Digest: apikey.SHA256, Behind: "|"}
	for _, m := range []struct {
		maker string
		form  apikey.Form
		file  string
		sent  string
	}{
		{"Kong", whole, ofKong, kong},
		{"Tyk", whole, row(digest(tyk)), tyk},
		{"Unkey", whole, row(base64.StdEncoding.EncodeToString(ofUnkey[:])), unkey},
		{"Sanctum", behind, row(digest(sanctum)), "1042|" + sanctum},
		{"Sanctum, without its id", whole, row(digest(other)), sanctum},
		{"listedge", whole, row(ofListedge), listedge},
	} {
		if p := importFile(t, url, workspace, m.form, m.file); p.code != exitFine {
			t.Fatalf("%s: exit %d: %s", m.maker, p.code, p.err.String())
		}
		within(t, patience, "the key of "+m.maker, func() bool { return n.get(t, "/v1/items", m.sent).StatusCode == 200 })
	}
	if a := n.get(t, "/v1/items", gone); a.StatusCode != 401 {
		t.Errorf("a key that has expired: %s", a.Status)
	}
	for maker, hash := range map[string]string{"Tyk, murmur32": "5f7a3c21", "Tyk, murmur128": digest("k")[:32]} {
		if p := importFile(t, url, workspace, whole, row(hash)); p.code != exitFailed || !strings.Contains(p.err.String(), "a sha256 has 32") {
			t.Errorf("%s: exit %d: %s", maker, p.code, p.err.String())
		}
	}
}
