package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write the README's table of flags")

const (
	tableBegin = "writes this table -->\n"
	tableEnd   = "<!-- /flags -->"
)

func readme(t *testing.T) (file, text string) {
	t.Helper()
	file = filepath.Join("..", "..", "README.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, string(b)
}

func TestREADMEHasTheFlags(t *testing.T) {
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
	file, text := readme(t)
	before, rest, ok1 := strings.Cut(text, tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatal("the README has no place for the table")
	}
	want := before + tableBegin + table + tableEnd + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != want {
		t.Error("the README's table of flags is not that of the program; run with -update")
	}
}

// Commands, targets and files that the README names must exist.
func TestREADMENamesWhatIsThere(t *testing.T) {
	_, text := readme(t)
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z]+)").FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
			t.Errorf("make %s is no target", m[1])
		}
	}
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://localhost/x")
	commands := regexp.MustCompile(`(?m)^listedge ([^#\n]*)`).FindAllStringSubmatch(text, -1)
	for _, m := range commands {
		var c cli
		parser, _ := newParser(&c, &bytes.Buffer{}, &bytes.Buffer{})
		line := strings.NewReplacer("ID", "00000000-0000-0000-0000-000000000001", `"`, "").Replace(m[1])
		if _, err := parser.Parse(strings.Fields(line)); err != nil {
			t.Errorf("listedge %s: %v", m[1], err)
		}
	}
	if len(commands) < 5 {
		t.Errorf("only %d commands found", len(commands))
	}
	namesFiles(t, "README.md", text)
	namesFlags(t, "README.md", text, helpOf(t, "serve", "dev"))
}
