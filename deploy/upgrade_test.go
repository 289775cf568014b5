package deploy_test

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Nodes of the last release and of this source form one fleet, while these replace those.
func TestVersionsMeet(t *testing.T) {
	t.Parallel()
	tag := lastRelease(t)
	if tag == "" {
		return // there is nothing to upgrade from
	}
	folder := t.TempDir()
	build := exec.Command("/bin/sh", "-c", `git archive "$0" | tar -x -C "$1" && cd "$1" && go build -trimpath -o last ./cmd/listedge`, tag, folder)
	build.Dir = ".."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	f := startServers(t)
	before := &node{fleet: f, program: filepath.Join(folder, "last"), public: "127.0.0.1:" + freePort(), admin: "127.0.0.1:" + freePort()}
	f.nodes = append(f.nodes, before)
	before.start(t)
	before.awaitMode(t, "followed")
	after := f.add(t)
	for _, name := range []string{"beside it", "in its place"} {
		var pages []string
		for _, n := range f.nodes {
			n.awaitMode(t, "followed")
			status, body, err := get("http://"+n.public+"/v1/items?limit=2", f.key)
			if err != nil || status != http.StatusOK {
				t.Errorf("%s: %d %v: %s", name, status, err, body)
			}
			page, _, _ := strings.Cut(string(body), `"requestId"`)
			pages = append(pages, page)
		}
		if last := pages[len(pages)-1]; pages[0] != last {
			t.Errorf("%s: the pages are\n%s\n%s", name, pages[0], last)
		}
		if name == "beside it" {
			before.stop(t)
			f.nodes = []*node{after}
		}
	}
}

// lastRelease is the tag of the newest version in CHANGELOG.md but this one; "" = none yet.
func lastRelease(t *testing.T) string {
	t.Helper()
	listed, _ := exec.Command("git", "tag", "--list", "v[0-9]*").Output() // none in an archive of the source
	tags := strings.Fields(string(listed))
	this := "v" + versionInSource(t)
	for _, m := range regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)$`).FindAllStringSubmatch(replaced(t, "../CHANGELOG.md"), -1) {
		if tag := "v" + m[1]; tag != this {
			if !slices.Contains(tags, tag) {
				t.Fatalf("CHANGELOG.md has %s, and there is no such tag: git fetch --tags", tag)
			}
			return tag
		}
	}
	for _, tag := range tags {
		if tag != this {
			t.Errorf("%s is released, and CHANGELOG.md does not have it", tag)
		}
	}
	return ""
}
