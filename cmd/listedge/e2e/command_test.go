package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"listedge/origin/apikey"
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
	const taken = "address already in use: end what listens there, or give another address by --listen"
	for line, want := range map[string]string{
		"serve --listen " + strings.TrimPrefix(n.url, "http://") + " --database-url " + url: taken,
		"dev --listen " + strings.TrimPrefix(n.url, "http://"):                              taken,
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

// A URL that was made for another client, or names what the server does not know, is wrong usage:
// exit 2, which stops a supervisor from starting the program again and again.
func TestParametersOfTheDatabaseURL(t *testing.T) {
	t.Parallel()
	url := database(t)
	commands := []string{"serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --drain 1ms --log-level error", "migrate up", "migrate status", "doctor",
		"workspaces list",
		"purge --all", "usage --workspace 00000000-0000-0000-0000-000000000000"}
	for parameters, want := range map[string]string{
		"pgbouncer=true":                       "correct or remove pgbouncer in the URL\n",
		"prepareThreshold=0":                   "correct or remove prepareThreshold in the URL\n",
		"statement_timeout=soon":               "correct or remove statement_timeout in the URL\n",
		"shared_buffers=1GB":                   "correct or remove shared_buffers in the URL\n",
		"options=-c%20no_setting%3D1%20-c%20x": "correct or remove options in the URL\n",
	} {
		for i, line := range commands {
			if i > 0 && parameters != "pgbouncer=true" {
				continue // a command finds one as it finds another
			}
			t.Run(line+" "+parameters, func(t *testing.T) {
				t.Parallel()
				refused(t, exitUsage, want, append(strings.Fields(line), "--database-url", withParameters(url, parameters))...)
			})
		}
	}
	refused(t, exitUsage, "correct or remove no_setting", "migrate", "drop-slot", "--database-url", withParameters(url, "no_setting=1"))
	refused(t, exitUsage, "correct or remove no_setting", "doctor", "--database-url", withParameters(url, "no_setting=1"), "--replication-url", url)
	refused(t, exitUsage, "correct or remove no_setting", "doctor", "--replication-url", withParameters(url, "no_setting=1"), "--database-url", url)
	good := withParameters(url, "application_name=x&search_path=y&my.Setting=1&DateStyle=ISO&lock_timeout=5s&tcp_user_timeout=10s&connect_timeout=3&"+
		"options=-c%20geqo%3Doff")
	command(t, "workspaces", "list", "--database-url", good)
	startNode(t, good)
}

func withParameters(url, parameters string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameters
	}
	return url + "?" + parameters
}

// obeyed is a text of which a terminal obeys much: it clears the screen, sets the title, begins
// lines, and changes the order of letters.
const obeyed = "\x1b[2JShop\x1b]0;owned\x07\r\nnext\trow\x7f\u0085\u009b2J\u202e\u2066\u2028\u2029\u200f\u061c ü"

// isVisible fails if a terminal would obey a part of what a command has printed.
func isVisible(t *testing.T, command, printed string) {
	t.Helper()
	for _, c := range printed {
		if c != '\n' && unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
			t.Errorf("%s prints %U:\n%q", command, c, printed)
			return
		}
	}
	if strings.Contains(printed, "\nnext") {
		t.Errorf("%s: a text has made a line:\n%s", command, printed)
	}
}

