package deploy_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/parser"
)

// runbookPage is the runbook as every node serves it: see edge/admin/admin.go.
const runbookPage = "../edge/admin/runbook.html"

// runbookHead begins the page, whose text follows it.
const runbookHead = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Runbook – listedge</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; --ground: #f4f6f8; --text: #1b2430; --quiet: #566273; --line: #e1e6ec; --code: #e9edf2; --ink: #2459a8;
    font: 16px/1.5 system-ui, sans-serif; }
  @media (prefers-color-scheme: dark) { :root { --ground: #0e1319; --text: #e3e9f1; --quiet: #98a5b6; --line: #26303d; --code: #1b2430; --ink: #7db0ff; } }
  body { background: var(--ground); color: var(--text); max-width: 52rem; margin: 0 auto; padding: 1rem clamp(.75rem, 3vw, 2rem) 40vh;
    overflow-wrap: anywhere; }
  h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; border-top: 1px solid var(--line); padding-top: 1.2rem; margin-top: 1.8rem; }
  h2:target { color: var(--ink); }
  a { color: var(--ink); } li { margin: .3rem 0; }
  code { background: var(--code); border-radius: 4px; padding: .05em .3em; font: .88em ui-monospace, monospace; }
  pre { background: var(--code); border-radius: 8px; padding: .7rem .9rem; overflow-x: auto; } pre code { padding: 0; background: none; }
</style>
</head>
<body>
`

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
	made := runbookHead
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
	if kept, err := os.ReadFile(runbookPage); err != nil || string(kept) != made {
		t.Errorf("%s is not what RUNBOOK.md makes (%v); run with -update", runbookPage, err)
	}
	for _, name := range alerts {
		if !strings.Contains(made, `<h2 id="`+strings.ToLower(name)+`">`+name+`</h2>`) {
			t.Errorf("the page has no section %s", name)
		}
	}
}
