package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/parser"

	"listedge/internal/sandbox/sandboxtest"
)

func TestEveryAlertHasItsSectionInTheRunbook(t *testing.T) {
	var alerts []string
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if want := "{{ $externalURL }}/user/runbook.html#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s sends people to %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
	}
	if sections := find(t, "RUNBOOK.md", `(?m)^## (Listedge\w+)$`); !slices.Equal(sections, alerts) {
		t.Errorf("sections %v\nalerts   %v", sections, alerts)
	}
	for _, name := range find(t, "RUNBOOK.md", `\b(Listedge[A-Z]\w+)`) {
		if !slices.Contains(alerts, name) {
			t.Errorf("the runbook speaks of %s, which is no alert", name)
		}
	}
}

// Nobody should find out at night that a command does not exist. Each has to
// succeed on a fleet that is well, and to print something.
func TestTheRunbooksCommandsWork(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
	ours := must1(program())
	links := map[string]string{"listedge": ours}
	if _, err := exec.LookPath("redis-cli"); err != nil { // distributions with Valkey in its place
		links["redis-cli"] = tool("valkey-cli")
	}
	tools := sandboxtest.Dir(t)
	for name, path := range links {
		must(os.Symlink(path, filepath.Join(tools, name)))
	}
	env := append(os.Environ(), f.env...)
	env = append(env, "PATH="+tools+":"+os.Getenv("PATH")+":"+f.postgres.Bin,
		"NODE="+f.nodes[0].admin, "NODES="+f.nodes[0].admin+" "+f.nodes[1].admin)
	tried := 0
	for _, block := range find(t, "RUNBOOK.md", "(?ms)^```sh\n(.*?)^```$") {
		for line := range strings.Lines(block) {
			cmd := exec.Command("/bin/sh", "-euc", line)
			cmd.Env = env
			said, err := cmd.CombinedOutput()
			if err != nil || (len(said) == 0 && !strings.Contains(line, "slowlog") && !strings.Contains(line, "|| true")) {
				t.Errorf("%s%v\n%s", line, err, said)
			}
			tried++
		}
	}
	if tried < 20 {
		t.Errorf("only %d commands found", tried)
	}
	// A flag or a metric that the prose speaks of is there, too.
	flags := listedge(t, nil, "serve", "--help")
	for _, name := range find(t, "RUNBOOK.md", "`(--[a-z-]+)") {
		if !regexp.MustCompile(name + `[= ]`).MatchString(flags) {
			t.Errorf("%s is no flag", name)
		}
	}
	_, metrics, err := get("http://"+f.nodes[0].admin+"/metrics", "")
	must(err)
	for _, pattern := range find(t, "RUNBOOK.md", `\^(listedge_\w*\([\w|]+\))`) { // of several names, grep finds some
		begins, names, _ := strings.Cut(strings.TrimSuffix(pattern, ")"), "(")
		for name := range strings.SplitSeq(names, "|") {
			if !strings.Contains(string(metrics), "\n"+begins+name) {
				t.Errorf("%s%s is no metric", begins, name)
			}
		}
	}
}

// runbookPage is the runbook as every node serves it: see edge/admin/admin.go.
const runbookPage = "../edge/admin/runbook.html"

// Whoever is woken reads it in a browser, from a node or from Prometheus. Names of
// alerts in it are links.
func TestTheRunbooksPageIsTheRunbook(t *testing.T) {
	source := must1(os.ReadFile("RUNBOOK.md"))
	var alerts []string
	for _, r := range rules(t) {
		if r.Alert != "" {
			alerts = append(alerts, r.Alert)
		}
	}
	slices.SortFunc(alerts, func(a, b string) int { return len(b) - len(a) }) // ListedgeRedisDown before its beginning
	linked := []string{}
	for _, name := range alerts {
		linked = append(linked, name, `<a href="#`+strings.ToLower(name)+`">`+name+`</a>`)
	}
	var text bytes.Buffer
	must(goldmark.New(goldmark.WithParserOptions(parser.WithAutoHeadingID())).Convert(source, &text))
	kept := string(must1(os.ReadFile(runbookPage)))
	head, _, _ := strings.Cut(kept, "<body>\n") // which is edited there
	made := head + "<body>\n"
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "<h2") {
			line = strings.NewReplacer(linked...).Replace(line)
		}
		made += line
	}
	made += "</body>\n</html>\n"
	if *update {
		must(os.WriteFile(runbookPage, []byte(made), 0o644))
	}
	if kept != made && !*update {
		t.Errorf("%s is not what RUNBOOK.md makes; run with -update", runbookPage)
	}
	for _, name := range alerts {
		if !strings.Contains(made, `<h2 id="`+strings.ToLower(name)+`">`+name+`</h2>`) {
			t.Errorf("the page has no section %s", name)
		}
	}
}
