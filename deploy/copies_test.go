package deploy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	listedge_client "listedge/docs/clients/go"
)

// The clients of docs/clients, which keep copies: each by the same tests.

// item is a row of the list, with all that clients see of it.
type item struct {
	Id, Name, Type, CostPrice, AvgCost, SellingPrice, StockOnHand       string
	Sku, Description, Unit, ImagePath, PreferredContactId, ReorderPoint *string
	Taxable, TrackStock                                                 bool
	Usage30                                                             float64
	CreatedAt                                                           time.Time
}

// round is the copy after one call of a client's Sync, and how that ended.
type round struct {
	Rows    []item
	Problem *struct {
		Status                   int
		Code, Message, RequestID string
		RetryAfter               int // seconds
	}
	Cancelled, Killed bool
}

// copied says what a client keeps a copy of, and where.
type copied struct {
	address, key, list string
	file               string // "" = in memory
	kill               bool   // the client ends once it has stored a page
}

// keeper has a client of docs/clients bring its copy up to date once.
type keeper func(t *testing.T) round

// starter starts a client.
type starter func(t *testing.T, c copied) keeper

// pagesOf5 makes many pages of few rows.
const pagesOf5 = "/v1/items?limit=5"

func TestClientsKeepCopies(t *testing.T) {
	t.Parallel()
	f := startServers(t)
	f.add(t, "LISTEDGE_FRESHNESS_BOUND="+visibleAfter.String()).awaitMode(t, "followed")
	eachClient(t, func(t *testing.T, start starter) {
		t.Run("a round costs what changed", func(t *testing.T) { t.Parallel(); costsWhatChanged(t, f, start) })
		t.Run("a round survives what goes wrong", func(t *testing.T) { t.Parallel(); survives(t, f, start) })
		t.Run("a client is killed after each page", func(t *testing.T) { t.Parallel(); resumes(t, f, start) })
	})
}

// What needs no service.
func TestClientsReadHeaders(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, start starter) {
		t.Run("headers", func(t *testing.T) { t.Parallel(); readsHeaders(t, start) })
		t.Run("a wrong address ends a round", func(t *testing.T) { t.Parallel(); noticesWrongAddresses(t, start) })
	})
}

func eachClient(t *testing.T, test func(t *testing.T, start starter)) {
	t.Run("go", func(t *testing.T) { t.Parallel(); test(t, goKeeper) })
	t.Run("typescript", func(t *testing.T) { t.Parallel(); test(t, typeScriptKeeper(t)) })
}

// stored is a copy in a file.
type stored struct {
	*listedge_client.Memory[item]
	copied
}

var errKilled = errors.New("killed")

func (s stored) Apply(ctx context.Context, page listedge_client.Page[item]) error {
	if err := s.Memory.Apply(ctx, page); err != nil || s.file == "" {
		return err
	}
	must(os.WriteFile(s.file+".new", must1(json.Marshal(s.Memory)), 0o644))
	must(os.Rename(s.file+".new", s.file))
	if s.kill {
		return errKilled
	}
	return nil
}

func goKeeper(t *testing.T, c copied) keeper {
	store := stored{listedge_client.NewMemory(func(i item) string { return i.Id }), c}
	if text, err := os.ReadFile(c.file); err == nil {
		must(json.Unmarshal(text, store.Memory))
	}
	return func(t *testing.T) (r round) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := listedge_client.Sync(ctx, &listedge_client.Client{URL: c.address, Key: c.key}, c.list, store)
		if problem, ok := errors.AsType[*listedge_client.Problem](err); ok {
			said, _ := json.Marshal(map[string]any{"problem": map[string]any{"status": problem.Status, "code": problem.Code, "message": problem.Message,
				"requestId": problem.RequestID, "retryAfter": problem.RetryAfter / time.Second}})
			err = json.Unmarshal(said, &r)
		}
		if r.Killed = err == errKilled; !r.Killed {
			must(err)
		}
		for _, row := range store.Rows {
			r.Rows = append(r.Rows, row.Row)
		}
		return r
	}
}

var (
	compiled     sync.Once
	compiledCopy *exec.Cmd // nil = it does not compile
)

