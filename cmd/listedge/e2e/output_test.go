package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode"
)

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
	url := database(t)
	t.Setenv("LISTEDGE_DATABASE_URL", url)
	for _, sql := range []string{ // the checks of the schema: tables that others made lack them
		`DO $$ DECLARE k record; BEGIN
			FOR k IN SELECT conname, conrelid::regclass AS owner FROM pg_constraint WHERE contype = 'c' AND conrelid IN ('workspaces'::regclass, 'api_keys'::regclass) LOOP
				EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', k.owner, k.conname);
			END LOOP;
		END $$`,
		`CREATE TABLE odd AS SELECT gen_random_uuid() AS workspace, gen_random_uuid() AS key, at::timestamptz, rate::float8
			FROM (VALUES ('infinity', 'NaN'), ('-infinity', 'Infinity'), ('4713-01-01 BC', '-1'), ('294276-12-31', '1e308')) v (at, rate)`,
		`INSERT INTO workspaces SELECT workspace, $1, at, rate, -2147483648, at, 9223372036854775807, $1 FROM odd`,
		`INSERT INTO api_keys SELECT key, workspace, $1, sha256(key::text::bytea), $1, ARRAY[['items:read', NULL], [$1, '']], rate, 2147483647,
			nullif(at, '-infinity'), NULL, at FROM odd WHERE at > '1970-01-01Z' OR at = '-infinity'`,
		`INSERT INTO key_usage SELECT workspace, date_trunc('hour', now()), key, 1, 1, 1, 1, 1, 1 FROM odd`,
		`INSERT INTO audit_log (actor, action, workspace_id, key_id, details) SELECT $1::text, $1, workspace, key, jsonb_build_object($1::text, $1::text) FROM odd`,
	} {
		if strings.Contains(sql, "$1") {
			execute(t, url, sql, obeyed)
		} else {
			execute(t, url, sql)
		}
	}
	conn := connect(t, url)
	var ids [][2]string // of the workspace and of its key, if it has one
	rows := must1(conn.Query(t.Context(), `SELECT workspace::text, coalesce(api_keys.id::text, '') FROM odd LEFT JOIN api_keys ON workspace_id = workspace`))
	for rows.Next() {
		var id [2]string
		must(rows.Scan(&id[0], &id[1]))
		ids = append(ids, id)
	}
	must(rows.Err())
	quoted := string(must1(json.Marshal(obeyed)))
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/explain":
			fmt.Fprintf(w, `[{"agent":%s,"more":{"list":[%[1]s]}}]`, quoted)
		case "/readyz":
			fmt.Fprintf(w, `{"checks":{%s:%[1]s}}`, quoted)
		case "/state":
			fmt.Fprintf(w, `{"self":{"name":%s,"version":%[1]s,"ready":false},"checks":[{"name":%[1]s,"checked":true,"why":%[1]s,"remedy":%[1]s}],"settings":{%[1]s:%[1]s}}`, quoted)
		}
	}))
	defer node.Close()

	untried := commandsWith(t, "--json")
	try := func(line string, codes ...int) {
		forms := []string{""}
		for path := range untried {
			if strings.HasPrefix(line+" ", path+" ") {
				forms, untried[path] = append(forms, " --json"), false
			}
		}
		for _, form := range forms {
			p := start(t, strings.Fields(line+form)...)
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
	for _, id := range ids {
		workspace, key := id[0], id[1]
		try("keys list --workspace "+workspace, exitFine)
		try("usage --workspace "+workspace, exitFine)
		if key != "" {
			try("keys show "+key, exitFine)
			try("keys update "+key+" --rate 3", exitFine, exitFailed) // an expired key
			try("keys rotate "+key, exitFine, exitFailed)
			try("keys revoke "+key, exitFine)
		}
		try("workspaces update "+workspace+" --rate 3", exitFine)
		try("workspaces suspend "+workspace, exitFine)
		try("workspaces resume "+workspace, exitFine)
	}
	try("keys create --workspace "+ids[0][0], exitFine)
	try("workspaces create --name W", exitFine)
	try("workspaces list", exitFine)
	try("audit", exitFine)
	try("migrate status", exitFine)
	try("explain x --node "+node.URL, exitFine)
	try("ready --node "+node.URL, exitFailed)
	try("doctor --node "+node.URL, exitFailed)
	try("serve --print-config --node-id \u202e\u2066", exitFine)
	try("keys brew\x1b[2J", exitUsage)
	if printed := command(t, "workspaces", "list", "--json"); !strings.Contains(printed, `"name":`+quoted) {
		t.Errorf("programs do not get the name as it is: %s", printed)
	}
	execute(t, url, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE '%', convert_from('\x1b5b324ac29be280ae', 'UTF8'); END $$`)
	execute(t, url, `CREATE TRIGGER refuse BEFORE UPDATE ON workspaces EXECUTE FUNCTION refuse()`)
	try("workspaces suspend "+ids[0][0], exitFailed)

	for path, is := range untried {
		if is {
			t.Errorf("%s: are the texts that it prints visible?", path)
		}
	}
}
