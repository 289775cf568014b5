package deploy_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestActionlintAcceptsTheWorkflows(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	args := []string{"-C", "actionlint", "tool", "actionlint", "-no-color", "-shellcheck=", "-pyflakes="} // the same on every machine
	for _, file := range files {
		args = append(args, filepath.Join("..", file))
	}
	if said, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// Nothing is published before the tests of its commit have passed, nor with more rights than it takes, nor by an action
// that somebody can replace.
func TestAReleaseIsTestedAndPinned(t *testing.T) {
	for _, file := range []string{"test", "bench", "release"} {
		for _, action := range find(t, "../.github/workflows/"+file+".yml", `uses: (.*)`) {
			if !regexp.MustCompile(`^(\./\S+|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`).MatchString(action) {
				t.Errorf("%s uses %s", file, action)
			}
		}
	}
	var release struct {
		Permissions *map[string]string
		Jobs        map[string]struct {
			Uses        string
			Needs       any
			Permissions map[string]string
		}
	}
	must(yaml.Unmarshal([]byte(replaced(t, "../.github/workflows/release.yml")), &release))
	if release.Permissions == nil || len(*release.Permissions) > 0 || release.Jobs["test"].Uses != "./.github/workflows/test.yml" {
		t.Errorf("all jobs have %v, and the tests are %q", release.Permissions, release.Jobs["test"].Uses)
	}
	for name, want := range map[string]struct{ needs, writes string }{
		"test": {"<nil>", "[]"}, "check": {"<nil>", "[]"}, "programs": {"[test check]", "[attestations contents id-token]"},
		"image": {"[test check]", "[attestations id-token packages]"}, "chart": {"image", "[attestations id-token packages]"},
	} {
		job, writes := release.Jobs[name], []string{}
		for right, level := range job.Permissions {
			if level == "write" {
				writes = append(writes, right)
			}
		}
		if slices.Sort(writes); fmt.Sprint(job.Needs) != want.needs || fmt.Sprint(writes) != want.writes {
			t.Errorf("%s needs %v and may write %v", name, job.Needs, writes)
		}
		delete(release.Jobs, name)
	}
	if len(release.Jobs) > 0 {
		t.Errorf("nobody expected %v", release.Jobs)
	}
}

// What the workflows run from here exists: targets, files, and the arguments of the image.
func TestTheWorkflowsUseWhatIsThere(t *testing.T) {
	makefile := replaced(t, "../Makefile")
	for _, file := range []string{"test", "bench", "release"} {
		text := replaced(t, "../.github/workflows/"+file+".yml")
		for _, m := range regexp.MustCompile(`(?m)(?:- run:|^ +) *make ([a-z/-]+)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make %s is no target", file, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^ +([A-Z_]+)=\$\{\{`).FindAllStringSubmatch(text, -1) {
			find(t, "Dockerfile", `(?m)^ARG .*\b(`+m[1]+`)\b`)
		}
	}
	for _, name := range []string{"repository", "digest"} { // which the release writes
		find(t, "helm/values.yaml", `(?m)^  (`+name+`: )`)
	}
}
