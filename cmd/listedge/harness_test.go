package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// The tests of this package use the program as its users do: they start it
// through run, on real Postgres and Redis, and talk HTTP.

// beListedge makes the test binary the program itself: `dev --nodes` starts
// its nodes as processes of os.Executable.
const beListedge = "TEST_IS_LISTEDGE"

func TestMain(m *testing.M) {
	if os.Getenv(beListedge) != "" {
		must(os.Unsetenv(collectorPace))
		main()
	}
	must(os.Setenv(collectorPace, "100"))
	must(flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))) // tests wait more than they compute; -parallel overrides it
	code := m.Run()
	_ = shared.Stop()
	os.Exit(code)
}

// collectorPace is set where tests run nodes in their own process. A node collects
// after a fixed amount of garbage, which is right for a process of one node: several
// in one spend a fifth of its time on collections. Nodes that are processes keep
// their pace.
const collectorPace = "GOGC"

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// The server that all tests share. A test that stops or changes a server starts its own.
var shared = sandboxtest.Shared{Prepare: postgrestest.Prepare(admin.MigrateUp)}

// database returns the URL of a migrated, empty database of the test's own.
func database(t *testing.T) string {
	t.Helper()
	p, err := shared.Postgres()
	if err != nil {
		t.Fatal(err)
	}
	return p.URL(postgrestest.Copy(t, p, postgrestest.Template))
}

// privateDatabase is on a Postgres that the test may break.
func privateDatabase(t *testing.T) (*sandbox.Postgres, string) {
	t.Helper()
	return privateDatabaseWith(t, nil)
}

func privateDatabaseWith(t *testing.T, settings map[string]string) (*sandbox.Postgres, string) {
	t.Helper()
	p := sandboxtest.PostgresWith(t, settings)
	if err := postgrestest.Make(t.Context(), p, "listedge", admin.MigrateUp); err != nil {
		t.Fatal(err)
	}
	return p, p.URL("listedge")
}

var connect, execute = postgrestest.Connect, postgrestest.Exec

// output is a buffer that a running program writes and a test reads.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// program is `listedge …` under way.
type program struct {
	out, err output
	cancel   context.CancelFunc // SIGTERM
	ended    chan struct{}
	code     int // once ended
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.code = run(ctx, args, strings.NewReader(""), &p.out, &p.err)
	}()
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *program) stop() int {
	p.cancel()
	<-p.ended
	return p.code
}

// command runs a command to its end and returns what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, args...)
	<-p.ended
	if p.code != exitFine {
		t.Fatalf("listedge %s: exit %d: %s", strings.Join(args, " "), p.code, p.err.String())
	}
	return p.out.String()
}

// patience is a time limit for hangs, long enough for a slow machine.
const patience = 2 * time.Minute

// within polls until ok returns true or the time is over; for states without an event to wait
// for. It polls rarely, to leave the processor to the nodes.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); ; {
		began := time.Now()
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(max(5*time.Millisecond, 2*time.Since(began)))
	}
}

// testNode is a serving node.
type testNode struct {
	*program
	url, admin string
}

// startNode starts `listedge serve` on free ports and waits until it is ready.
func startNode(t *testing.T, databaseURL string, args ...string) *testNode {
	t.Helper()
	n := launchNode(t, databaseURL, args...)
	n.awaitReady(t)
	return n
}

