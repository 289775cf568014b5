package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/limiter"
)

// contractCodes is the contract's table of errors: the whole service's
// vocabulary, and the statuses of each.
var contractCodes = map[string][]int{
	"VALIDATION_ERROR": {400}, "UNAUTHORIZED": {401}, "FORBIDDEN": {403}, "NOT_FOUND": {404}, "CONFLICT": {409},
	"UNPROCESSABLE_ENTITY": {422}, "PLAN_LIMIT_REACHED": {429}, "BOOKS_LOCKED": {423}, "IDEMPOTENCY_CONFLICT": {409},
	"RATE_LIMITED": {429}, "SERVICE_UNAVAILABLE": {503}, "INTERNAL_ERROR": {500}, "REQUEST_FAILED": {400, 405, 408, 412, 413, 431, 504, 505},
}

// problems reads every problem of this package from its source, so that a new one is not
// forgotten here.
func problems(t *testing.T) (found []problem) {
	t.Helper()
	for _, file := range must(filepath.Glob("*.go")) {
		for _, m := range regexp.MustCompile(`\bproblem\{"(\w+)", (\d+), "([^"]*)"`).FindAllStringSubmatch(string(must(os.ReadFile(file))), -1) {
			found = append(found, problem{code: m[1], status: must(strconv.Atoi(m[2])), message: m[3]})
		}
	}
	if len(found) < 25 {
		t.Fatalf("only %d problems found", len(found))
	}
	return found
}

// Every error of the service is an example, word for word, and so is every text of the parser. (That there are no others
// follows: examples are made from problems, and from what the parser says.)
func TestOpenAPIShowsEveryProblem(t *testing.T) {
	doc := loadOpenAPI(t)
	shown := map[string]bool{}
	for status, r := range doc.Paths.Value("/v1/items").Get.Responses.Map() {
		media := r.Value.Content.Get("application/json")
		if media == nil {
			continue // a 304
		}
		for name, example := range media.Examples {
			answer, isError := example.Value.Value.(map[string]any)["error"].(map[string]any)
			details, _ := answer["details"].(map[string]any)
			if isError && (answer["code"] == invalid.code) != (len(details) > 0) {
				t.Errorf("%s: %v", name, answer)
			}
			shown[fmt.Sprintf("%s %s %s", status, answer["code"], answer["message"])] = true
			for _, why := range details {
				shown[why.(string)] = true
			}
		}
	}
	for _, p := range problems(t) {
		if !slices.Contains(contractCodes[p.code], p.status) {
			t.Errorf("%d %s is not in the contract", p.status, p.code)
		}
		of := p.code == invalid.code || p.status == 404 || p.status == 405 // the request, or of other paths and methods
		if text := fmt.Sprintf("%d %s %s", p.status, p.code, p.message); !of && !shown[text] {
			t.Errorf("%s: not among the examples", text)
		}
	}
	texts := regexp.MustCompile(`"((?:must|is|belongs) [^"]+[^ "])"`).FindAllStringSubmatch(string(must(os.ReadFile("request.go"))), -1)
	if len(texts) < 8 {
		t.Fatalf("only %d texts found", len(texts))
	}
	for _, m := range texts {
		if !shown[m[1]] {
			t.Errorf("no example has %q", m[1])
		}
	}
}

func TestOpenAPIHasTheContractsCodes(t *testing.T) {
	doc := loadOpenAPI(t)
	var codes []string
	for _, c := range doc.Components.Schemas["ErrorCode"].Value.Enum {
		codes = append(codes, c.(string))
	}
	slices.Sort(codes)
	if want := slices.Sorted(maps.Keys(contractCodes)); !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	want, documented := map[string]bool{}, map[string]bool{} // the table in the description
	for _, p := range problems(t) {
		want[fmt.Sprintf("| %d | `%s` |", p.status, p.code)] = true
	}
	for _, row := range regexp.MustCompile("(?m)^\\| \\d+ \\| `[A-Z_]+` \\|").FindAllString(doc.Info.Description, -1) {
		documented[row] = true
	}
	if !maps.Equal(documented, want) {
		t.Errorf("the description's table has %v, the code %v", documented, want)
	}
	// Errors of HTTP and failures of the service may end any request.
	statuses := []string{"200", "304", "400", "408", "413", "429", "431", "500", "503", "505"}
	for _, path := range []string{openAPIPath, docsPath} {
		if got := slices.Sorted(maps.Keys(doc.Paths.Value(path).Get.Responses.Map())); !slices.Equal(got, statuses) {
			t.Errorf("%s: %v, want %v", path, got, statuses)
		}
	}
}

