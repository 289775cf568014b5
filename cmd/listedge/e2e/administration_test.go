package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/apikey"
	"listedge/origin/audit"
)

// auditLog is what `audit --json` prints with these flags.
func auditLog(t *testing.T, url string, flags ...string) []audit.Entry {
	t.Helper()
	return parsed[[]audit.Entry](t, append([]string{"audit", "--database-url", url}, flags...)...)
}

// made runs a command that makes something, and returns its id.
func made(t *testing.T, args ...string) string {
	t.Helper()
	return parsed[struct{ ID string }](t, args...).ID
}

// Each command that takes --actor writes one row, and names the actor in it.
func TestEachChangeIsInTheAuditLog(t *testing.T) {
	t.Parallel()
	p := shared.Server()
	url := p.URL(postgrestest.Copy(t, p, "template0"))
	command(t, "migrate", "up", "--actor", "Migrator", "--database-url", url)
	for _, e := range auditLog(t, url) {
		if e.Actor != "Migrator" || !strings.HasPrefix(e.Action, "migrate.") {
			t.Errorf("%+v", e)
		}
	}

	execute(t, url, "ALTER PUBLICATION listedge DROP TABLE items")
	command(t, "lists", "plan", "--apply", "--actor", "Planner", "--database-url", url)
	if e := auditLog(t, url)[0]; e.Actor != "Planner" || e.Action != "lists.apply" {
		t.Errorf("%+v", e)
	}

	workspace := made(t, "workspaces", "create", "--name", "W", "--database-url", url)
	key := made(t, "keys", "create", "--workspace", workspace, "--database-url", url)
	theirs := filepath.Join(t.TempDir(), "keys.csv")
	must(os.WriteFile(theirs, []byte(fileOfKeys(apikey.Form{Digest: apikey.SHA256}, "their key")), 0o600))
	startNode(t, url) // a purge needs a node that follows changes
	tried := []string{"migrate up", "lists plan"}
	for _, c := range []struct{ command, arguments, action, subject string }{
		{"workspaces create", "--name V", "workspaces.create", "-"},
		{"workspaces update", workspace + " --rate 9", "workspaces.update", "workspace " + workspace},
		{"workspaces suspend", workspace, "workspaces.suspend", "workspace " + workspace},
		{"workspaces resume", workspace, "workspaces.resume", "workspace " + workspace},
		{"keys create", "--workspace " + workspace, "keys.create", "-"},
		{"keys import", "--workspace " + workspace + " --hash sha256 " + theirs, "keys.import", "workspace " + workspace},
		{"keys update", key + " --burst 9", "keys.update", "key " + key},
		{"keys rotate", key, "keys.rotate", "key " + key},
		{"keys revoke", key, "keys.revoke", "key " + key},
		{"purge", "--workspace " + workspace, "purge", "workspace " + workspace},
	} {
		tried = append(tried, c.command)
		before := len(auditLog(t, url))
		args := append(strings.Fields(c.command+" "+c.arguments), "--actor", "Ann B.", "--database-url", url)
		within(t, patience, c.command+" succeeds", func() bool { // the node may not follow yet
			p := start(t, args...)
			<-p.ended
			return p.code == exitFine
		})
		log := auditLog(t, url)
		if e := log[0]; len(log) != before+1 || e.Actor != "Ann B." || e.Action != c.action ||
			!strings.Contains(fmt.Sprint("-", e.WorkspaceID, e.KeyID), c.subject[strings.LastIndex(c.subject, " ")+1:]) || e.WorkspaceID == nil {
			t.Errorf("%s: %d rows, %+v", c.command, len(log)-before, e)
		}
	}

	for path := range commandsWith("--actor") {
		if !slices.ContainsFunc(tried, func(c string) bool { return path == c || strings.HasPrefix(path, c+" ") }) {
			t.Errorf("%s takes --actor; does it write a row?", path)
		}
	}
}

