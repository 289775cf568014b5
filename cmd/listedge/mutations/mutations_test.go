//go:build mutations

package mutations

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A test that never fails shows nothing. Here each rule of the product is broken once, and its
// test must fail. The source names a mutation at the end of the line that it changes, or above
// the line. Several names are separated by semicolons:
//
//	for n < len(reads) && after.Compare(reads[n].end) > 0 { // mutation: any heartbeat is a proof
//
//	make mutations ONLY='Mutations/^limiter$'    breaks those that a test of the package must notice, a line each
//	make mutations DRY=1                         checks in a second that every mutation still applies

var dry = flag.Bool("dry", false, "only check that each mutation applies and that its test exists")

// mutation is a rule broken, and the test that must notice.
type mutation struct {
	name string // as the source has it
	how  change
	test string
}

func TestMutations(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	places := marked(t, root)
	unknown := map[string]bool{}
	for name := range places {
		unknown[name] = true
	}
	for _, group := range mutations {
		for _, m := range group.of {
			delete(unknown, m.name)
		}
		t.Run(strings.ReplaceAll(group.pkg, "/", "."), func(t *testing.T) {
			for _, m := range group.of {
				t.Run(m.name, func(t *testing.T) {
					overlay := m.overlay(t, places[m.name])
					if !*dry {
						m.mustFail(t, filepath.Join(root, group.pkg), overlay)
					} else if exec.Command("grep", "-rqE", `^func `+m.test+`\(`, filepath.Join(root, group.pkg), "--include=*_test.go").Run() != nil {
						t.Errorf("%s has no test %s", group.pkg, m.test)
					}
				})
			}
		})
	}
	for name := range unknown {
		t.Errorf("%s has a mutation that is not in the table: %s", places[name][0].file, name)
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
	case !strings.Contains(string(out), "--- FAIL: "+m.test):
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

// place is a line of the source that a mutation changes.
type place struct {
	file string
	line int    // from 0
	code string // the line without its comment
}

var (
	mark    = regexp.MustCompile(`^(.*?)\s*(?://|--) (?:.*; )?mutation: (.*)$`)
	comment = regexp.MustCompile(` // .*$`)
)

// marked are the lines that the source marks, by the names of mutations.
func marked(t *testing.T, root string) map[string][]place {
	t.Helper()
	found := map[string][]place{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".sql", ".lua"}, filepath.Ext(file)) || strings.Contains(file, "/mutations/") {
			return err
		}
		text, err := os.ReadFile(file)
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			m := mark.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			at := place{file, i, m[1]}
			if m[1] == "" {
				at = place{file, i + 1, comment.ReplaceAllString(lines[i+1], "")}
			}
			for _, name := range strings.Split(m[2], "; ") {
				found[name] = append(found[name], at)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// overlay changes copies of the files and returns what go's option of this name reads.
func (m mutation) overlay(t *testing.T, places []place) (file string) {
	t.Helper()
	if len(places) == 0 {
		t.Fatal("the source does not name it")
	}
	code := make([]string, len(places))
	for i, p := range places {
		code[i] = p.code
	}
	m.how(code)
	files, replace := map[string][]string{}, map[string]string{}
	for i, p := range places {
		if code[i] == p.code {
			t.Errorf("does not apply to %s:%d: %s", p.file, p.line+1, p.code)
		}
		if files[p.file] == nil {
			text, err := os.ReadFile(p.file)
			if err != nil {
				t.Fatal(err)
			}
			files[p.file], replace[p.file] = strings.Split(string(text), "\n"), filepath.Join(t.TempDir(), filepath.Base(p.file))
		}
		files[p.file][p.line] = code[i]
	}
	for name, lines := range files {
		if err := os.WriteFile(replace[name], []byte(strings.Join(lines, "\n")), 0o600); err != nil {
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