// typeScriptKeeper compiles the client, once for all tests, as strictly as a project that tsc --init makes.
func typeScriptKeeper(t *testing.T, env ...string) starter {
	compiled.Do(func() {
		dir := must1(os.MkdirTemp("", "listedge-copy-"))
		removed = append(removed, dir)
		for _, folder := range []string{"clients", "../docs/clients/typescript"} {
			must(os.CopyFS(dir, os.DirFS(folder)))
		}
		compiledCopy = compileTypeScript(t, dir, "copy", "--target", "esnext", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes",
			"--noUncheckedSideEffectImports", "--verbatimModuleSyntax", "--isolatedModules", "--moduleDetection", "force")
	})
	program := compiledCopy
	return func(t *testing.T, c copied) keeper {
		cmd := exec.Command(program.Path, program.Args[1:]...)
		cmd.Env = append(append(os.Environ(), "NODE="+c.address, "KEY="+c.key, "LIST="+c.list, "FILE="+c.file), env...)
		if c.kill {
			cmd.Env = append(cmd.Env, "KILL=1")
		}
		cmd.Stderr = os.Stderr
		in := must1(cmd.StdinPipe())
		out := must1(cmd.StdoutPipe())
		must(cmd.Start())
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil && !c.kill {
				t.Error(err)
			}
		})
		answers := bufio.NewReader(out)
		return func(t *testing.T) (r round) {
			t.Helper()
			must1(io.WriteString(in, "\n"))
			line, err := answers.ReadBytes('\n')
			if c.kill && err == io.EOF {
				return round{Killed: true}
			}
			must(err)
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

// The types of the client in TypeScript are generated from the service's description.
func TestTypesOfTheClients(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1)
	_, text, err := get("http://"+f.nodes[0].public+"/openapi.json", "")
	must(err)
	document, checkedIn, dir := filepath.Join(t.TempDir(), "openapi.json"), "../docs/clients/typescript/openapi.d.ts", t.TempDir()
	must(os.WriteFile(document, text, 0o644))
	must(os.CopyFS(dir, os.DirFS(filepath.Dir(checkedIn))))
	runModule(t, dir, "openapi-typescript", document, "-o", "openapi.d.ts")
	want := must1(os.ReadFile(filepath.Join(dir, filepath.Base(checkedIn))))
	if *update {
		must(os.WriteFile(checkedIn, want, 0o644))
		return
	}
	if got, err := os.ReadFile(checkedIn); err != nil || string(got) != string(want) {
		t.Errorf("%s is not what /openapi.json makes (%v); run with -update", checkedIn, err)
	}
}

// What a round costs depends on what changed, and not on how long the list is.
func costsWhatChanged(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 60)
	between := startBetween(t, f)
	sync := start(t, copied{address: between.URL + "/", key: list.key, list: pagesOf5})
	const ofList = "workspace_id = (SELECT workspace_id FROM items WHERE id = ANY(($1::uuid[])[25:25]))"
	for _, c := range []struct {
		what, statement string
		requests        int // at most
		kind            string
		present         int // rows
	}{
		{"a first round", "", 12, "", 60},
		{"nothing", "", 1, "none", 60},
		{"a row deep in the list", "UPDATE items SET name = 'Other' WHERE id = ANY(($1::uuid[])[33:33])", 1, "none", 60},
		{"rows anywhere", "UPDATE items SET name = 'Third' WHERE id IN (($1::uuid[])[2], ($1::uuid[])[30], ($1::uuid[])[59])", 1, "none", 60},
		{"ten rows", "UPDATE items SET name = 'Tenth' WHERE id = ANY(($1::uuid[])[11:20])", 3, "none", 60},
		{"a row comes in at the head", "INSERT INTO items (workspace_id, name) SELECT workspace_id, 'New' FROM items WHERE id = ($1::uuid[])[1]", 1, "none", 61},
		{"ten are deleted", "DELETE FROM items WHERE id = ANY(($1::uuid[])[1:10])", 2, "none", 51},
		{"ten are deactivated", "UPDATE items SET active = false WHERE id = ANY(($1::uuid[])[11:20])", 2, "none", 41},
		{"rows become old", "UPDATE items SET created_at = '1990-01-01' WHERE id = ANY(($1::uuid[])[40:43])", 1, "none", 41},
		{"rows so large that pages end before their limit",
			"UPDATE items SET (name, sku, description, unit) = (SELECT t, t, t, t FROM repeat(chr(1), 65536) t) WHERE id = ANY(($1::uuid[])[45:52])", 4, "none", 41},
		{"all leave but one", "UPDATE items SET active = false WHERE id <> ALL(($1::uuid[])[25:25]) AND " + ofList, 3, "none", 1},
		{"none", "UPDATE items SET active = false WHERE id = ANY(($1::uuid[])[25:25])", 1, "none", 0},
		{"still none", "", 1, "none", 0},
		{"all of the first come back",
			"UPDATE items SET active = true, name = 'Back', sku = NULL, description = NULL, unit = NULL WHERE " + ofList, 11, "none", 51},
		{"a round of the whole list, because a change does not name its rows", "DELETE FROM items WHERE id = ANY(($1::uuid[])[21:21])", 10, "", 50},
		{"nothing again", "", 1, "none", 50},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.statement != "" {
				list.change(t, c.statement, list.seeded)
			}
			if c.kind == "" && c.statement != "" {
				listedge(t, f.env, "purge", "--workspace", list.workspace)
			}
			list.awaitVisible()
			between.answers()
			between.requests()
			r := sync(t)
			if got := len(r.byID(t)); got != c.present {
				t.Errorf("%d rows are in the copy, want %d", got, c.present)
			}
			if !reflect.DeepEqual(r.byID(t), list.rows(t)) {
				t.Error("the copy is not the list")
			}
			if got := len(between.requests()); got > c.requests || c.kind == "" && got < c.requests {
				t.Errorf("%d requests, want %d", got, c.requests)
			}
			for _, header := range between.answers() {
				if covers := header.Get("List-Covers"); strings.HasPrefix(covers, "none") != (c.kind == "none") {
					t.Errorf("a page covers %s", covers)
				}
				var head strings.Builder
				must(header.Write(&head))
				if t.Logf("%d bytes of headers", head.Len()); head.Len() > 3500 { // a proxy's buffer may be 4 kB
					t.Errorf("the headers have %d bytes", head.Len())
				}
			}
		})
	}
}

