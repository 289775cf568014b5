package deploy_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	listedge_client "listedge/docs/clients/go"
)

// A table that is not ours, whose keys are any text, and its list.
const (
	notesTable = `CREATE TABLE notes (id text, workspace_id uuid, body jsonb, hidden bool NOT NULL, at timestamptz NOT NULL,
		PRIMARY KEY (workspace_id, id))`
	notesList = `
  notes:
    table: notes
    tenant: workspace_id
    key: id
    live: not hidden
    fields: {id: , body: , at: }
    orders: {at: {descending: true}}
`
)

type note struct {
	ID   string
	Body map[string]any
}

// noteKeys are keys that a header cannot have as they are, or where they look like something else.
var noteKeys = []string{"plain", "é%", `"quoted"`, `back\slash`, "a, b", "none", "after=", "日本", "tab\t", " "}

// Prism, a proxy that checks requests and answers against an OpenAPI document, finds nothing wrong with a node: neither
// with the rounds of clients nor with HEAD and errors.
func TestPrismAcceptsANode(t *testing.T) {
	t.Parallel()
	f := startServers(t)
	psql(t, f, notesTable)
	builtIn := string(must1(os.ReadFile("../internal/list/builtin.yaml")))
	f.env = append(f.env, "LISTEDGE_LISTS="+write(t, "lists.yaml", builtIn+notesList))
	listedge(t, f.env, "lists", "plan", "--apply")
	f.add(t, "LISTEDGE_FRESHNESS_BOUND="+visibleAfter.String()).awaitMode(t, "followed")
	list := newWatchedList(t, f, 30)
	list.change(t, `INSERT INTO notes SELECT key, $1, '{"text": "ü"}', false, timestamptz '2020-01-01' - n * interval '1 day'
		FROM unnest($2::text[]) WITH ORDINALITY AS keys (key, n)`, list.workspace, noteKeys)
	_, document, err := get("http://"+f.nodes[0].public+"/openapi.json", "")
	must(err)
	p := startPrism(t, f, document)
	t.Run("rounds", func(t *testing.T) { p.passesRounds(t, f, list) })
	t.Run("answers", func(t *testing.T) {
		limited := listedge(t, f.env, "keys", "create", "--workspace", list.workspace, "--rate", "0.001", "--burst", "1")
		etag := p.ask(t, http.MethodGet, "/v1/contacts", limited, http.StatusOK).Get("ETag")
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			p.ask(t, method, "/v1/contacts", limited, http.StatusTooManyRequests)
			p.ask(t, method, "/v1/items?search=1&sort=name", f.key, http.StatusOK, "Accept-Encoding: gzip")
			p.ask(t, method, "/v1/contacts", list.key, http.StatusNotModified, "If-None-Match: "+etag)
			p.ask(t, method, "/v1/items?cursor=AAAA", list.key, http.StatusBadRequest)
			p.ask(t, method, "/v1/items", "none", http.StatusUnauthorized)
			p.ask(t, method, "/v1/notes", f.key, http.StatusForbidden) // the list is younger than the key
			p.ask(t, method, "/v1/contacts", list.key, http.StatusPreconditionFailed, `If-Match: "a"`)
			p.ask(t, method, "/v1/items?search=unknown", list.key, http.StatusGatewayTimeout, "Cache-Control: only-if-cached")
			p.ask(t, method, "/v1/items?cursor=changes", list.key, http.StatusOK)
		}
		p.ask(t, http.MethodGet, "/openapi.json", "", http.StatusOK)
		p.ask(t, http.MethodGet, "/docs", "", http.StatusOK)
	})
	for _, wrong := range p.wrong() {
		t.Error(wrong)
	}
	t.Run("wrong documents", func(t *testing.T) { noticesWrongDocuments(t, f, list, document) })
	t.Run("while Postgres hangs", func(t *testing.T) {
		must(f.postgres.Freeze())
		defer func() { must(f.postgres.Thaw()) }()
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			within(t, patience, "a round is refused", func() bool {
				return try(t, p.URL, method, "/v1/items?cursor=changes", list.key).StatusCode == http.StatusServiceUnavailable
			})
		}
		for _, wrong := range p.wrong() {
			t.Error(wrong)
		}
	})
}

