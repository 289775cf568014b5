package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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