// resumes: whatever a client has stored when it is killed, it goes on from there.
func resumes(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 25)
	where := copied{address: "http://" + list.node.public, key: list.key, list: pagesOf5, file: filepath.Join(t.TempDir(), "copy")}
	for n, statement := range []string{"",
		"UPDATE items SET name = 'Other' WHERE id = ANY(($1::uuid[])[3:20])",
		"DELETE FROM items WHERE id = ANY(($1::uuid[])[1:3])",
		"UPDATE items SET created_at = '1990-01-01' WHERE id = ANY(($1::uuid[])[7:9])",
		"UPDATE items SET active = false WHERE id = ANY(($1::uuid[])[20:22])",
	} {
		if statement != "" {
			list.change(t, statement, list.seeded)
		}
		if n == 4 { // a round of the whole list, which removes rows by their marks
			listedge(t, f.env, "purge", "--workspace", list.workspace)
		}
		list.awaitVisible()
		killed := where
		killed.kill = true
		for i := range 5 { // it is killed after each page of a whole round, and goes on to the next one
			if r := start(t, killed)(t); !r.Killed {
				t.Fatalf("%+v", r.Problem)
			}
			if i == 2 { // rows change that have been sent already, and others
				list.change(t, "UPDATE items SET name = name || '+', created_at = created_at - interval '9 days' WHERE id = ANY(($1::uuid[])[10:12])", list.seeded)
			}
		}
		start(t, where)(t) // ends the round that has begun
		list.awaitVisible()
		if rows := start(t, where)(t).byID(t); !reflect.DeepEqual(rows, list.rows(t)) {
			t.Errorf("after change %d the copy is not the list: %d rows", n, len(rows))
		}
	}
}

