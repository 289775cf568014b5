package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the documents say is there: each test and benchmark they have the reader
// run, each file, and each flag.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(documents) < 3 {
		t.Fatal(documents, err)
	}
	flags := ""
	for _, of := range [][]string{{"serve"}, {"dev"}, {"doctor"}, {"bench"}, {"keys", "create"}} {
		flags += command(t, append(of, "--help")...)
	}
	flags += "--print-config"
	for _, document := range append(documents, filepath.Join("..", "..", "README.md")) {
		b, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, m := range regexp.MustCompile("`go (-C deploy )?test ([^`]*)`").FindAllStringSubmatch(text, -1) {
			arguments := strings.Fields(strings.ReplaceAll(m[2], "'", ""))
			if slices.Contains(arguments, "-update") {
				continue
			}
			folder := filepath.Join("..", "..")
			if m[1] != "" {
				folder = filepath.Join(folder, "deploy")
			}
			for _, pattern := range regexp.MustCompile(`-(?:run|bench) (\S+)`).FindAllStringSubmatch(strings.Join(arguments, " "), -1) {
				var packages []string
				for _, a := range arguments {
					if a == "." || strings.HasPrefix(a, "./") {
						packages = append(packages, a)
					}
				}
				if pattern[1] == "^$" {
					continue
				}
				for _, alternative := range strings.Split(pattern[1], "|") {
					found := false
					for _, p := range packages {
						found = found || declares(t, filepath.Join(folder, p), alternative)
					}
					if !found {
						t.Errorf("%s: no test is called %q in %v", document, alternative, packages)
					}
				}
			}
		}
		for _, m := range regexp.MustCompile("`((?:[a-z_]+/)+[A-Za-z_.]*)`").FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", "..", m[1])); err != nil && m[1] != "bin/" { // which make makes
				t.Errorf("%s: %s is not there", document, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`(--[a-z-]+)[ `]").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(flags, m[1]) {
				t.Errorf("%s: %s is no flag", document, m[1])
			}
		}
	}
}

// declares says whether a package has a test or a benchmark of such a name.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	out, err := exec.Command("grep", "-rhoE", `^func (Test|Benchmark)\w*`, folder, "--include=*_test.go").Output()
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(strings.TrimSpace(line), name) {
			return true
		}
	}
	return false
}
