package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"listedge/edge"
	"listedge/internal/list"
)

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

type pageBody struct {
	Data []map[string]any
	Page struct {
		HasMore    bool
		NextCursor *string
	}
	RequestID string
}

func (a *answer) page(t *testing.T) pageBody {
	t.Helper()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s", a.Request.Method, a.Request.URL, a.Status, a.body)
	}
	var p pageBody
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

// document is that of the built-in lists.
var document = sync.OnceValue(func() *openapi3.T { return documentOf(list.BuiltIn()) })

func documentOf(lists *list.Set) *openapi3.T {
	return must1(openapi3.NewLoader().LoadFromData(edge.OpenAPI(lists)))
}

// request sends one request and checks the answer against the document.
// Headers are given as "Name: value".
func (n *testNode) request(t *testing.T, method, path, key string, headers ...string) *answer {
	t.Helper()
	a, err := n.try(method, path, key, headers...)
	if err != nil {
		t.Fatal(err)
	}
	doc := n.document
	if doc == nil {
		doc = document()
	}
	if err := conforms(a, doc); err != nil {
		t.Fatalf("%s %s: %s\n%s\n%s", method, path, a.Status, err, a.body)
	}
	return a
}

func (n *testNode) get(t *testing.T, path, key string, headers ...string) *answer {
	t.Helper()
	return n.request(t, http.MethodGet, path, key, headers...)
}

// first is the first request with a key, or for a page: get, again while the node answers 503. A busy
// machine may not look up the key or read the page in time.
func (n *testNode) first(t *testing.T, path, key string, headers ...string) (a *answer) {
	t.Helper()
	within(t, patience, "an answer", func() bool {
		a = n.get(t, path, key, headers...)
		return a.StatusCode != http.StatusServiceUnavailable
	})
	return a
}

// walk reads all pages of a list, and checks that no page but the last is short, that Link and
// nextCursor lead to the same page, and that no row comes twice.
func (n *testNode) walk(t *testing.T, path, key string, size int) (rows []map[string]any) {
	t.Helper()
	seen := map[any]bool{}
	for next := path; ; {
		a := n.first(t, next, key)
		p := a.page(t)
		for _, row := range p.Data {
			if seen[row["id"]] {
				t.Fatalf("%s: %v comes twice", path, row["id"])
			}
			seen[row["id"]] = true
		}
		rows = append(rows, p.Data...)
		next = a.next(t)
		if !p.Page.HasMore {
			if p.Page.NextCursor != nil || next != "" || len(p.Data) > size {
				t.Fatalf("%s: the last page has %d rows, cursor %v, link %s", path, len(p.Data), p.Page.NextCursor, next)
			}
			return rows
		}
		if len(p.Data) != size {
			t.Fatalf("%s: a page of %d rows, not %d, in the middle", path, len(p.Data), size)
		}
		if !strings.HasSuffix(next, "cursor="+*p.Page.NextCursor) {
			t.Fatalf("%s: cursor %s, link %s", path, *p.Page.NextCursor, next)
		}
	}
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
func conforms(a *answer, doc *openapi3.T) error {
	if id := a.Header.Get("X-Request-Id"); id == "" {
		return fmt.Errorf("no X-Request-Id")
	} else if len(a.body) > 0 && a.Header.Get("Content-Type") == "application/json" && a.Header.Get("Content-Encoding") == "" &&
		!strings.Contains(string(a.body), `"requestId":"`+id+`"`) &&
		strings.HasPrefix(a.Request.URL.Path, "/v1") {
		return fmt.Errorf("request id %s is not in the body", id)
	}
	item := doc.Paths.Find(a.Request.URL.EscapedPath())
	if item == nil || item.GetOperation(a.Request.Method) == nil {
		return problemConforms(a, doc)
	}
	if documented := item.GetOperation(a.Request.Method).Responses.Status(a.StatusCode); documented != nil {
		if err := headersConform(a, documented.Value); err != nil {
			return err
		}
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: a.Request,
			Route: &routers.Route{Spec: doc, Path: a.Request.URL.Path, PathItem: item,
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
func problemConforms(a *answer, doc *openapi3.T) error {
	if a.StatusCode == http.StatusOK || a.StatusCode == http.StatusNotModified {
		return nil // HEAD of the reference
	}
	if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("X-Content-Type-Options") != "nosniff" ||
		(a.StatusCode == 405) != (a.Header.Get("Allow") == "GET, HEAD") {
		return fmt.Errorf("headers %v", a.Header)
	}
	var body any
	if a.Request.Method == http.MethodHead {
		return nil
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		return err
	}
	return doc.Components.Schemas["Error"].Value.VisitJSON(body)
}