func launchNode(t *testing.T, databaseURL string, args ...string) *testNode {
	t.Helper()
	n := &testNode{program: start(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--database-url", databaseURL, "--log-format", "json", "--drain", "50ms"}, args...)...)}
	within(t, patience, "listening", func() bool {
		select {
		case <-n.ended:
			t.Fatalf("serve ended with %d: %s", n.code, n.err.String())
		default:
		}
		return n.listens(n.err.String())
	})
	return n
}

// listens reads the node's addresses from its log, if they are there already.
func (n *testNode) listens(log string) bool {
	for line := range strings.Lines(log) {
		var entry struct{ Msg, Public, Admin string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
			n.url, n.admin = "http://"+entry.Public, "http://"+entry.Admin
			return true
		}
	}
	return false
}

func (n *testNode) awaitReady(t *testing.T) {
	t.Helper()
	within(t, patience, "ready", func() bool {
		r, err := http.Get(n.admin + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// metric sums the series of the name whose labels contain all of the parts.
func (n *testNode) metric(t *testing.T, name string, parts ...string) (sum float64) {
	t.Helper()
	plain, err := http.NewRequest(http.MethodGet, n.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain.Header.Set("Accept-Encoding", "identity") // or most of the time went into compressing
	r, err := http.DefaultClient.Do(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := false
lines:
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare != name {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(series, part) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		t.Fatalf("no metric %s %q", name, parts)
	}
	return sum
}

// answer is a response whose body has been read, and which conforms to the OpenAPI document.
type answer struct {
	*http.Response
	body []byte
}

// next returns the path to which the answer's Link leads; "" = it has none.
func (a *answer) next(t *testing.T) (path string) {
	t.Helper()
	link := a.Header.Get("Link")
	if link == "" {
		return ""
	}
	target, ok := strings.CutSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
	next, err := a.Request.URL.Parse(target)
	if !ok || err != nil {
		t.Fatalf("Link: %s: %v", link, err)
	}
	return next.RequestURI()
}

// cacheStatus returns where the page came from: Cache-Status without the age of the proof.
func cacheStatus(h http.Header) string {
	status, _, _ := strings.Cut(h.Get("Cache-Status"), "; proof-ms=")
	return status
}

// unpacked returns the decoded body.
func (a *answer) unpacked() ([]byte, error) {
	if a.Header.Get("Content-Encoding") != "gzip" {
		return a.body, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

type page struct {
	Data []map[string]any
	Page struct {
		HasMore    bool
		NextCursor *string
	}
	RequestID string
}

func (a *answer) page(t *testing.T) page {
	t.Helper()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s", a.Request.Method, a.Request.URL, a.Status, a.body)
	}
	var p page
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.UseNumber()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return p
}

type problemAnswer struct {
	Error struct {
		Code, Message string
		Details       map[string]string
	}
	RequestID string
}

func (a *answer) problem(t *testing.T) problemAnswer {
	t.Helper()
	var p problemAnswer
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatalf("%s: %v: %s", a.Status, err, a.body)
	}
	return p
}

var document = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromFile("../../edge/openapi.json")
	if err != nil {
		panic(err)
	}
	return doc
})

// request sends one request and checks the answer against the document.
// Headers are given as "Name: value".
func (n *testNode) request(t *testing.T, method, path, key string, headers ...string) *answer {
	t.Helper()
	a, err := n.try(method, path, key, headers...)
	if err != nil {
		t.Fatal(err)
	}
	if err := conforms(a); err != nil {
		t.Fatalf("%s %s: %s\n%s\n%s", method, path, a.Status, err, a.body)
	}
	return a
}

func (n *testNode) get(t *testing.T, path, key string, headers ...string) *answer {
	t.Helper()
	return n.request(t, http.MethodGet, path, key, headers...)
}

// try does not check the response: for tests that expect connections to fail.
func (n *testNode) try(method, path, key string, headers ...string) (*answer, error) {
	r, err := http.NewRequest(method, n.url+path, nil)
	if err != nil {
		return nil, err
	}
	if key != "" {
		r.Header.Set("X-API-Key", key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &answer{response, body}, err
}

// conforms checks an answer against the document the server serves.
func conforms(a *answer) error {
	if id := a.Header.Get("X-Request-Id"); id == "" {
		return fmt.Errorf("no X-Request-Id")
	} else if len(a.body) > 0 && a.Header.Get("Content-Type") == "application/json" && a.Header.Get("Content-Encoding") == "" && !strings.Contains(string(a.body), `"requestId":"`+id+`"`) &&
		strings.HasPrefix(a.Request.URL.Path, "/v1") {
		return fmt.Errorf("request id %s is not in the body", id)
	}
	item := document().Paths.Find(a.Request.URL.EscapedPath())
	if item == nil || item.GetOperation(a.Request.Method) == nil {
		return problemConforms(a)
	}
	if documented := item.GetOperation(a.Request.Method).Responses.Status(a.StatusCode); documented != nil {
		if err := headersConform(a, documented.Value); err != nil {
			return err
		}
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: a.Request,
			Route: &routers.Route{Spec: document(), Path: a.Request.URL.Path, PathItem: item,
				Method: a.Request.Method, Operation: item.GetOperation(a.Request.Method)},
		},
		Status: a.StatusCode, Header: a.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		input.Options.ExcludeResponseBody = true
	} else if len(a.body) > 0 {
		plain, err := a.unpacked()
		if err != nil {
			return err
		}
		input.SetBodyBytes(plain)
	}
	return openapi3filter.ValidateResponse(context.Background(), input)
}

// headersConform fails if a header is not in the document, except those of HTTP itself.
func headersConform(a *answer, documented *openapi3.Response) error {
	for name := range a.Header {
		switch name {
		case "Connection", "Content-Length", "Content-Type", "Date":
			continue
		}
		known := func(n string) bool { return http.CanonicalHeaderKey(n) == name }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(documented.Headers)), known) {
			return fmt.Errorf("the header %s of %s is not documented", name, a.Status)
		}
	}
	return nil
}

// problemConforms is for answers that belong to no operation: 404 and 405.
func problemConforms(a *answer) error {
	if a.StatusCode == http.StatusOK || a.StatusCode == http.StatusNotModified {
		return nil // HEAD of the reference
	}
	if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("X-Content-Type-Options") != "nosniff" || (a.StatusCode == 405) != (a.Header.Get("Allow") == "GET, HEAD") {
		return fmt.Errorf("headers %v", a.Header)
	}
	var body any
	if a.Request.Method == http.MethodHead {
		return nil
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		return err
	}
	return document().Components.Schemas["Error"].Value.VisitJSON(body)
}