// readsHeaders: a client does what the headers say, and nothing if they are not there.
func readsHeaders(t *testing.T, start starter) {
	const changes = `; rel="https://listedge.dev/rel/changes"`
	steps := []struct {
		asked        string   // the cursor
		status       int      // 0 = 200
		covers, gone string   // "" = no header
		ids          []string // of rows
		next, link   string
		copied       string // the ids of the copy, if the call ends with this page
		wrong        bool   // so that it ends with an error
	}{
		{asked: "changes", covers: `through="2026-11-20T08:00:00.000Z b"`, ids: []string{"a", "b"}, next: "1"},
		{asked: "1", covers: `after="2026-11-20T08:00:00.000Z b"`, ids: []string{"c", `"d"`, `e\f`, "g,h", "ü%"}, link: "<?limit=5&cursor=R1>" + changes,
			copied: `"d" a b c e\f g,h ü%`},
		{asked: "R1", covers: "none", link: "<?cursor=R2&limit=5>" + changes, copied: `"d" a b c e\f g,h ü%`},
		{asked: "R2", covers: "none, gone", gone: `"\"d\"", "e\\f","g,h" , %"%c3%bc%25", "z"`, ids: []string{"i"}, link: `<?a>; rel="x", <?cursor=R3>` + changes,
			copied: "a b c i"},
		// A full round that starts over twice.
		{asked: "R3", covers: `through="1 b"`, ids: []string{"b"}, next: "2"},
		{asked: "2", covers: `through="2026 \"a\", after=1"`, ids: []string{"a"}, next: "3"},
		{asked: "3", covers: `after="1", through=%"x%c3%bc"`, ids: []string{"k"}, next: "4"},
		{asked: "4", ids: []string{"l"}, next: "5", copied: "a b c i k", wrong: true},
		{asked: "4", covers: `after="1`, ids: []string{"l"}, next: "5", copied: "a b c i k", wrong: true},
		{asked: "4", covers: "none, gone", next: "5", copied: "a b c i k", wrong: true},
		{asked: "4", covers: "none, gone", gone: `"a", "b`, next: "5", copied: "a b c i k", wrong: true},
		{asked: "4", covers: "none, gone", gone: `%"%zz"`, next: "5", copied: "a b c i k", wrong: true},
		{asked: "4", covers: "none", copied: "a b c i k", wrong: true},
		{asked: "4", covers: `after="1"`, ids: []string{"c"}, link: "<?cursor=R4>" + changes, copied: "a c k"},
		// A cursor that is refused.
		{asked: "R4", status: 400},
		{asked: "changes", covers: "all", ids: []string{"m"}, link: "<?cursor=R5>" + changes, copied: "m"},
		{asked: "R5", status: 400},
		{asked: "changes", status: 400, copied: "m", wrong: true},
	}
	asked := make(chan string, len(steps))
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.URL.Path != "/v1/items" || query.Get("limit") != "5" || query.Get("type") != "goods" || len(query) != 3 {
			t.Errorf("a client asks for %s", r.URL)
		}
		s := steps[len(asked)]
		asked <- query.Get("cursor")
		for name, value := range map[string]string{"List-Covers": s.covers, "List-Gone": s.gone, "Link": s.link} {
			if value != "" {
				w.Header().Set(name, value)
			}
		}
		if s.status != 0 {
			refuse(w, s.status, "VALIDATION_ERROR", "")
			return
		}
		rows, page := []map[string]any{}, map[string]any{"hasMore": s.next != "", "nextCursor": nil}
		for _, id := range s.ids {
			rows = append(rows, map[string]any{"id": id})
		}
		if s.next != "" {
			page["nextCursor"] = s.next
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": rows, "page": page, "requestId": "r-1"})
	}))
	defer service.Close()
	sync := start(t, copied{address: service.URL, key: "a key", list: "/v1/items?limit=5&type=goods"})
	for seen := 0; seen < len(steps); {
		r := sync(t)
		if len(asked) == seen {
			t.Fatalf("no request after step %d: %+v", seen, r.Problem)
		}
		var last = steps[len(asked)-1]
		seen = len(asked)
		if ids := slices.Sorted(maps.Keys(r.byID(t))); strings.Join(ids, " ") != last.copied {
			t.Errorf("after step %d the copy has %q, want %q", seen, ids, last.copied)
		}
		if (r.Problem != nil) != last.wrong || last.wrong && last.status == 0 && !strings.Contains(r.Problem.Message, "proxies") {
			t.Errorf("step %d ends with %+v", seen, r.Problem)
		}
	}
	for i, s := range steps {
		if cursor := <-asked; cursor != s.asked {
			t.Errorf("request %d has the cursor %q, want %q", i+1, cursor, s.asked)
		}
	}
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
	sync := start(t, copied{address: between.URL, key: list.key, list: pagesOf5})
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

	stopped := sync(t)
	if p := stopped.Problem; p == nil || p.Status != 429 || p.Code != "PLAN_LIMIT_REACHED" || p.RetryAfter != 1000000 || p.RequestID != "r-1" {
		t.Errorf("a used up quota: %+v", p)
	}
	if done := sync(t); !reflect.DeepEqual(done.byID(t), list.rows(t)) {
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
	between.answer, between.cut = nil, nil

	// A cursor that was never given out is refused, and the client starts over.
	file := filepath.Join(t.TempDir(), "copy")
	must(os.WriteFile(file, []byte(`{"state":{"cursor":"AAAA","mark":3},"rows":`+
		map[bool]string{true: "[]", false: "{}"}[strings.Contains(t.Name(), "typescript")]+"}"), 0o644))
	if r := start(t, copied{between.URL, list.key, pagesOf5, file, false})(t); len(r.byID(t)) != 30 {
		t.Errorf("after a refused cursor: %d rows, %+v", len(r.Rows), r.Problem)
	}
	if got := len(between.requests()); got != 7 {
		t.Errorf("%d requests, of which the first was refused", got)
	}

	if p := start(t, copied{address: between.URL, key: "none", list: pagesOf5})(t).Problem; p == nil || p.Status != 401 || p.Code != "UNAUTHORIZED" {
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
			if p := start(t, copied{address: c.address, key: "a key", list: pagesOf5})(t).Problem; p == nil || p.Status != c.status {
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
	if r := typeScriptKeeper(t, "CANCEL=3000")(t, copied{address: busy.URL, key: "a key", list: pagesOf5})(t); !r.Cancelled {
		t.Errorf("%+v", r)
	}
}