// helps are what each command says of itself. The program prints all commands if it is given none.
var helps = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z][a-z-]*(?: [a-z-]+)?)  `).FindAllStringSubmatch(string(must1(exec.Command(listedge).Output())), -1) {
		all[found[1]] = string(must1(exec.Command(listedge, append(strings.Fields(found[1]), "--help")...).Output()))
	}
	return all
})

// commandsWith are the commands that have a flag.
func commandsWith(flag string) map[string]bool {
	having := map[string]bool{}
	for path, help := range helps() {
		if strings.Contains(help, flag) {
			having[path] = true
		}
	}
	return having
}

func TestAuditPrints(t *testing.T) {
	t.Parallel()
	url := database(t)
	as := func(actor string, args ...string) string { // by the environment, which a flag overrides
		p := startWith(t, "LISTEDGE_ACTOR="+actor, append(args, "--database-url", url)...)
		<-p.ended
		return strings.TrimSpace(p.out.String())
	}
	workspace := as("Ann", "workspaces", "create", "--name", "Shop")
	as("Ann", "keys", "create", "--workspace", workspace, "--rate", "5", "--burst", "10")
	key := parsed[[]struct{ ID string }](t, "keys", "list", "--workspace", workspace, "--database-url", url)[0].ID
	as("Ann", "keys", "update", key, "--rate", "7.5", "--actor", "Bob")

	lines := strings.Split(strings.TrimSuffix(command(t, "audit", "--workspace", workspace, "--database-url", url), "\n"), "\n")
	const at = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z  `
	for i, want := range []string{
		`^AT +ACTOR +ACTION +SUBJECT +DETAILS$`,
		at + `Bob +keys\.update +key ` + key + ` +\{"ratePerSecond":\{"from":5,"to":7\.5\}\}$`,
		at + `Ann +keys\.create +key ` + key + ` +\{"burst":10,"expiresAt":null,"name":"","ratePerSecond":5,"scopes":\["contacts:read","items:read"\]\}$`,
		at + `Ann +workspaces\.create +workspace ` + workspace + ` +\{"burst":null,"name":"Shop","quota":null,"ratePerSecond":null,"tenant":"` + workspace + `"\}$`,
	} {
		if len(lines) != 4 || !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d of %d: %s, want %s", i+1, len(lines), lines[min(i, len(lines)-1)], want)
		}
	}
}

// newKey is what `keys create --json` prints, and `keys rotate --json`.
type newKey struct{ ID, Key string }

// A script reads the new key from standard output.
func TestRotatePrintsTheKeyAlone(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, _ := workspaceWithKey(t, url)
	id := made(t, "keys", "create", "--workspace", workspace, "--database-url", url)
	for _, ends := range []bool{false, true} { // the second time the key has an end, and the new one gets it
		p := start(t, "keys", "rotate", id, "--database-url", url)
		if <-p.ended; p.code != exitFine || len(p.out.String()) != 44 || !strings.HasPrefix(p.out.String(), "lk_") ||
			!strings.Contains(p.err.String(), "replaces "+id+", which works until 2") || strings.Contains(p.err.String(), "the new key works until 2") != ends {
			t.Errorf("exit %d: %q, %q", p.code, p.out.String(), p.err.String())
		}
	}
}

// A purge makes every page of the workspace stale, and no page of another.
func TestPurge(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	_, other := workspaceWithKey(t, url)
	refused(t, exitFailed, "no node follows changes", "purge", "--all", "--database-url", url)
	n := startFollowed(t, url, lateProofs...)
	hit := func(key string) bool {
		return strings.HasPrefix(n.get(t, "/v1/contacts?sort=name", key).Header.Get("Cache-Status"), "listedge; hit")
	}
	warm := func() {
		t.Helper()
		for _, key := range []string{key, other} {
			within(t, patience, "a hit", func() bool { return hit(key) })
		}
	}
	warm()
	before := n.metric(t, "listedge_origin_fetches_total")
	if said := command(t, "purge", "--workspace", workspace, "--database-url", url); said != "purged workspace "+workspace+"\n" {
		t.Error(said)
	}
	within(t, patience, "a miss", func() bool { return !hit(key) || n.metric(t, "listedge_origin_fetches_total") > before })
	if !hit(other) {
		t.Error("another workspace's page was purged")
	}
	warm()
	if said := command(t, "purge", "--all", "--database-url", url); said != "purged all workspaces\n" {
		t.Error(said)
	}
	before = n.metric(t, "listedge_origin_fetches_total")
	for _, key := range []string{key, other} {
		within(t, patience, "a miss", func() bool { return !hit(key) || n.metric(t, "listedge_origin_fetches_total") > before+1 })
	}
	warm()
	before = n.metric(t, "listedge_origin_fetches_total")
	for _, id := range []string{uuid.NewString(), uuid.Nil.String()} {
		refused(t, exitFailed, "workspace "+id+": not found", "purge", "--workspace", id, "--database-url", url)
	}
	refused(t, exitUsage, "either --workspace or --all", "purge", "--database-url", url)
	refused(t, exitUsage, "either --workspace or --all", "purge", "--database-url", url, "--all", "--workspace", workspace)
	if !hit(key) || !hit(other) || n.metric(t, "listedge_origin_fetches_total") != before {
		t.Error("a purge that was refused purged")
	}
	log := slices.DeleteFunc(auditLog(t, url), func(e audit.Entry) bool { return e.Action != "purge" })
	if len(log) != 2 || log[0].WorkspaceID != nil || log[1].WorkspaceID == nil || log[1].WorkspaceID.String() != workspace {
		t.Errorf("purges in the audit log: %+v", log)
	}
}
