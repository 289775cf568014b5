package deploy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	listedge_client "listedge/docs/clients/go"
)

// The clients of docs/clients, which keep copies: each by the same tests.

type item = listedge_client.Item

// round is what one call of a client's Round found, and the copy afterwards.
type round struct {
	Rows                []item
	Changed, Removed    []string
	Requests, Unchanged int
	Problem             *struct {
		Status          int
		Code, RequestID string
		RetryAfter      int // seconds
	}
	Cancelled bool
}

// keeper has a client of docs/clients bring its copy up to date once.
type keeper func(t *testing.T) round

// starter starts a client of the service at an address: limit is its rows of a
// request.
type starter func(t *testing.T, address, key string, limit int) keeper

func TestClientsKeepCopies(t *testing.T) {
	t.Parallel()
	f := startServers(t)
	f.add(t, "LISTEDGE_FRESHNESS_BOUND="+visibleAfter.String()).awaitMode(t, "followed")
	for name, build := range map[string]func(t *testing.T) starter{
		"go":         func(*testing.T) starter { return goKeeper },
		"typescript": func(t *testing.T) starter { return typeScriptKeeper(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := build(t)
			t.Run("a round reads what changed", func(t *testing.T) { t.Parallel(); readsWhatChanged(t, f, start) })
			t.Run("a round without a change costs nothing", func(t *testing.T) { t.Parallel(); isFree(t, f, start) })
			t.Run("a walk survives what goes wrong", func(t *testing.T) { t.Parallel(); survives(t, f, start) })
			t.Run("a wrong address ends a walk", func(t *testing.T) { t.Parallel(); noticesWrongAddresses(t, start) })
			t.Run("copies keep in step", func(t *testing.T) { t.Parallel(); keepsInStep(t, f, start) })
		})
	}
}

func goKeeper(t *testing.T, address, key string, limit int) keeper {
	items := listedge_client.NewItems(&listedge_client.Client{URL: address, Key: key})
	items.Limit = limit
	return func(t *testing.T) (r round) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		found, err := items.Round(ctx)
		if problem, ok := errors.AsType[*listedge_client.Problem](err); ok {
			said, _ := json.Marshal(map[string]any{"problem": map[string]any{"status": problem.Status, "code": problem.Code, "requestId": problem.RequestID,
				"retryAfter": problem.RetryAfter / time.Second}})
			err = json.Unmarshal(said, &r)
		}
		must(err)
		for _, row := range items.Rows() {
			r.Rows = append(r.Rows, *row)
		}
		for _, row := range found.Changed {
			r.Changed = append(r.Changed, row.Id)
		}
		r.Removed, r.Requests, r.Unchanged = found.Removed, found.Requests, found.Unchanged
		return r
	}
}

// typeScriptKeeper compiles the client as strictly as a project that tsc --init makes.
func typeScriptKeeper(t *testing.T, env ...string) starter {
	dir := t.TempDir()
	for _, folder := range []string{"clients", "../docs/clients/typescript"} {
		must(os.CopyFS(dir, os.DirFS(folder)))
	}
	program := compileTypeScript(t, dir, "copy", "--target", "esnext", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes",
		"--noUncheckedSideEffectImports", "--verbatimModuleSyntax", "--isolatedModules", "--moduleDetection", "force")
	return func(t *testing.T, address, key string, limit int) keeper {
		cmd := exec.Command(program.Path, program.Args[1:]...)
		cmd.Env = append(append(os.Environ(), "NODE="+address, "KEY="+key, fmt.Sprint("LIMIT=", limit)), env...)
		cmd.Stderr = os.Stderr
		in := must1(cmd.StdinPipe())
		out := must1(cmd.StdoutPipe())
		must(cmd.Start())
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		answers := bufio.NewReader(out)
		return func(t *testing.T) (r round) {
			t.Helper()
			must1(io.WriteString(in, "\n"))
			line := must1(answers.ReadBytes('\n'))
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			return r
		}
	}
}

// byID fails the test if a row is there twice.
func (r round) byID(t *testing.T) map[string]item {
	t.Helper()
	rows := map[string]item{}
	for _, row := range r.Rows {
		if _, twice := rows[row.Id]; twice {
			t.Errorf("%s is in the copy twice", row.Id)
		}
		rows[row.Id] = row
	}
	return rows
}

