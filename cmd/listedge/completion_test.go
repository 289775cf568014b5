package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// words are the first column of the completions.
func words(t *testing.T, line ...string) (all []string) {
	t.Helper()
	for offer := range strings.Lines(command(t, append([]string{"complete", "--"}, line...)...)) {
		word, _, _ := strings.Cut(strings.TrimSuffix(offer, "\n"), "\t")
		all = append(all, word)
	}
	return all
}

func TestCompletionsOfTheLastWord(t *testing.T) {
	for line, want := range map[string]string{
		"ser":                                 "serve",
		"serve --log-":                        "--log-format --log-level",
		"serve --log-format ":                 "text json",
		"serve --log-format=j":                "--log-format=json",
		"serve --log-level w":                 "warn",
		"serve --limiter-failure-mode ":       "local allow deny",
		"serve --server-timing --log-format ": "text json", // a flag that takes no value
		"serve --listen=:80 --log-format t":   "text",
		"serve --listen keys --log-format t":  "text", // a value is not taken for a command
		"keys ":                               "create list show update rotate revoke",
		"keys cr":                             "create",
		"keys create --expires":               "--expires-in",
		"--config a.yaml mig":                 "migrate",
		"import ":                             "items contacts",
		"import items ":                       "", // a file, which the shell completes
		"import items a.csv --work":           "--workspace",
		"serve --listen ":                     "",
		"serve --none=":                       "",
		"com":                                 "completion", // not the hidden command that scripts use
		"nothing ":                            strings.Join(words(t, ""), " "),
		"":                                    strings.Join(words(t, ""), " "),
	} {
		if got := strings.Join(words(t, strings.Split(line, " ")...), " "); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if all := words(t, ""); !slices.Contains(all, "serve") || slices.Contains(all, "complete") || len(words(t)) != 0 {
		t.Error(all)
	}
	if all := words(t, "serve", "--"); !slices.Contains(all, "--freshness-bound") || !slices.Contains(all, "--help") || !slices.Contains(all, "--config") {
		t.Error(all)
	}
}

// Each shell completes with its script. For bash the test calls the script's function with
// the words of the line; zsh and fish complete the line themselves.
var shells = map[string]string{
	"bash": `
source <(listedge completion bash)
complete -p listedge | grep -q -- '-F _listedge' || exit 1
try() { COMP_LINE=$1; COMP_POINT=${#1}; _listedge listedge "${1##*[ =:]}"; echo "${COMPREPLY[@]}"; }
try 'listedge ser'
try 'listedge serve --log-f'
try 'listedge serve --database-url postgres://a:5/b --log-format j'
try 'listedge serve --log-format=j'
try 'listedge serve --log-format '
try 'listedge import items '`,
	"zsh": `
autoload -U compinit; compinit -uD
source <(listedge completion zsh)
_describe() { local -a words=("${(@P)2}"); print -- "${(@)words%%:*}" }
_files() { print }
try() { words=("$@"); CURRENT=$#; PREFIX=${@[-1]}; _listedge; }
try listedge ser
try listedge serve --log-f
try listedge serve --log-format j
try listedge serve --log-format=j | sed 's/.*=//'
try listedge serve --log-format ""
try listedge import items ""`,
	"fish": `
listedge completion fish | source
function try; complete -C "$argv" | string replace -r '\t.*' '' | string join ' '; end
try 'listedge ser'
try 'listedge serve --log-f'
try 'listedge serve --log-format j'
try 'listedge serve --log-format=j' | string replace -r '.*=' ''
try 'listedge serve --log-format '
try 'listedge import items '; or echo`,
}

func TestShellsComplete(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	here := t.TempDir()
	if err := os.Symlink(program, filepath.Join(here, "listedge")); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for shell, script := range shells {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // bash is on every machine that can run the installer
		}
		tried++
		cmd := exec.CommandContext(t.Context(), path, "-c", script)
		cmd.Dir = t.TempDir() // without files to offer
		cmd.Env = append(os.Environ(), beListedge+"=1", "HOME="+here, "PATH="+here+":"+os.Getenv("PATH"))
		said, err := cmd.CombinedOutput()
		if want := "serve\n--log-format\njson\njson\njson text\n\n"; err != nil || strings.NewReplacer(" \n", "\n", "text json", "json text").Replace(string(said)) != want {
			t.Errorf("%s: %q, want %q: %v", shell, said, want, err)
		}
	}
	if tried == 0 {
		t.Error("no shell was tried")
	}
}
