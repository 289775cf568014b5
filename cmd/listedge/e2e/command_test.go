package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Package main tries what can be wrong about flags without a server.
func TestWrongUsageIsOneLineAndStatusTwo(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"keys": "expected one of", "serve": "--database-url", "dev --listen nonsense": "--listen",
		"--listen nowhere":              "--listen",
		"--listen=":                     "--listen",
		"--admin-listen=":               "--admin-listen",
		"--redis-url memcached://a":     "--redis-url",
		"--database-url postgres://%zz": "--database-url",
	} {
		t.Run(line, func(t *testing.T) {
			args := strings.Fields(line)
			if strings.HasPrefix(line, "--") {
				args = append(strings.Fields("serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --database-url postgres://h/d"), args...)
			}
			refused(t, exitUsage, want, args...)
		})
	}
}

func TestFailuresAreOneLineAndStatusOne(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := startNode(t, url)
	for line, want := range map[string]string{
		"serve --listen " + strings.TrimPrefix(n.url, "http://") + " --database-url " + url: "address already in use",
		"dev --listen " + strings.TrimPrefix(n.url, "http://"):                              "address already in use",
		"migrate up --database-url postgres://127.0.0.1:1/none":                             "127.0.0.1",
	} {
		t.Run(line, func(t *testing.T) {
			refused(t, exitFailed, want, strings.Fields(line)...)
		})
	}
}

// An id that names nothing, or something of another kind, changes nothing.
func TestIDsOfNothingAreNotFound(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	key := parsed[[]struct{ ID string }](t, "keys", "list", "--workspace", workspace, "--database-url", url)
	const none = "00000000-0000-0000-0000-000000000000"
	for line, other := range map[string]string{
		"workspaces suspend ID": key[0].ID, "workspaces resume ID": key[0].ID, "workspaces update ID --rate 1": key[0].ID,
		"keys create --workspace ID": key[0].ID, "keys list --workspace ID": key[0].ID, "usage --workspace ID": key[0].ID,
		"purge --workspace ID": key[0].ID,
		"keys revoke ID":       workspace, "keys update ID --rate 1": workspace, "keys rotate ID": workspace, "keys show ID": workspace,
	} {
		for _, id := range []string{none, other} {
			line := strings.ReplaceAll(line, " ID", " "+id)
			t.Run(line, func(t *testing.T) {
				refused(t, exitFailed, id+": not found", strings.Fields(line+" --database-url "+url)...)
			})
		}
	}
}

func TestCommandsPrintOneJSONValue(t *testing.T) {
	t.Parallel()
	url := database(t)
	var workspace, key string
	for _, c := range []struct{ line, want string }{ // want: parts of the JSON
		{"workspaces list", "[]"},
		{"workspaces create --name Shop --rate 5", `"name":"Shop" "ratePerSecond":5 "burst":null "suspendedAt":null`},
		{"keys list --workspace WORKSPACE", "[]"},
		{"keys create --workspace WORKSPACE", `"ratePerSecond":50 "burst":100 "scopes":["contacts:read","items:read"] "expiresAt":null`},
		{"keys create --workspace WORKSPACE --name Sync --scopes items:read --rate 7.5 --expires-in 1h",
			`"key":"lk_ "workspaceId":"WORKSPACE" "name":"Sync" "ratePerSecond":7.5 "burst":15 "scopes":["items:read"] "expiresAt":"20`},
		{"keys list --workspace WORKSPACE", `[{ "id":"KEY" "name":"Sync"`},
		{"keys update KEY --rate 9", `"ratePerSecond":9 "burst":15`},
		{"workspaces update WORKSPACE --burst 33", `"ratePerSecond":5 "burst":33`},
		{"keys revoke KEY", `"revokedAt":"20`},
		{"workspaces suspend WORKSPACE", `"suspendedAt":"20`},
		{"workspaces resume WORKSPACE", `"suspendedAt":null`},
		{"migrate status", `[{ "version":1 "appliedAt":"20`},
	} {
		ids := strings.NewReplacer("WORKSPACE", workspace, "KEY", key)
		args := append(strings.Fields(ids.Replace(c.line)), "--database-url", url)
		printed := command(t, append(args, "--json")...)
		for part := range strings.FieldsSeq(ids.Replace(c.want)) {
			if !strings.Contains(printed, part) {
				t.Errorf("%s: %s is missing: %s", c.line, part, printed)
			}
		}
		var made struct{ ID string }
		if err := json.Unmarshal([]byte(printed), &made); err == nil && strings.HasPrefix(c.line, "workspaces create") {
			workspace = made.ID
		} else if err == nil && strings.HasPrefix(c.line, "keys create") {
			key = made.ID
		}
		if people := strings.TrimSpace(command(t, args...)); people == "" && c.want != "[]" || strings.Contains(people, "{") {
			t.Errorf("%s prints %q", c.line, people)
		}
	}
}

// A command whose output cannot be written fails: a new key, for example, is printed only once.
func TestOutputThatIsLostIsAFailure(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	for _, line := range []string{"--help", "--version", "serve --print-config --database-url " + url,
		"workspaces list --database-url " + url, "workspaces list --json --database-url " + url, "keys create --database-url " + url + " --workspace " + workspace} {
		unwritable := must1(os.Open(os.DevNull)) // to read
		defer unwritable.Close()
		c := exec.Command(listedge, strings.Fields(line)...)
		c.Stdout = unwritable
		p := startCommand(t, c)
		if <-p.ended; p.code != exitFailed || strings.Count(p.err.String(), "\n") != 1 || !strings.Contains(p.err.String(), "write the output") {
			t.Errorf("%s: exit %d: %s", line, p.code, p.err.String())
		}
	}
}

func TestAnInterruptIsReportedAsOne(t *testing.T) {
	t.Parallel()
	url := database(t)
	conn := connect(t, url)
	tx := must1(conn.Begin(t.Context()))
	defer tx.Rollback(t.Context())
	must1(tx.Exec(t.Context(), "LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE"))
	p := start(t, "workspaces", "list", "--database-url", url)
	within(t, patience, "the command waits for the table", func() (waits bool) {
		must(tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'workspaces'::regclass)").Scan(&waits))
		return waits
	})
	if p.stop() != exitFailed || p.err.String() != "listedge: interrupted\n" {
		t.Errorf("exit %d: %s", p.code, p.err.String())
	}
}