// passesRounds: the clients' copies of two lists are these lists after each round.
func (p *prism) passesRounds(t *testing.T, f *fleet, list *watchedList) {
	items := copied{address: p.URL, key: list.key, list: pagesOf5}
	clients := map[string]keeper{"Go": goKeeper(t, items), "TypeScript": typeScriptKeeper(t)(t, items)}
	notes := listedge_client.NewMemory(func(n note) string { return n.ID })
	for _, statement := range []string{ // $2 are the keys of notes
		"", // the first round
		"", // nothing has changed
		"UPDATE items SET name = 'Ü' WHERE workspace_id = $1 AND created_at < '2019-12-20' AND $2::text[] IS NOT NULL",
		"DELETE FROM items WHERE workspace_id = $1 AND created_at > '2019-12-20' AND $2::text[] IS NOT NULL",
		`UPDATE notes SET body = '{"n": 1.50}' WHERE workspace_id = $1 AND id = ANY($2)`,
		"UPDATE notes SET hidden = true WHERE workspace_id = $1 AND id = ANY(($2::text[])[1:5])",
		"DELETE FROM notes WHERE workspace_id = $1 AND id = ANY(($2::text[])[6:9])",
		"UPDATE notes SET hidden = false WHERE workspace_id = $1 AND id = ANY($2)",
		"purge", // the whole list again
	} {
		if statement == "purge" {
			listedge(t, f.env, "purge", "--workspace", list.workspace)
		} else if statement != "" && len(list.change(t, statement, list.workspace, noteKeys)) == 0 {
			t.Fatalf("%s changes nothing", statement)
		}
		list.awaitVisible()
		for language, sync := range clients {
			if r := sync(t); !reflect.DeepEqual(r.byID(t), list.rows(t)) {
				t.Fatalf("%s: the copy in %s is not the list: %+v %q", statement, language, r.Problem, p.wrong())
			}
		}
		if err := listedge_client.Sync(t.Context(), &listedge_client.Client{URL: p.URL, Key: list.key}, "/v1/notes?limit=1", notes); err != nil {
			t.Fatal(err, p.wrong())
		}
		rows, copied := map[string]map[string]any{}, map[string]map[string]any{}
		var n note
		found := must1(list.db.Query(t.Context(), "SELECT id, body FROM notes WHERE workspace_id = $1 AND NOT hidden", list.workspace))
		must1(pgx.ForEachRow(found, []any{&n.ID, &n.Body}, func() error { rows[n.ID] = maps.Clone(n.Body); return nil }))
		for id, row := range notes.Rows {
			copied[id] = row.Row.Body
		}
		if !reflect.DeepEqual(copied, rows) {
			t.Errorf("%s: the notes are %v, and the copy has %v", statement, rows, copied)
		}
	}
}

// noticesWrongDocuments: Prism says what is wrong if the document does not describe the node.
func noticesWrongDocuments(t *testing.T, f *fleet, list *watchedList, document []byte) {
	var d map[string]any
	must(json.Unmarshal(document, &d))
	at := func(path ...string) map[string]any {
		found := d
		for _, name := range path {
			found = found[name].(map[string]any)
		}
		return found
	}
	at("components", "headers", "ListCovers", "schema")["pattern"] = "^none$"
	at("components", "headers", "ListGone", "schema")["pattern"] = `^"[^"]*"$`
	at("components", "headers", "ETag")["required"] = true
	at("components", "schemas", "Item", "properties", "usage30")["type"] = "boolean"
	delete(at("components", "schemas", "Contact", "properties"), "tin")
	delete(at("paths", "/v1/items", "get", "responses"), "304")
	p := startPrism(t, f, must1(json.Marshal(d)))

	node := "http://" + f.nodes[0].public
	began := send(t, node, http.MethodGet, "/v1/notes?cursor=changes&limit=100", list.key).Header
	cursor := regexp.MustCompile("cursor=([^&>]+)").FindStringSubmatch(began.Get("Link"))[1]
	if len(list.change(t, "UPDATE notes SET hidden = true WHERE workspace_id = $1 AND id = 'é%'", list.workspace)) != 1 {
		t.Fatal("there is no note to be hidden")
	}
	list.awaitVisible()
	etag := send(t, node, http.MethodGet, "/v1/items?limit=5", list.key).Header.Get("ETag")
	for _, c := range []struct{ path, key, wrong string }{
		{"/v1/items?cursor=changes&limit=5", list.key, "list-covers"},
		{"/v1/contacts?cursor=changes", f.key, "etag"},
		{"/v1/notes?limit=100&cursor=" + cursor, list.key, "list-gone"},
		{"/v1/items?limit=4", list.key, "usage30"},
		{"/v1/contacts?limit=4", f.key, "tin"},
		{"/v1/items?limit=5", list.key, "status code"},
	} {
		send(t, p.URL, http.MethodGet, c.path, c.key, "If-None-Match: "+etag)
		if found := strings.Join(p.wrong(), " "); !strings.Contains(found, c.wrong) {
			t.Errorf("%s: Prism finds %q, and not that %s is wrong", c.path, found, c.wrong)
		}
	}
}

