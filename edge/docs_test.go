package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/limiter"
)

func loadOpenAPI(t *testing.T) *openapi3.T {
	t.Helper()
	doc := must(openapi3.NewLoader().LoadFromData(OpenAPI(list.BuiltIn())))
	return doc
}

func TestOpenAPIIsValid(t *testing.T) {
	doc := loadOpenAPI(t)
	must(0, doc.Validate(t.Context(), openapi3.EnableExamplesValidation(), openapi3.EnableMultiError()))
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
