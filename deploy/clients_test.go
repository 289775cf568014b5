package deploy_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/oapi-codegen/runtime" // which generated Go imports
)

// walked is what a generated client reports: see clients/.
type walked struct {
	Items, Contacts                []string
	Usage                          float64
	Unchanged                      string // a status, and Cache-Status
	Invalid, Unauthorized, Limited struct {
		Status        int
		Code, Message string
		Details       map[string]string
		RetryAfter    int
	}
}

// Clients that generators make of a node's /openapi.json walk its lists to
// their ends and read its errors.
func TestGeneratedClients(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1)
	const usage = 1<<24 + 1 // a float of 32 bits cannot hold it
	psql(t, f, "UPDATE items SET usage_30 = 16777217 WHERE id = (SELECT min(id::text)::uuid FROM items WHERE active)")
	items := psql(t, f, "SELECT id FROM items WHERE active ORDER BY created_at DESC, id DESC")
	contacts := psql(t, f, "SELECT id FROM contacts WHERE active ORDER BY created_at DESC, id DESC")
	workspace := psql(t, f, "SELECT id FROM workspaces")[0]

	_, document, err := get("http://"+f.nodes[0].public+"/openapi.json", "")
	must(err)
	dir := t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "openapi.json"), document, 0o644))
	t.Run("oapi-codegen", func(t *testing.T) { compileGoClient(t, dir) })
	t.Run("openapi-typescript", func(t *testing.T) {
		own := filepath.Join(dir, "typescript")
		must(os.CopyFS(own, os.DirFS("clients")))
		runModule(t, own, "openapi-typescript", "../openapi.json", "-o", "openapi.d.ts")
		client := compileTypeScript(t, own, "openapi-fetch")
		client.Env = append(os.Environ(), "NODE=http://"+f.nodes[0].public, "KEY="+f.key,
			"LIMITED_KEY="+listedge(t, f.env, "keys", "create", "--workspace", workspace, "--rate", "0.001", "--burst", "1"))
		var got walked
		if said := run(t, client); json.Unmarshal(said, &got) != nil {
			t.Fatalf("it reports %s", said)
		}
		if !slices.Equal(got.Items, items) {
			t.Errorf("%d items came, of %d, or in another order", len(got.Items), len(items))
		}
		if !slices.Equal(got.Contacts, contacts) {
			t.Errorf("%d contacts came, of %d, or in another order", len(got.Contacts), len(contacts))
		}
		if got.Usage != usage {
			t.Errorf("usage30 came as %f", got.Usage)
		}
		if !strings.HasPrefix(got.Unchanged, "304 listedge; ") || strings.Contains(got.Unchanged, "bypass") {
			t.Errorf("a page's own validator is answered with %s", got.Unchanged)
		}
		if e := got.Invalid; e.Status != 400 || e.Code != "VALIDATION_ERROR" || e.Message == "" || e.Details["limit"] == "" {
			t.Errorf("a limit of 101: %+v", e)
		}
		if e := got.Unauthorized; e.Status != 401 || e.Code != "UNAUTHORIZED" || e.Message == "" {
			t.Errorf("no key: %+v", e)
		}
		if e := got.Limited; e.Status != 429 || e.Code != "RATE_LIMITED" || e.Message == "" || e.RetryAfter < 1 {
			t.Errorf("an empty bucket: %+v", e)
		}
	})
}

// compileGoClient compiles the client that is generated from dir's openapi.json, as if it lay in
// clients/: the versions of what it imports are this module's.
func compileGoClient(t *testing.T, dir string) {
	generated, overlay := filepath.Join(dir, "generated.go"), filepath.Join(dir, "overlay.json")
	run(t, exec.Command("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "clients", "-o", generated, filepath.Join(dir, "openapi.json")))
	beside := must1(filepath.Abs("clients/generated.go"))
	must(os.WriteFile(overlay, must1(json.Marshal(map[string]any{"Replace": map[string]string{beside: generated}})), 0o644))
	run(t, exec.Command("go", "vet", "-overlay", overlay, "./clients"))
}

// compileTypeScript compiles the client of that name, every type checked.
func compileTypeScript(t *testing.T, dir, client string, flags ...string) *exec.Cmd {
	runModule(t, dir, append([]string{"tsc", "--strict", "--skipLibCheck", "--target", "es2022", "--lib", "es2022,dom,dom.iterable",
		"--module", "nodenext", "--outDir", "built", client + ".ts"}, flags...)...)
	return exec.Command(tool("node"), filepath.Join(dir, "built", client+".js"))
}

// runModule runs a program of the installed packages in dir.
func runModule(t *testing.T, dir string, command ...string) {
	t.Helper()
	modules := nodeModules(t)
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	cmd := exec.Command(tool("node"), append([]string{filepath.Join(modules, ".bin", command[0])}, command[1:]...)...)
	cmd.Dir = dir
	run(t, cmd)
}

// nodeModules is the folder of the packages that clients/package-lock.json
// names: installed once, and kept in the user's cache for the next time.
func nodeModules(t *testing.T) string {
	t.Helper()
	lock := must1(os.ReadFile("clients/package-lock.json"))
	cache := must1(os.UserCacheDir())
	sum := sha256.Sum256(lock)
	home := filepath.Join(cache, "listedge", "clients-"+hex.EncodeToString(sum[:8]))
	modules := filepath.Join(home, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	must(os.MkdirAll(filepath.Dir(home), 0o755))
	under := must1(os.MkdirTemp(filepath.Dir(home), "clients-*.tmp"))
	defer os.RemoveAll(under)
	must(os.CopyFS(under, os.DirFS("clients")))
	npm := exec.Command(tool("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = under
	npm.Env = append(os.Environ(), "PATH="+filepath.Dir(tool("node"))+":"+os.Getenv("PATH"))
	run(t, npm)
	if err := os.Rename(under, home); err != nil { // whole, or not there
		if _, there := os.Stat(modules); there != nil { // nor by another run's
			t.Fatal(err)
		}
	}
	return modules
}
