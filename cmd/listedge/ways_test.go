package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The four ways of CONTRIBUTING.md are how somebody new reads the code. Each is a
// table of files; each file exists and is named once, and the way is short.
func TestWaysThroughTheCode(t *testing.T) {
	for _, way := range []struct {
		name string
		most int // files
	}{
		{"A hit", 15},
		{"A limit decision", 9},
		{"A change", 10},
		{"A miss", 25},
	} {
		t.Run(way.name, func(t *testing.T) {
			_, section, ok := strings.Cut(contents(t, "CONTRIBUTING.md"), "\n### "+way.name+"\n")
			if !ok {
				t.Fatalf("CONTRIBUTING.md has no section %q", "### "+way.name)
			}
			section = regexp.MustCompile(`(?m)^##`).Split(section, 2)[0]
			if want := fmt.Sprintf("\nAt most %d files.\n", way.most); !strings.Contains(section, want) {
				t.Errorf("the section does not say %q", strings.TrimSpace(want))
			}
			seen := map[string]bool{}
			for _, row := range regexp.MustCompile("(?m)^\\| `([^`]*)` \\|(.*)\\|$").FindAllStringSubmatch(section, -1) {
				file, what := row[1], strings.TrimSpace(row[2])
				switch {
				case seen[file]:
					t.Errorf("%s is named twice", file)
				case !exists(file):
					t.Errorf("%s does not exist: name the file that took over its part, or remove the row", file)
				case what == "":
					t.Errorf("%s: say what happens there", file)
				}
				seen[file] = true
			}
			if rows := strings.Count(section, "\n| `"); rows != len(seen) {
				t.Errorf("%d rows begin with a file, %d can be read: a row is | `file` | what happens |", rows, len(seen))
			}
			if len(seen) < 2 || len(seen) > way.most {
				t.Errorf("%d files are named; a way has 2 to %d", len(seen), way.most)
			}
		})
	}
}