func loadOpenAPI(t *testing.T) *openapi3.T {
	t.Helper()
	doc := must(openapi3.NewLoader().LoadFromData(OpenAPI(list.BuiltIn())))
	return doc
}

func TestOpenAPIIsValid(t *testing.T) {
	doc := loadOpenAPI(t)
	if doc.Info.Version != "1.0.0" { // the API's, not the program's
		t.Errorf("version %s", doc.Info.Version)
	}
	if doc.OpenAPI != "3.0.3" || len(doc.Servers) != 1 || doc.Servers[0].URL != "." {
		t.Errorf("OpenAPI %s, servers %v", doc.OpenAPI, doc.Servers)
	}
	scheme := doc.Components.SecuritySchemes["ApiKey"].Value
	if scheme.Type != "apiKey" || scheme.In != "header" || scheme.Name != "X-API-Key" {
		t.Errorf("security scheme %+v", scheme)
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if paged := strings.HasPrefix(path, "/v1/"); paged != (op.Security == nil) {
				t.Errorf("%s %s: a key is needed by the lists and by nothing else", method, path)
			}
		}
	}
}

// A validator in front of the service refuses nothing that the service answers: these
// values are taken, and mean nothing or the default.
func TestOpenAPIIsNotStricterThanTheService(t *testing.T) {
	doc := loadOpenAPI(t)
	s, ctx := hitServer(t, "")
	for name, values := range map[string][]string{
		"Cache-Control":   {"max-age=0", "no-store", "only-if-cached, max-age=10", "", "x"},
		"X-Request-Id":    {"a bad id", "", strings.Repeat("a", 129), "\u00e9"},
		"If-None-Match":   {"x", "", `"a"`, "*x"},
		"Accept-Encoding": {"x", "", "br", "gzip;q=2"},
	} {
		for _, value := range values {
			t.Run(name+" "+value[:min(len(value), 20)], func(t *testing.T) {
				ctx.Request.Header.Set(name, value)
				defer ctx.Request.Header.Del(name)
				if got := answerTo(t, s, ctx); got.Status != 200 {
					t.Fatalf("%d %s", got.Status, got.Body)
				}
				if err := doc.Paths.Value("/v1/items").Get.Parameters.GetByInAndName("header", name).Schema.Value.VisitJSON(value); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Run("search", func(t *testing.T) {
		value := strings.Repeat("a", 120) + "   "
		if _, wrong := parseText(listtest.Items, "search="+url.QueryEscape(value)); wrong != nil {
			t.Fatal(wrong)
		}
		if err := doc.Components.Parameters["ItemSearch"].Value.Schema.Value.VisitJSON(value); err != nil {
			t.Error(err)
		}
	})
}

// A component that nothing refers to is a type that no client needs.
func TestOpenAPIHasNoUnusedComponents(t *testing.T) {
	c := loadOpenAPI(t).Components
	for kind, names := range map[string][]string{
		"schemas": slices.Collect(maps.Keys(c.Schemas)), "parameters": slices.Collect(maps.Keys(c.Parameters)),
		"headers": slices.Collect(maps.Keys(c.Headers)), "responses": slices.Collect(maps.Keys(c.Responses)),
	} {
		for _, name := range names {
			if !bytes.Contains(OpenAPI(list.BuiltIn()), []byte(`"#/components/`+kind+`/`+name+`"`)) {
				t.Errorf("%s/%s is not used", kind, name)
			}
		}
	}
}

func TestOpenAPIHeaderExamples(t *testing.T) {
	for name, h := range loadOpenAPI(t).Components.Headers {
		if h.Value.Example == nil || h.Value.Description == "" {
			t.Errorf("%s: no example, or no description", name)
			continue
		}
		if err := h.Value.Schema.Value.VisitJSON(h.Value.Example); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The document has the bounds of the parser, and the headers that pages have.
func TestOpenAPIAgreesWithTheCode(t *testing.T) {
	doc := loadOpenAPI(t)
	limit, cursor := doc.Components.Parameters["Limit"].Value.Schema.Value, doc.Components.Parameters["Cursor"].Value.Schema.Value
	if *limit.Min != 1 || *limit.Max != 100 || limit.Default != float64(defaultLimit) || *cursor.MaxLength != page.MaxCursor {
		t.Errorf("limit %v to %v, by default %v; cursor %d", *limit.Min, *limit.Max, limit.Default, *cursor.MaxLength)
	}
	for _, name := range []string{"ItemSearch", "ContactSearch"} {
		if text := doc.Components.Parameters[name].Value.Description; !strings.Contains(text, fmt.Sprintf("at most %d;", maxSearch)) {
			t.Errorf("%s: %s", name, text)
		}
	}

	described := func(name, value string) {
		t.Helper()
		if err := doc.Components.Headers[name].Value.Schema.Value.VisitJSON(value); err != nil {
			t.Errorf("%s: %s: %v", name, value, err)
		}
	}
	for _, r := range []cache.Result{
		{Source: cache.Memory}, {Source: cache.Redis}, {Source: cache.Redis, Collapsed: true},
		{Source: cache.Origin}, {Source: cache.Origin, Collapsed: true}, {Source: cache.Origin, HadStale: true},
		{Source: cache.Origin, HadStale: true, Collapsed: true}, {Source: cache.Memory, HadStale: true, Err: errors.New("away")},
	} {
		described("CacheStatus", cacheStatusOf(&r)+"; proof-ms=0")
	}
	var policy, next header
	policy.policy("key", limiter.Policy{Rate: 50_000_000, Burst: 100})
	described("RateLimitPolicy", string(policy))
	policy.put(", ")
	policy.policy("workspace", limiter.Policy{Burst: 1})
	described("RateLimitPolicy", string(policy))
	next.link(&page.Query{List: listtest.Items, Limit: 2, Search: `a<b> "c"`}, "abc", "next")
	described("Link", string(next))
	described("ETag", cache.TagOf([]byte("{")).String())
}

// The document is strict enough to reject wrong responses.
func TestOpenAPIRefuses(t *testing.T) {
	doc := loadOpenAPI(t)
	example := func(path, name string) string {
		media := doc.Paths.Value(path).Get.Responses.Status(200).Value.Content.Get("application/json")
		text := must(json.Marshal(media.Examples[name].Value.Value))
		return string(text)
	}
	item, contact := example("/v1/items", "last"), example("/v1/contacts", "last") // with null wherever it may be
	problem := `{"error":{"code":"VALIDATION_ERROR","message":"m","details":{"limit":"l"}},"requestId":"r"}`
	for _, c := range []struct{ schema, why, body, old, new string }{
		{"ItemPage", "an exponent", item, `"0.30"`, `"3e-1"`},
		{"ItemPage", "a leading zero", item, `"0.30"`, `"00.30"`},
		{"ItemPage", "money as a number", item, `"0.30"`, `0.30`},
		{"ItemPage", "an instant without fraction", item, `.120Z`, `Z`},
		{"ItemPage", "an instant in another zone", item, `.120Z`, `.120+00:00`},
		{"ItemPage", "an unknown type", item, `"GOODS"`, `"goods"`},
		{"ItemPage", "an empty name", item, `"Hex bolt M8"`, `""`},
		{"ItemPage", "an id that is none", item, `"c3a1f0e2-`, `"C3A1F0E2-`},
		{"ItemPage", "negative use", item, `412`, `-412`},
		{"ItemPage", "a null that may not be", item, `"taxable":true`, `"taxable":null`},
		{"ItemPage", "a field too many", item, `"taxable":`, `"active":true,"taxable":`},
		{"ItemPage", "a field too few", item, `"taxable":true,`, ``},
		{"ItemPage", "a bad request id", item, `"requestId":"`, `"requestId":"-`},
		{"ContactPage", "a field too many", contact, `"isCustomer":`, `"active":true,"isCustomer":`},
		{"ContactPage", "a field too few", contact, `"tin":null`, `"x":null`},
		{"Error", "an unknown code", problem, `VALIDATION_ERROR`, `INVALID`},
		{"Error", "a field too many", problem, `"message"`, `"status":400,"message"`},
		{"Error", "no request id", problem, `,"requestId":"r"`, ``},
		{"Error", "empty details", problem, `{"limit":"l"}`, `{}`},
	} {
		schema := doc.Components.Schemas[c.schema].Value
		for body, ok := range map[string]bool{c.body: true, strings.Replace(c.body, c.old, c.new, 1): false} {
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatalf("%s: %v in %s", c.why, err, body)
			}
			if err := schema.VisitJSON(v); (err == nil) != ok {
				t.Errorf("%s, %s: valid %v (%v)", c.schema, c.why, err == nil, err)
			}
		}
	}
}

func TestInlineElementsAreNamedByTheirHashes(t *testing.T) {
	// As computed by openssl dgst -sha256 -binary | base64: the example of CSP 3, and the empty text.
	got := inlineHashes([]byte("<p><script>alert('Hello, world.');</script><script src=x></script><script></script>"), "script")
	if want := " 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
