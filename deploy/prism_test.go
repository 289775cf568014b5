package deploy_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// Prism, a proxy that checks requests and answers against an OpenAPI document, finds nothing wrong with a node: neither
// with rounds nor with HEAD and errors. All that the end-to-end tests get is checked against the document, too.
func TestPrismAcceptsANode(t *testing.T) {
	t.Parallel()
	f := startServers(t)
	f.add(t, "LISTEDGE_FRESHNESS_BOUND="+visibleAfter.String()).awaitMode(t, "followed")
	list := newWatchedList(t, f, 30)
	_, document, err := get("http://"+f.nodes[0].public+"/openapi.json", "")
	must(err)
	p := startPrism(t, f, document)
	sync := goKeeper(t, copied{address: p.URL, key: list.key, list: pagesOf5})
	for _, statement := range []string{"", "UPDATE items SET name = 'Ü' WHERE workspace_id = $1 AND created_at < '2019-12-20'",
		"DELETE FROM items WHERE workspace_id = $1 AND created_at > '2019-12-20'"} {
		if statement != "" {
			list.change(t, statement, list.workspace)
		}
		list.awaitVisible()
		if r := sync(t); !reflect.DeepEqual(r.byID(t), list.rows(t)) {
			t.Errorf("%s: the copy is not the list: %+v", statement, r.Problem)
		}
	}
	limited := listedge(t, f.env, "keys", "create", "--workspace", list.workspace, "--rate", "0.001", "--burst", "1")
	narrow := listedge(t, f.env, "keys", "create", "--workspace", list.workspace, "--scopes", "contacts:read")
	etag := p.ask(t, http.MethodGet, "/v1/contacts", limited, http.StatusOK).Get("ETag")
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		p.ask(t, method, "/v1/contacts", limited, http.StatusTooManyRequests)
		p.ask(t, method, "/v1/items?search=1&sort=name", f.key, http.StatusOK, "Accept-Encoding: gzip")
		p.ask(t, method, "/v1/contacts", list.key, http.StatusNotModified, "If-None-Match: "+etag)
		p.ask(t, method, "/v1/items?cursor=AAAA", list.key, http.StatusBadRequest)
		p.ask(t, method, "/v1/items", "none", http.StatusUnauthorized)
		p.ask(t, method, "/v1/items", narrow, http.StatusForbidden)
		p.ask(t, method, "/v1/contacts", list.key, http.StatusPreconditionFailed, `If-Match: "a"`)
		p.ask(t, method, "/v1/items?search=unknown", list.key, http.StatusGatewayTimeout, "Cache-Control: only-if-cached")
		p.ask(t, method, "/v1/items?cursor=changes", list.key, http.StatusOK)
	}
	p.ask(t, http.MethodGet, "/openapi.json", "", http.StatusOK)
	p.ask(t, http.MethodGet, "/docs", "", http.StatusOK)
	for _, wrong := range p.wrong() {
		t.Error(wrong)
	}
	p.ask(t, http.MethodGet, "/v1/items?limit=none", list.key, http.StatusUnprocessableEntity) // by Prism
	if found := strings.Join(p.wrong(), " "); !strings.Contains(found, "limit") {
		t.Errorf("Prism finds %q, and not that limit is wrong: it checks nothing", found)
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
	r := must1(http.NewRequestWithContext(t.Context(), method, address+path, nil))
	if key != "" {
		r.Header.Set("X-API-Key", key)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	within(t, patience, "an answer", func() bool {
		answer = must1(client.Do(r))
		must1(io.Copy(io.Discard, answer.Body))
		answer.Body.Close()
		return answer.StatusCode != http.StatusServiceUnavailable
	})
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
