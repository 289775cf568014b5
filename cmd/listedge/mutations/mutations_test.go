//go:build mutations

package mutations

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A test that never fails shows nothing. Here each rule of the product is broken once, and its
// test must fail. The table names the declaration, the text in it and what replaces the text:
//
//	never("cache/replica: Replica.merge", "!r.covers(&f.At)")
//
// The text stands exactly once in the declaration. So code may move, and a mutation that no
// longer applies is an error.
//
//	make mutations ONLY='Mutations/^limiter$'    breaks those that a test of the package must notice, a line each
//	make mutations DRY=1                         checks in a second that every mutation still applies

var dry = flag.Bool("dry", false, "only check that each mutation applies and that its test exists")

// mutation is a rule broken, and the test that must notice.
type mutation struct {
	name, test string
	edits      edits
}

func TestMutations(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range mutations {
		t.Run(strings.ReplaceAll(group.pkg, "/", "."), func(t *testing.T) {
			for _, m := range group.of {
				t.Run(m.name, func(t *testing.T) {
					overlay := m.overlay(t, root)
					if !*dry {
						m.mustFail(t, filepath.Join(root, group.pkg), overlay)
					} else if exec.Command("grep", "-rqE", `^func `+m.test+`\(`, filepath.Join(root, group.pkg), "--include=*_test.go").Run() != nil {
						t.Errorf("%s has no test %s", group.pkg, m.test)
					}
				})
			}
		})
	}
}

// mustFail runs the test on the broken code.
func (m mutation) mustFail(t *testing.T, folder, overlay string) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	c := exec.CommandContext(ctx, "go", "test", "-count=1", "-tags", "mutations", "-run", "^"+m.test+"$", ".")
	c.Dir = folder
	c.Env = append(os.Environ(), "GOFLAGS=-trimpath -overlay="+overlay) // which the test's own `go build` obeys, too
	out, err := c.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("%s survived\n%s", m.name, out)
	case !strings.Contains(string(out), "--- FAIL: "+m.test) && !strings.Contains("\n"+string(out), "\npanic: "): // a build that fails has none
		t.Errorf("%s did not get as far as the test\n%s", m.name, out)
	default:
		fmt.Printf("%3.0f s  %-60s %.120s\n", time.Since(began).Seconds(), m.name, why(folder, string(out)))
	}
}

// said is a line that a test printed, and where.
var said = regexp.MustCompile(`(?m)^ +(\w+_test\.go):(\d+): .*$`)

// why is the first error that the tests in the folder printed.
func why(folder, out string) string {
	for _, m := range said.FindAllStringSubmatch(out, -1) {
		source, err := os.ReadFile(filepath.Join(folder, m[1]))
		n, _ := strconv.Atoi(m[2])
		if lines := strings.Split(string(source), "\n"); err == nil && n <= len(lines) && !strings.Contains(lines[n-1], ".Log") {
			return strings.TrimSpace(m[0])
		}
	}
	return "it ended"
}

// overlay changes copies of the files and returns what go's option of this name reads.
func (m mutation) overlay(t *testing.T, root string) (file string) {
	t.Helper()
	changed := map[string]string{} // texts by files
	for _, e := range m.edits {
		e.apply(t, root, changed)
	}
	replace := map[string]string{}
	for file, text := range changed {
		replace[file] = filepath.Join(t.TempDir(), filepath.Base(file))
		if err := os.WriteFile(replace[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	file = filepath.Join(t.TempDir(), "overlay.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// apply edits the declaration or the file that the edit names.
func (e edit) apply(t *testing.T, root string, changed map[string]string) {
	t.Helper()
	text := func(file string) string {
		if already, ok := changed[file]; ok {
			return already
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(source)
	}
	file, begin, end := filepath.Join(root, e.in), 0, -1
	if folder, name, ok := strings.Cut(e.in, ": "); ok {
		candidates, _ := filepath.Glob(filepath.Join(root, folder, "*.go"))
		n := 0
		for _, candidate := range candidates {
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, candidate, text(candidate), parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range declarations(tree) {
				if d.name == name {
					n, file, begin, end = n+1, candidate, set.Position(d.node.Pos()).Offset, set.Position(d.node.End()).Offset
				}
			}
		}
		if n != 1 {
			t.Fatalf("does not apply: %d declarations are %s", n, e.in)
		}
	}
	source := text(file)
	if end < 0 {
		end = len(source)
	}
	if n := strings.Count(source[begin:end], e.old); n != 1 || e.new == e.old {
		t.Fatalf("does not apply: %s has %d of %q", e.in, n, e.old)
	}
	changed[file] = source[:begin] + strings.Replace(source[begin:end], e.old, e.new, 1) + source[end:]
}

type declaration struct {
	name string // of a function, "Type.method", of a constant or of a variable
	node ast.Node
}

func declarations(tree *ast.File) (found []declaration) {
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				receiver, _, _ := strings.Cut(types.ExprString(d.Recv.List[0].Type), "[")
				name = strings.TrimPrefix(receiver, "*") + "." + name
			}
			found = append(found, declaration{name, d})
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					found = append(found, declaration{v.Names[0].Name, v})
				}
			}
		}
	}
	return found
}
