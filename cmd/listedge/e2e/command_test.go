package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWrongUsageIsOneLineAndStatusTwo(t *testing.T) {
	t.Parallel()
	url := database(t)
	const id = "00000000-0000-0000-0000-000000000001"
	for line, want := range map[string]string{
		"keys":  "expected one of",
		"brew":  "brew",
		"serve": "--database-url",
		"serve --database-url " + url + " --cache-ttl never":                                                         "--cache-ttl",
		"serve --database-url " + url + " --cache-memory lots":                                                       "256MiB",
		"serve --database-url " + url + " --cache-memory 1kB":                                                        "--cache-memory",
		"serve --database-url " + url + " --max-stale=-1s":                                                           "--max-stale",
		"serve --database-url " + url + " --database-connections 0":                                                  "--database-connections",
		"serve --database-url " + url + " --query-timeout 0s":                                                        "--query-timeout",
		"serve --database-url " + url + " --log-format xml":                                                          "--log-format",
		"serve --database-url " + url + " --log-level loud":                                                          "--log-level",
		"serve --database-url " + url + " --trusted-proxies ten":                                                     "--trusted-proxies",
		"serve --database-url " + url + " --redis-url memcached://a --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0": "--redis-url",
		"serve --database-url postgres://%zz --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0":                        "--database-url",
		"serve --nothing":                                                                       "--nothing",
		"serve --listen= --database-url " + url:                                                 "--listen",
		"serve --admin-listen= --database-url " + url:                                           "--admin-listen",
		"serve --database-url=":                                                                 "--database-url",
		"migrate up --database-url=":                                                            "--database-url",
		"serve --query-timeout 600h --database-url " + url:                                      "--query-timeout",
		"serve --max-stale 1000000h --database-url " + url:                                      "--max-stale",
		"serve --cache-memory 1000TiB --database-url " + url:                                    "--cache-memory",
		"serve --database-connections 40000 --database-url " + url:                              "--database-connections",
		"serve --freshness-bound 1ms --database-url " + url:                                     "--freshness-bound",
		"workspaces create --database-url " + url:                                               "--name",
		"workspaces create --name x --burst 5 --database-url " + url:                            "--rate",
		"workspaces create --name x --rate=-1 --database-url " + url:                            "negative",
		"workspaces create --name x --rate=NaN --database-url " + url:                           "finite",
		"workspaces create --name x --rate=0.0000005 --database-url " + url:                     "six decimals",
		"workspaces update " + id + " --rate 0.3333333 --database-url " + url:                   "six decimals",
		"keys create --workspace " + id + " --rate 0.0000015 --database-url " + url:             "six decimals",
		"keys update " + id + " --rate 1e-7 --database-url " + url:                              "six decimals",
		"workspaces suspend nobody --database-url " + url:                                       "UUID",
		"workspaces create --name x --quota 5 --database-url " + url:                            "N/day or N/month",
		"workspaces create --name x --quota 0/day --database-url " + url:                        "from 1 to 4000000000",
		"workspaces update " + id + " --quota 5/week --database-url " + url:                     "--quota",
		"workspaces update " + id + " --quota= --database-url " + url:                           "--quota",
		"workspaces update " + id + " --database-url " + url:                                    "--quota",
		"keys create --database-url " + url:                                                     "--workspace",
		"keys update " + id + " --database-url " + url:                                          "nothing to update",
		"workspaces update " + id + " --burst 0 --database-url " + url:                          "burst",
		"workspaces create --name= --database-url " + url:                                       "--name",
		"keys create --scopes= --workspace " + id + " --database-url " + url:                    "--scopes",
		"serve --listen nowhere --database-url " + url:                                          "--listen",
		"serve --limiter-failure-mode never --database-url " + url:                              "--limiter-failure-mode",
		"keys create --workspace x --database-url " + url:                                       "--workspace",
		"keys create --workspace " + id + " --scopes items:write --database-url " + url:         "--scopes",
		"keys create --workspace " + id + " --burst 0 --database-url " + url:                    "burst",
		"keys create --workspace " + id + " --expires-in -1h --database-url " + url:             "--expires-in",
		"keys rotate " + id + " --overlap=-1h --database-url " + url:                            "--overlap",
		"keys rotate " + id + " --overlap soon --database-url " + url:                           "--overlap",
		"keys rotate " + id + " --expires-in 0d --database-url " + url:                          "--expires-in",
		"keys rotate " + id + " --actor= --database-url " + url:                                 "--actor",
		"keys revoke " + id + " --actor " + strings.Repeat("x", 129) + " --database-url " + url: "--actor",
		"keys revoke " + id + " --actor x\x1b[2J --database-url " + url:                         "--actor",
		"keys rotate --database-url " + url:                                                     "<id>",
		"keys show me --database-url " + url:                                                    "UUID",
		"audit --limit 0 --database-url " + url:                                                 "--limit",
		"audit --since 0h --database-url " + url:                                                "--since",
		"audit --since 1000000000d --database-url " + url:                                       "7d",
		"audit --key me --database-url " + url:                                                  "--key",
		"usage --database-url " + url:                                                           "--workspace",
		"usage --since 0s --workspace " + id + " --database-url " + url:                         "--since: must be a positive duration",
		"usage --since 36d --workspace " + id + " --database-url " + url:                        "--since must be at most 35d",
		"usage --since soon --workspace " + id + " --database-url " + url:                       "--since",
		"keys list --unused-for=-1d --workspace " + id + " --database-url " + url:               "--unused-for: must be a positive duration",
		"dev --nodes 0":         "--nodes",
		"dev --nodes 9":         "--nodes must be one of",
		"dev --listen nonsense": "--listen",
	} {
		t.Run(line, func(t *testing.T) {
			refused(t, exitUsage, want, strings.Fields(line)...)
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
	parse := func(line string) any {
		t.Helper()
		return parsed[any](t, append(strings.Fields(line), "--database-url", url)...)
	}
	if list := parse("workspaces list").([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
	w := parse("workspaces create --name Shop --rate 5").(map[string]any)
	if w["name"] != "Shop" || w["ratePerSecond"] != 5.0 || w["burst"] != nil || w["suspendedAt"] != nil {
		t.Errorf("%v", w)
	}
	id := w["id"].(string)
	if list := parse("keys list --workspace " + id).([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
	k := parse("keys create --workspace " + id + " --name Sync --scopes items:read --rate 7.5 --expires-in 1h").(map[string]any)
	if key, _ := k["key"].(string); len(key) != 43 || k["workspaceId"] != id || k["name"] != "Sync" || k["ratePerSecond"] != 7.5 || k["burst"] != 15.0 ||
		k["expiresAt"] == nil {
		t.Errorf("%v", k)
	}
	d := parse("keys create --workspace " + id).(map[string]any)
	if d["ratePerSecond"] != 50.0 || d["burst"] != 100.0 || len(d["scopes"].([]any)) != 2 {
		t.Errorf("defaults: %v", d)
	}
	listed := parse("keys list --workspace " + id).([]any)
	if len(listed) != 2 || listed[0].(map[string]any)["id"] != k["id"] || listed[0].(map[string]any)["key"] != nil {
		t.Errorf("%v", listed)
	}
	if u := parse("keys update " + k["id"].(string) + " --rate 9").(map[string]any); u["ratePerSecond"] != 9.0 || u["burst"] != 15.0 {
		t.Errorf("%v", u)
	}
	if u := parse("workspaces update " + id + " --burst 33").(map[string]any); u["ratePerSecond"] != 5.0 || u["burst"] != 33.0 {
		t.Errorf("%v", u)
	}
	if r := parse("keys revoke " + k["id"].(string)).(map[string]any); r["revokedAt"] == nil {
		t.Errorf("%v", r)
	}
	if s := parse("workspaces suspend " + id).(map[string]any); s["suspendedAt"] == nil {
		t.Errorf("%v", s)
	}
	if s := parse("workspaces resume " + id).(map[string]any); s["suspendedAt"] != nil {
		t.Errorf("%v", s)
	}
	status := parse("migrate status").([]any)
	if len(status) != 1 || status[0].(map[string]any)["version"] != 1.0 || status[0].(map[string]any)["appliedAt"] == nil {
		t.Errorf("%v", status)
	}
	for _, people := range []string{"workspaces list", "keys list --workspace " + id, "migrate status", "keys show " + k["id"].(string),
		"workspaces suspend " + id, "keys revoke " + k["id"].(string), "migrate up"} {
		if printed := command(t, append(strings.Fields(people), "--database-url", url)...); strings.TrimSpace(printed) == "" || strings.Contains(printed, "{") {
			t.Errorf("%s prints %q", people, printed)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"": "workspaces create", "--help": "workspaces create",
		"serve --help": "--cache-memory", "keys --help": "keys revoke", "keys create --help": "--expires-in", "--version": "revision",
	} {
		t.Run(line, func(t *testing.T) {
			if printed := command(t, strings.Fields(line)...); !strings.Contains(printed, "listedge") || !strings.Contains(printed, want) {
				t.Error(printed)
			}
		})
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