// The types of the clients are generated from the service's description.
func TestTypesOfTheClients(t *testing.T) {
	t.Parallel()
	document := must1(filepath.Abs("../edge/openapi.json"))
	for file, generate := range map[string]func(t *testing.T, dir string){
		"go/types.go": func(t *testing.T, dir string) {
			generator := string(run(t, exec.Command("go", "tool", "-n", "oapi-codegen")))
			cmd := exec.Command(generator[:len(generator)-1], "-config", "oapi-codegen.yaml", document)
			cmd.Dir = dir
			run(t, cmd)
		},
		"typescript/openapi.d.ts": func(t *testing.T, dir string) {
			runModule(t, dir, "openapi-typescript", document, "-o", "openapi.d.ts")
		},
	} {
		t.Run(file, func(t *testing.T) {
			checkedIn := filepath.Join("../docs/clients", file)
			dir := t.TempDir()
			must(os.CopyFS(dir, os.DirFS(filepath.Dir(checkedIn))))
			generate(t, dir)
			want := must1(os.ReadFile(filepath.Join(dir, filepath.Base(file))))
			if *update {
				must(os.WriteFile(checkedIn, want, 0o644))
				return
			}
			if got, err := os.ReadFile(checkedIn); err != nil || string(got) != string(want) {
				t.Errorf("%s is not what edge/openapi.json makes (%v); run with -update", checkedIn, err)
			}
		})
	}
}

// What a round costs depends on what changed, and not on where.
func readsWhatChanged(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 60)
	between := startBetween(t, f)
	walk := start(t, between.URL+"/", list.key, 5)
	for _, c := range []struct {
		what, statement           string
		requests, read            int // pages, and those of them that are sent again
		changed, removed, present int // rows
	}{
		{"a first walk", "", 12, 12, 60, 0, 60},
		{"nothing", "", 12, 0, 0, 0, 60},
		{"a row deep in the list", "UPDATE items SET name = 'Other' WHERE id = ANY(($1::uuid[])[33:33])", 12, 1, 1, 0, 60},
		{"a row comes in at the head", "INSERT INTO items (workspace_id, name) SELECT workspace_id, 'New' FROM items WHERE id = ANY(($1::uuid[])[1:1])", 13, 2, 1,
			0, 61},
		{"another: it joins the small page", "INSERT INTO items (workspace_id, name) SELECT workspace_id, 'New' FROM items WHERE id = ANY(($1::uuid[])[1:1])", 13,
			2, 1, 0, 62},
		{"a row leaves: it and the row that takes its place", "DELETE FROM items WHERE id = ANY(($1::uuid[])[33:33])", 13, 2, 0, 1, 61},
		{"nothing again", "", 13, 0, 0, 0, 61},
		{"rows become old: pages at the end are filled", "UPDATE items SET created_at = '1990-01-01' WHERE id = ANY(($1::uuid[])[20:25])", 14, 5, 6, 0, 61},
		{"rows so large that pages end before their limit",
			"UPDATE items SET (name, sku, description, unit) = (SELECT t, t, t, t FROM repeat(chr(1), 65536) t) WHERE id = ANY(($1::uuid[])[45:52])", 16, 5, 8, 0, 61},
		{"nothing once more", "", 16, 0, 0, 0, 61},
		{"all leave but one", "UPDATE items SET active = false WHERE id <> ALL(($1::uuid[])[25:25]) AND workspace_id = " +
			"(SELECT workspace_id FROM items WHERE id = ANY(($1::uuid[])[25:25]))", 1, 1, 0, 60, 1},
		{"none", "UPDATE items SET active = false WHERE id = ANY(($1::uuid[])[25:25])", 1, 1, 0, 1, 0},
		{"still none", "", 1, 0, 0, 0, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.statement != "" {
				list.change(t, c.statement, list.seeded)
				list.awaitVisible()
			}
			r := walk(t)
			if got := len(r.byID(t)); got != c.present {
				t.Errorf("%d rows are in the copy, want %d", got, c.present)
			}
			if !reflect.DeepEqual(r.byID(t), list.rows(t)) {
				t.Error("the copy is not the list")
			}
			if len(r.Changed) != c.changed || len(r.Removed) != c.removed {
				t.Errorf("%d rows changed and %d were removed, want %d and %d", len(r.Changed), len(r.Removed), c.changed, c.removed)
			}
			if read := r.Requests - r.Unchanged; r.Requests != c.requests || read != c.read {
				t.Errorf("%d requests, %d of them for pages that changed, want %d and %d", r.Requests, read, c.requests, c.read)
			}
		})
	}
}

