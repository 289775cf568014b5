package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the documents say is there: each test and benchmark they have the reader
// run, each file, and each flag. (The README's files and flags: readme_test.go.)
func TestDocumentsNameWhatIsThere(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(documents) < 3 {
		t.Fatal(documents, err)
	}
	flags := "--print-config" + helpOf(t, "serve", "dev", "doctor", "bench", "keys create")
	for _, document := range documents {
		b, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "`bin/`", "") // which make makes
		namesTests(t, document, text)
		namesFiles(t, document, text)
		namesFlags(t, document, text, flags)
	}
	readme, text := readme(t)
	namesTests(t, readme, text)
}

// What prose says to run, somewhere in a sentence or a comment, is a command
// with such flags.
func TestCommandsInProseAreThere(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://localhost/x")
	root := filepath.Join("..", "..")
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, document := range append(documents, filepath.Join(root, "README.md"), filepath.Join(root, "deploy", "RUNBOOK.md"), filepath.Join(root, "deploy", "Dockerfile")) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(?:[^`]*/)?listedge ([a-z][^`|)]*)").FindAllStringSubmatch(string(text), -1) {
			tried++
			parser, _ := newParser(&cli{}, &bytes.Buffer{}, &bytes.Buffer{})
			words := strings.Fields(strings.NewReplacer("ID", "00000000-0000-0000-0000-000000000001", "# ", "").Replace(m[1]))
			// A sentence may leave out what a command cannot do without.
			if _, err := parser.Parse(words); err != nil && !strings.HasPrefix(err.Error(), "expected ") && !strings.HasPrefix(err.Error(), "missing flags") {
				t.Errorf("%s: listedge %s: %v", document, m[1], err)
			}
		}
	}
	if tried < 15 {
		t.Errorf("only %d found", tried)
	}
}

// helpOf is what the commands say of themselves.
func helpOf(t *testing.T, commands ...string) (help string) {
	t.Helper()
	for _, c := range commands {
		help += command(t, append(strings.Fields(c), "--help")...)
	}
	return help
}

func namesFiles(t *testing.T, document, text string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`((?:[a-z_]+/)+[A-Za-z_.]*)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("..", "..", m[1])); err != nil {
			t.Errorf("%s: %s is not there", document, m[1])
		}
	}
}

func namesFlags(t *testing.T, document, text, flags string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`(--[a-z-]+)[ `]").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(flags, m[1]) {
			t.Errorf("%s: %s is no flag", document, m[1])
		}
	}
}

// namesTests looks at each `go test`: what it selects by name must be there.
func namesTests(t *testing.T, document, text string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`go (-C deploy )?test ([^`]*)`").FindAllStringSubmatch(text, -1) {
		arguments := strings.Fields(strings.ReplaceAll(m[2], "'", ""))
		if slices.Contains(arguments, "-update") {
			continue
		}
		root := filepath.Join("..", "..")
		if m[1] != "" {
			root = filepath.Join(root, "deploy")
		}
		var folders []string
		for _, a := range arguments {
			if a == "." || strings.HasPrefix(a, "./") {
				folders = append(folders, filepath.Join(root, a))
			}
		}
		for _, pattern := range regexp.MustCompile(`-(?:run|bench) (\S+)`).FindAllStringSubmatch(strings.Join(arguments, " "), -1) {
			for _, name := range strings.Split(pattern[1], "|") {
				if name != "^$" && !slices.ContainsFunc(folders, func(folder string) bool { return declares(t, folder, name) }) {
					t.Errorf("%s: no test is called %q in %v", document, name, folders)
				}
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