// prism is a server before Prism, and notes what Prism finds wrong.
type prism struct {
	*httptest.Server

	mu    sync.Mutex
	found []string
}

// startPrism starts one with that document, before the first node.
func startPrism(t *testing.T, f *fleet, document []byte) *prism {
	t.Helper()
	// Prism reads the body of an answer to HEAD, which has none, if its header says that it is JSON.
	node := httputil.NewSingleHostReverseProxy(must1(url.Parse("http://" + f.nodes[0].public)))
	node.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodHead {
			r.Header.Del("Content-Type")
		}
		return nil
	}
	behind := httptest.NewServer(node)
	t.Cleanup(behind.Close)
	port, p := freePort(), new(prism)
	startProgram(t, exec.Command(tool("node"), filepath.Join(nodeModules(t), ".bin", "prism"), "proxy", write(t, "openapi.json", string(document)),
		behind.URL, "--errors", "--port", port))
	address := "http://127.0.0.1:" + port
	within(t, patience, "Prism listens", func() bool { _, _, err := get(address, ""); return err == nil })
	before := httputil.NewSingleHostReverseProxy(must1(url.Parse(address)))
	before.ModifyResponse = p.note
	p.Server = httptest.NewServer(before)
	t.Cleanup(p.Close)
	return p
}

// note keeps what Prism says against an answer, which it may refuse for that.
func (p *prism) note(r *http.Response) error {
	said := r.Header.Get("Sl-Violations")
	if r.Header.Get("Content-Type") == "application/problem+json" {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		said += string(body)
	}
	if said != "" {
		p.mu.Lock()
		p.found = append(p.found, r.Request.Method+" "+r.Request.URL.RequestURI()+": "+said)
		p.mu.Unlock()
	}
	return nil
}

// wrong returns what Prism has found wrong since the last call.
func (p *prism) wrong() (found []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, p.found = p.found, nil
	return found
}

// send sends a request until the answer is not 503, as it may be for a while on a busy machine.
func send(t *testing.T, address, method, path, key string, header ...string) (answer *http.Response) {
	t.Helper()
	within(t, patience, "an answer", func() bool {
		answer = try(t, address, method, path, key, header...)
		return answer.StatusCode != http.StatusServiceUnavailable
	})
	return answer
}

func try(t *testing.T, address, method, path, key string, header ...string) *http.Response {
	t.Helper()
	r := must1(http.NewRequestWithContext(t.Context(), method, address+path, nil))
	if key != "" {
		r.Header.Set("X-API-Key", key)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	answer := must1(client.Do(r))
	must1(io.Copy(io.Discard, answer.Body))
	answer.Body.Close()
	return answer
}

// ask sends a request that is answered with that status, and returns the header.
func (p *prism) ask(t *testing.T, method, path, key string, status int, header ...string) http.Header {
	t.Helper()
	answer := send(t, p.URL, method, path, key, header...)
	if answer.StatusCode != status {
		t.Errorf("%s %s is answered with %s, want %d", method, path, answer.Status, status)
	}
	return answer.Header
}