// isFree: a round that finds nothing new is answered from memory, and takes no token. (A page is read from Postgres
// once more while the node lacks a proof, as it may on a busy machine.)
func isFree(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 60)
	key := listedge(t, f.env, "keys", "create", "--workspace", list.workspace, "--rate", "0.001", "--burst", "1000")
	between := startBetween(t, f)
	walk := start(t, between.URL, key, 5)
	list.awaitVisible()
	walk(t)
	left := between.answers()[11].Get("X-RateLimit-Remaining")
	within(t, patience, "a round from memory alone", func() bool {
		r, free := walk(t), true
		for i, header := range between.answers() {
			status, now := header.Get("Cache-Status"), header.Get("X-RateLimit-Remaining")
			if strings.Contains(status, "bypass") {
				t.Fatalf("page %d of the round: %s, and %s tokens of %s", i, status, now, left)
			}
			free = free && strings.HasPrefix(status, "listedge; hit; detail=memory") && now == left
			left = now
		}
		return free && r.Unchanged == 12
	})
}

// between is a server between a client and a node. It notes the requests and
// may answer them itself.
type between struct {
	*httptest.Server

	mu       sync.Mutex // guards what follows
	asked    []asked
	answered []http.Header // of the node
	// answer is called before a request is passed on, and may answer it.
	answer func(n int, w http.ResponseWriter) (answered bool)
	cut    func(n int) bool // whether the node's answer is cut off
}

// asked is a request that a client has sent.
type asked struct {
	target string
	at     time.Time
}

func startBetween(t *testing.T, f *fleet) *between {
	t.Helper()
	b := new(between)
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			t.Errorf("a client does without gzip: %q", r.Header.Get("Accept-Encoding"))
		}
		b.mu.Lock()
		n, answer, cut := len(b.asked), b.answer, b.cut
		b.asked = append(b.asked, asked{r.URL.RequestURI(), time.Now()})
		b.mu.Unlock()
		if answer != nil && answer(n, w) {
			return
		}
		forward, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+f.nodes[0].public+r.URL.RequestURI(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		forward.Header = r.Header.Clone()
		response, body, err := inTime(forward)
		if err != nil {
			t.Error(err)
			return
		}
		b.mu.Lock()
		b.answered = append(b.answered, response.Header)
		b.mu.Unlock()
		for name, values := range response.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(response.StatusCode)
		if cut != nil && cut(n) {
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(b.Close)
	return b
}

// requests returns the requests since its last call.
func (b *between) requests() []asked {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests := b.asked
	b.asked = nil
	return requests
}

// answers returns the header of each answer of the node since its last call.
func (b *between) answers() []http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	answers := b.answered
	b.answered = nil
	return answers
}

