package edge

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
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
	files := must(filepath.Glob("*.go"))
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := must(parser.ParseFile(token.NewFileSet(), name, nil, 0))
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if kind, ok := literal.Type.(*ast.Ident); !ok || kind.Name != "problem" || len(literal.Elts) == 0 {
				return true
			}
			if name != "response.go" {
				t.Errorf("%s makes a problem: response.go is the one place", name)
			}
			text := func(i int) string { return literal.Elts[i].(*ast.BasicLit).Value }
			code, _ := strconv.Unquote(text(0))
			status, _ := strconv.Atoi(text(1))
			message, _ := strconv.Unquote(text(2))
			found = append(found, problem{code: code, status: status, message: message})
			return true
		})
	}
	if len(found) < 10 {
		t.Fatalf("only %d problems found", len(found))
	}
	return found
}

// errorsOf are the error objects of a response.
func errorsOf(r *openapi3.Response) (all []map[string]any) {
	for _, example := range r.Content.Get("application/json").Examples {
		all = append(all, example.Value.Value.(map[string]any)["error"].(map[string]any))
	}
	return all
}

// Every error of the service is an example, word for word, at each operation that can
// return it.
func TestOpenAPIShowsEveryProblem(t *testing.T) {
	doc := loadOpenAPI(t)
	for _, p := range problems(t) {
		if p.code == invalid.code {
			continue // its message depends on the request: see TestOpenAPIHasAllDetailsOfParameters
		}
		if !slices.Contains(contractCodes[p.code], p.status) {
			t.Errorf("%d %s is not in the contract", p.status, p.code)
		}
		if p.status == 404 || p.status == 405 {
			continue // of other paths and methods
		}
		r := doc.Paths.Value("/v1/items").Get.Responses.Status(p.status)
		if r == nil {
			t.Errorf("%d %s: no such response", p.status, p.code)
			continue
		}
		if !slices.ContainsFunc(errorsOf(r.Value), func(e map[string]any) bool { return e["code"] == p.code && e["message"] == p.message }) {
			t.Errorf("%d %s %q: not among the examples", p.status, p.code, p.message)
		}
	}
}

// Every example of an error is one that the service has.
func TestOpenAPIShowsOnlyProblems(t *testing.T) {
	had := map[string]bool{}
	for _, p := range problems(t) {
		had[p.code+": "+p.message] = true
	}
	for name, r := range loadOpenAPI(t).Components.Responses {
		media := r.Value.Content.Get("application/json")
		if media == nil || strings.Contains(media.Schema.Ref, "Page") {
			continue
		}
		for _, e := range errorsOf(r.Value) {
			if said := fmt.Sprintf("%s: %s", e["code"], e["message"]); !had[said] && e["code"] != invalid.code {
				t.Errorf("%s: nothing answers %s", name, said)
			}
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

	// The table in the description has the problems of the code.
	want := map[string]bool{}
	for _, p := range problems(t) {
		want[fmt.Sprintf("| %d | `%s` |", p.status, p.code)] = true
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| \\d+ \\| `[A-Z_]+` \\|").FindAllString(doc.Info.Description, -1) {
		documented[row] = true
	}
	if !maps.Equal(documented, want) {
		t.Errorf("the description's table has %v, the code %v", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(want)))
	}
}

// Errors of HTTP and failures of the service may end any request.
func TestOpenAPIResponsesOfTheDocs(t *testing.T) {
	doc := loadOpenAPI(t)
	want := []string{"200", "304", "400", "408", "413", "429", "431", "500", "503", "505"}
	for _, path := range []string{openAPIPath, docsPath} {
		responses := doc.Paths.Value(path).Get.Responses.Map()
		if got := slices.Sorted(maps.Keys(responses)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// Examples show every text of the parser.
func TestOpenAPIShowsEveryDetail(t *testing.T) {
	shown := map[string]bool{}
	for name, example := range loadOpenAPI(t).Components.Responses["BadRequest"].Value.Content.Get("application/json").Examples {
		answer := example.Value.Value.(map[string]any)["error"].(map[string]any)
		details, _ := answer["details"].(map[string]any)
		if invalid := answer["code"] == invalid.code; invalid != (len(details) > 0) {
			t.Errorf("%s: %v", name, answer)
		}
		for _, why := range details {
			shown[why.(string)] = true
		}
	}
	source := must(os.ReadFile("request.go"))
	texts := regexp.MustCompile(`"((?:must|is|belongs) [^"]+[^ "])"`).FindAllStringSubmatch(string(source), -1)
	if len(texts) < 8 {
		t.Fatalf("only %d texts found", len(texts))
	}
	for _, m := range texts {
		if !shown[m[1]] {
			t.Errorf("no example has %q", m[1])
		}
	}
}
