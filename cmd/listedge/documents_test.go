package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// The documents are tested like code: each command, flag, file, target and test
// that they name exists. (The README's and the tutorial's commands are run by
// the tests of deploy/.)

var update = flag.Bool("update", false, "write the table of flags of docs/CONFIGURATION.md")

const (
	tableBegin = "writes this table -->\n"
	tableEnd   = "<!-- /flags -->"
)

// contents reads a file of the repository, by its path from the root.
func contents(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestConfigurationHasTheFlags(t *testing.T) {
	parser, _ := newParser(&cli{}, &bytes.Buffer{}, &bytes.Buffer{})
	var serve *kong.Node
	for _, command := range parser.Model.Children {
		if command.Name == "serve" {
			serve = command
		}
	}
	table := "\n| flag | default | |\n|---|---|---|\n"
	for _, f := range serve.Flags {
		if f.Name == "help" {
			continue
		}
		fallback := "`" + f.Default + "`"
		if f.Default == "" {
			fallback = "–"
		}
		if f.Required {
			fallback = "required"
		}
		table += fmt.Sprintf("| `--%s` | %s | %s |\n", f.Name, fallback, f.Help)
	}
	table += "\n"
	const file = "docs/CONFIGURATION.md"
	text := contents(t, file)
	before, rest, ok1 := strings.Cut(text, tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := before + tableBegin + table + tableEnd + after
	if *update {
		if err := os.WriteFile(filepath.Join("..", "..", file), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != want {
		t.Errorf("the table of flags in %s is not that of the program; run with -update", file)
	}
}

// The README stays short enough to be read at once.
func TestREADMEIsShort(t *testing.T) {
	const most = 1200
	if n := len(strings.Fields(contents(t, "README.md"))); n > most {
		t.Errorf("the README has %d words; at most %d: move what is not for everybody to docs/", n, most)
	}
}

// The README has the ratios, the figure, the versions and the machine of the last report.
func TestREADMEHasWhatTheReportSays(t *testing.T) {
	readme, report := contents(t, "README.md"), contents(t, "bench/report.md")
	find := func(pattern string) []string {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(readme)
		if found == nil {
			t.Fatalf("the README has no %s", pattern)
		}
		return found
	}
	has := func(pattern string) {
		t.Helper()
		if !regexp.MustCompile(pattern).MatchString(report) {
			t.Errorf("bench/report.md does not have %s", pattern)
		}
	}
	for _, encoding := range []string{"identity", "gzip"} {
		row := find(`(?m)^\| ` + encoding + `, [0-9]+ kB \| ([0-9.]+) × \| ([0-9.]+) × \|$`)
		for i, other := range []string{"nginx with Lua, Redis and proxy_cache", "Varnish, no key, no limit"} {
			has(`(?m)^\| memory hit, 50 items, ` + encoding + `: CPU per request, µs, against ` +
				other + ` \| [0-9.]+ \| [0-9.]+ \| ` + regexp.QuoteMeta(row[i+1]) + ` \|`)
		}
	}
	versions := find(`of nginx ([0-9.]+) \+ Lua \+ Redis ([0-9.]+) \| of [^|]*?([0-9.]+), without`)
	for i, name := range []string{"nginx/", "Redis server v=", "(?:varnish|vinyl-cache)-"} {
		has(name + regexp.QuoteMeta(versions[i+1]) + `\s`)
	}
	figure := find(`(?s)of 50 items costs ([0-9.]+) µs of CPU.*?\(([^,]+),\s` + "`make bench ONLY=opponents`")
	has(`(?m)^\| memory hit, 50 items, identity: CPU per request, µs, against bare handler \| ` + regexp.QuoteMeta(figure[1]) + ` \|`)
	has(`(?m)^processors +` + regexp.QuoteMeta(figure[2]) + `$`)
}

// documents are those for people, by their paths from the root.
func documents(t *testing.T) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(found) < 5 {
		t.Fatal(found, err)
	}
	for _, file := range found {
		names = append(names, "docs/"+filepath.Base(file))
	}
	return append(names, "docs/clients/README.md", "README.md", "CONTRIBUTING.md", "SECURITY.md")
}

func TestDocumentsNameWhatExists(t *testing.T) {
	flags := "--print-config" + helpOf(t, "serve", "dev", "doctor", "keys create", "keys import", "keys list", "usage", "migrate grants",
		"migrate remove", "purge",
		"workspaces create", "workspaces update", "lists plan", "explain")
	makefile := contents(t, "Makefile")
	for _, name := range documents(t) {
		t.Run(name, func(t *testing.T) {
			text := strings.NewReplacer("`bin/listedge`", "", "`bin/`", "").Replace(contents(t, name)) // which make makes
			namesTests(t, text)
			namesFiles(t, path.Dir(name), text)
			namesFlags(t, text, flags)
			namesTargets(t, text, makefile)
		})
	}
}

// Commands in a sentence or a comment may lack what they require; those in a
// block for the shell may not.
func TestDocumentsNameCommandsThatParse(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://localhost/x")
	inProse := regexp.MustCompile("`(?:[^`]*/)?listedge ([a-z][^`|)]*)")
	inBlock := regexp.MustCompile(`(?m)^listedge ([^#\n]*)`)
	parse := func(line string) error {
		parser, _ := newParser(&cli{}, &bytes.Buffer{}, &bytes.Buffer{})
		_, err := parser.Parse(strings.Fields(strings.NewReplacer("ID", "00000000-0000-0000-0000-000000000001", "# ", "", `"`, "").Replace(line)))
		return err
	}
	tried := 0
	for _, name := range append(documents(t), "deploy/RUNBOOK.md", "deploy/Dockerfile") {
		text := contents(t, name)
		for _, m := range inProse.FindAllStringSubmatch(text, -1) {
			tried++
			err := parse(m[1])
			if err != nil && !regexp.MustCompile(`^expected |^missing flags|--lists: open `).MatchString(err.Error()) {
				t.Errorf("%s: listedge %s: %v", name, m[1], err)
			}
		}
		if name != "README.md" {
			continue
		}
		for _, m := range inBlock.FindAllStringSubmatch(text, -1) {
			tried++
			if err := parse(m[1]); err != nil {
				t.Errorf("%s: listedge %s: %v", name, m[1], err)
			}
		}
	}
	if tried < 25 {
		t.Errorf("only %d commands found", tried)
	}
}

// helpOf returns the help texts of the commands.
func helpOf(t *testing.T, commands ...string) (help string) {
	t.Helper()
	for _, c := range commands {
		help += command(t, append(strings.Fields(c), "--help")...)
	}
	return help
}

func namesTargets(t *testing.T, text, makefile string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
			t.Errorf("make %s is no target", m[1])
		}
	}
}

// namesFiles looks at each file that a document in folder names: from the root, or from there.
func namesFiles(t *testing.T, folder, text string) {
	t.Helper()
	files := regexp.MustCompile("`((?:[a-z_]+/)+[A-Za-z_.]*)`").FindAllStringSubmatch(text, -1)
	files = append(files, regexp.MustCompile(`\]\(([A-Za-z_./-]+)\)`).FindAllStringSubmatch(text, -1)...)
	for _, m := range files {
		if !exists(m[1]) && !exists(path.Join(folder, m[1])) {
			t.Errorf("%s does not exist", m[1])
		}
	}
}

// exists reports whether the path, from the root, is a file or a folder.
func exists(name string) bool {
	_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(name)))
	return err == nil
}

func namesFlags(t *testing.T, text, flags string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`(--[a-z-]+)[ `]").FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(m[1], "--set") && !strings.Contains(flags, m[1]) { // Helm's
			t.Errorf("%s is no flag", m[1])
		}
	}
}

// namesTests looks at each `go test`: what it selects by name must be there.
func namesTests(t *testing.T, text string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`go (-C deploy )?test ([^`]*)`").FindAllStringSubmatch(text, -1) {
		arguments := strings.Fields(strings.NewReplacer("'", "", `\|`, "|").Replace(m[2])) // as a table has to write it
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
					t.Errorf("no test is called %q in %v", name, folders)
				}
			}
		}
	}
}

// declares reports whether a package has a test or a benchmark whose name matches.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("grep", append([]string{"-hoE", `^func (Test|Benchmark)\w*`, os.DevNull}, files...)...).Output()
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