// Other systems write workspaces and keys, and nodes and Postgres write messages. No command
// panics or fails because of that, or prints what a terminal obeys. Programs get texts as they are.
func TestOutputOfWhateverOthersWrite(t *testing.T) {
	t.Parallel()
	url := database(t)
	for _, sql := range []string{ // the checks of the schema: tables that others made lack them
		`DO $$ DECLARE k record; BEGIN
			FOR k IN SELECT conname, conrelid::regclass AS owner FROM pg_constraint WHERE contype = 'c'
				AND conrelid IN ('workspaces'::regclass, 'api_keys'::regclass) LOOP
				EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', k.owner, k.conname);
			END LOOP;
		END $$`,
		// Package admin has more.
		`CREATE TABLE odd AS SELECT gen_random_uuid() AS workspace, gen_random_uuid() AS key, timestamptz 'infinity' AS at, float8 'NaN' AS rate`,
		`INSERT INTO workspaces SELECT workspace, $1, $1 || workspace, at, rate, -2147483648, at, 9223372036854775807, $1 FROM odd`,
		`INSERT INTO api_keys SELECT key, workspace, $1, sha256(key::text::bytea), $1,
			ARRAY[['items:read', NULL], [$1, '']], rate, 2147483647, at, NULL, at FROM odd`,
		`INSERT INTO listedge_key_usage SELECT workspace, date_trunc('hour', now()), key, 1, 1, 1, 1, 1, 1 FROM odd`,
		`INSERT INTO listedge_audit_log (actor, action, workspace_id, key_id, details)
			SELECT $1::text, $1, workspace, key, jsonb_build_object($1::text, $1::text) FROM odd`,
	} {
		if strings.Contains(sql, "$1") {
			execute(t, url, sql, obeyed)
		} else {
			execute(t, url, sql)
		}
	}
	var workspace, key string
	must(connect(t, url).QueryRow(t.Context(), "SELECT workspace::text, key::text FROM odd").Scan(&workspace, &key))
	quoted := string(must1(json.Marshal(obeyed)))
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/explain":
			fmt.Fprintf(w, `[{"agent":%s,"more":{"list":[%[1]s]}}]`, quoted)
		case "/readyz":
			fmt.Fprintf(w, `{"checks":{%s:%[1]s}}`, quoted)
		case "/state":
			fmt.Fprintf(w, `{"self":{"name":%s,"version":%[1]s,"ready":false},
				"checks":[{"name":%[1]s,"checked":true,"why":%[1]s,"remedy":%[1]s}],"settings":{%[1]s:%[1]s}}`, quoted)
		}
	}))
	defer node.Close()

	untried := commandsWith("--json")
	try := func(line string, codes ...int) {
		forms := []string{""}
		for path := range untried {
			if strings.HasPrefix(line+" ", path+" ") {
				forms, untried[path] = append(forms, " --json"), false
			}
		}
		for _, form := range forms {
			p := startWith(t, "LISTEDGE_DATABASE_URL="+url, strings.Fields(line+form)...)
			<-p.ended
			if !slices.Contains(codes, p.code) || strings.Contains(p.err.String(), "BUG") || strings.Contains(p.err.String(), "goroutine") {
				t.Errorf("%s: exit %d: %s", line+form, p.code, p.err.String())
			}
			isVisible(t, line, p.err.String())
			if form == "" {
				isVisible(t, line, p.out.String())
			} else if text := p.out.String(); p.code == exitFine && !json.Valid([]byte(text)) {
				t.Errorf("%s: %s", line+form, text)
			}
		}
	}
	try("keys list --workspace "+workspace, exitFine)
	try("usage --workspace "+workspace, exitFine)
	try("keys show "+key, exitFine)
	try("keys update "+key+" --rate 3", exitFine, exitFailed)
	try("keys rotate "+key, exitFine, exitFailed)
	try("keys revoke "+key, exitFine)
	try("workspaces update "+workspace+" --rate 3", exitFine)
	try("workspaces suspend "+workspace, exitFine)
	try("workspaces resume "+workspace, exitFine)
	try("keys create --workspace "+workspace, exitFine)
	try("workspaces create --name W", exitFine)
	rows := filepath.Join(t.TempDir(), "keys.csv")
	for _, written := range []string{obeyed + ",name,scopes\n", "hash,name,scopes,expires\n",
		"hash,name,scopes\n" + strings.Repeat(`"`+obeyed+`",`, 3)[:3*len(obeyed)+8] + "\n"} {
		must(os.WriteFile(rows, []byte(written), 0o600))
		try("keys import --workspace "+workspace+" --hash sha256 "+rows, exitFailed)
	}
	must(os.WriteFile(rows, []byte(fileOfKeys(apikey.Form{Digest: apikey.SHA256}, "an imported key")), 0o600))
	try("keys import --workspace "+workspace+" --hash sha256 "+rows, exitFine, exitFailed) // it is stored already
	try("workspaces list", exitFine)
	try("audit", exitFine)
	try("migrate status", exitFine)
	try("lists show", exitFine)
	try("lists plan", exitFine)
	try("lists check", exitFine)
	try("explain x --node "+node.URL, exitFine)
	try("ready --node "+node.URL, exitFailed)
	try("doctor --node "+node.URL, exitFailed)
	try("serve --print-config --node-id \u202e\u2066", exitFine)
	try("keys brew\x1b[2J", exitUsage)
	if printed := command(t, "workspaces", "list", "--json", "--database-url", url); !strings.Contains(printed, `"name":`+quoted) {
		t.Errorf("programs do not get the name as it is: %s", printed)
	}
	execute(t, url, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE '%', convert_from('\x1b5b324ac29be280ae', 'UTF8'); END $$`)
	execute(t, url, `CREATE TRIGGER refuse BEFORE UPDATE ON workspaces EXECUTE FUNCTION refuse()`)
	try("workspaces suspend "+workspace, exitFailed)

	for path, is := range untried {
		if is {
			t.Errorf("%s: are the texts that it prints visible?", path)
		}
	}
}