// refuse answers as the service does.
func refuse(w http.ResponseWriter, status int, code, retryAfter string) bool {
	w.Header().Set("Retry-After", retryAfter)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"error":{"code":"`+code+`","message":"not now"},"requestId":"r-1"}`)
	return true
}

// survives: a page that fails is asked for again, as soon as the service wants it.
func survives(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 30)
	between := startBetween(t, f)
	walk := start(t, between.URL, list.key, 5)
	list.awaitVisible()
	between.answer = func(n int, w http.ResponseWriter) bool {
		switch n {
		case 1:
			return refuse(w, http.StatusTooManyRequests, "RATE_LIMITED", "1")
		case 3:
			return refuse(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "1")
		case 7:
			w.WriteHeader(http.StatusBadGateway) // something in front of the service
			return true
		case 9:
			return refuse(w, http.StatusTooManyRequests, "PLAN_LIMIT_REACHED", "1000000")
		}
		return false
	}
	between.cut = func(n int) bool { return n == 5 }

	stopped := walk(t)
	if p := stopped.Problem; p == nil || p.Status != 429 || p.Code != "PLAN_LIMIT_REACHED" || p.RetryAfter != 1000000 || p.RequestID != "r-1" {
		t.Errorf("a used up quota: %+v", p)
	}
	if len(stopped.Rows) != 0 {
		t.Errorf("%d rows are in the copy before a round has ended", len(stopped.Rows))
	}
	done := walk(t)
	if !reflect.DeepEqual(done.byID(t), list.rows(t)) {
		t.Errorf("the copy is not the list: %d rows", len(done.Rows))
	}
	requests := between.requests()
	if len(requests) != 11 { // six pages, and five that went wrong
		t.Fatalf("%d requests: %v", len(requests), requests)
	}
	for i, r := range requests[1:] {
		again, wrong := r.target == requests[i].target, map[int]bool{1: true, 3: true, 5: true, 7: true, 9: true}[i]
		if again != wrong {
			t.Errorf("request %d is for %s, and the one before for %s", i+1, r.target, requests[i].target)
		}
		if waited := r.at.Sub(requests[i].at); (i == 1 || i == 3) && waited < 900*time.Millisecond {
			t.Errorf("Retry-After says 1 s, and the client waited %s", waited)
		}
	}

	between.cut = nil

	// An error that waiting cannot cure ends the call at once. The next call begins anew.
	between.answer = func(n int, w http.ResponseWriter) bool {
		return n == 1 && refuse(w, http.StatusBadRequest, "VALIDATION_ERROR", "")
	}
	if p := walk(t).Problem; p == nil || p.Status != 400 || p.Code != "VALIDATION_ERROR" {
		t.Errorf("a refused request: %+v", p)
	}
	if got := len(between.requests()); got != 2 {
		t.Errorf("%d requests, of which the second was refused", got)
	}
	between.answer = nil
	if r := walk(t); r.Requests != 6 || r.Unchanged != 6 || len(between.requests()) != 6 {
		t.Errorf("the round after it: %d requests, %d unchanged", r.Requests, r.Unchanged)
	}

	// A row that is read twice, because it moved meanwhile, is as it was read last.
	between.answer = func(n int, _ http.ResponseWriter) bool {
		if n == 3 {
			list.change(t, "UPDATE items SET name = 'moved', created_at = '1990-01-01' WHERE id = $1", list.seeded[0])
			list.awaitVisible()
		}
		return false
	}
	if row := walk(t).byID(t)[list.seeded[0]]; row.Name != "moved" {
		t.Errorf("a row that moved is in the copy as %q", row.Name)
	}
	between.answer = nil
	between.requests()

	if p := start(t, between.URL, "none", 100)(t).Problem; p == nil || p.Status != 401 || p.Code != "UNAUTHORIZED" {
		t.Errorf("a wrong key: %+v", p)
	}
	if got := len(between.requests()); got != 1 {
		t.Errorf("a wrong key is sent %d times", got)
	}
}

// noticesWrongAddresses: a client does not ask again where asking again cannot help, and takes
// its key nowhere else.
func noticesWrongAddresses(t *testing.T, start starter) {
	var asked atomic.Int64
	listens := func(secure bool, answer http.HandlerFunc) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answer(w, r)
		}))
		t.Cleanup(s.Close)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { asked.Add(1); return nil, nil }}
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		return s.URL
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	html := listens(false, text("<!DOCTYPE html>"))
	for _, c := range []struct {
		name, address string
		status        int
		times         int64 // it is asked
	}{
		{"no scheme", "localhost:8080", 0, 0},
		{"no host", "https://", 0, 0},
		{"a redirect to a page of HTML", listens(false, http.RedirectHandler(html, http.StatusFound).ServeHTTP), http.StatusFound, 1},
		{"a page of HTML", html, http.StatusOK, 1},
		{"another service", listens(false, text("{}")), http.StatusOK, 1},
		{"an unknown certificate", listens(true, text("{}")), 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked.Store(0)
			if p := start(t, c.address, "a key", 5)(t).Problem; p == nil || p.Status != c.status {
				t.Errorf("%+v, want status %d", p, c.status)
			}
			if n := asked.Load(); n != c.times {
				t.Errorf("it was asked %d times, want %d", n, c.times)
			}
		})
	}
}

// A round can be cancelled while it waits to ask again.
func TestTypeScriptCanBeCancelled(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "20")
	}))
	defer busy.Close()
	if r := typeScriptKeeper(t, "CANCEL=3000")(t, busy.URL, "a key", 5)(t); !r.Cancelled {
		t.Errorf("%+v", r)
	}
}
