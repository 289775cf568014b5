package edge_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// finish adds the headers of every response, and nothing else passes a response to fasthttp: a
// header for all is one line there. readAnswer and read check these headers in every test.
func TestAllWritersOfResponses(t *testing.T) {
	writers := map[string][]string{}
	files, _ := filepath.Glob("*.go")
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				f, inFunction := d.(*ast.FuncDecl)
				switch is := n.(type) {
				case *ast.SelectorExpr:
					if inFunction {
						writers[is.Sel.Name] = append(writers[is.Sel.Name], f.Name.Name)
					}
				case *ast.BasicLit:
					if strings.HasPrefix(is.Value, `"HTTP/1.1 `) {
						t.Errorf("%s writes a status line", file)
					}
				}
				return true
			})
		}
	}
	for method, want := range map[string][]string{
		"start":         {"serve", "writePage", "writeProblem"},
		"passTo":        {"finish"},
		"SetBodyStream": {"passTo"},
		"SetStatusCode": {"passTo"},
		"SetBody":       nil,
	} {
		if got := slices.Sorted(slices.Values(writers[method])); !slices.Equal(got, want) {
			t.Errorf("%s is called by %v, want %v", method, got, want)
		}
	}
}
