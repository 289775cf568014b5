package deploy_test

import (
	"fmt"
	"maps"
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
	jobs := map[string]string{}
	for name, job := range release.Jobs {
		jobs[name] = strings.Replace(fmt.Sprint(job.Needs, job.Permissions), "contents:read ", "", 1)
	}
	if published := "map[attestations:write id-token:write packages:write]"; !maps.Equal(jobs, map[string]string{
		"test": "<nil> map[contents:read]", "check": "<nil> map[contents:read]", "image": "[test check] " + published, "chart": "image" + published,
		"programs": "[test check] map[attestations:write contents:write id-token:write]"}) {
		t.Errorf("the jobs need and may %v", jobs)
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

// The tests run on each Postgres that the README promises.
func TestTheMatrixHasTheVersionsOfTheREADME(t *testing.T) {
	var test struct {
		Jobs struct {
			Postgres struct {
				Strategy struct{ Matrix struct{ Version []int } }
			}
		}
	}
	must(yaml.Unmarshal([]byte(replaced(t, "../.github/workflows/test.yml")), &test))
	versions := test.Jobs.Postgres.Strategy.Matrix.Version
	promised := find(t, "../README.md", `Postgres (\d+ to \d+)`)[0]
	if len(versions) == 0 || promised != fmt.Sprintf("%d to %d", versions[0], versions[len(versions)-1]) ||
		versions[len(versions)-1]-versions[0] != len(versions)-1 {
		t.Errorf("they run on %v, and the README promises %s", versions, promised)
	}
}

// A test that the race detector leaves out runs without it, and what runs in part names tests that are there.
func TestTheMakefileForgetsNoTest(t *testing.T) {
	plain := strings.Fields(strings.ReplaceAll(find(t, "../Makefile", `(?s)\nPLAIN = (.*?)\nRACED =`)[0], "\\\n", " "))
	line := regexp.MustCompile(`\tgo test .*-run '\$\(ALONE\)\|([^']*)' (.*)\n`).FindStringSubmatch(replaced(t, "../Makefile"))
	alone, packages := regexp.MustCompile(strings.ReplaceAll(line[1], "$$", "$")), strings.Fields(line[2])
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	all := ""
	for _, file := range strings.Fields(string(run(t, exec.Command("git", "-C", "..", "ls-files", "*_test.go")))) {
		text := replaced(t, "../"+file)
		all += text
		of := "./" + filepath.Dir(file)
		if !strings.HasPrefix(text, "//go:build !race") && !strings.Contains(text, "\n//go:build !race") || slices.Contains(plain, of) {
			continue
		}
		for _, m := range tests.FindAllStringSubmatch(text, -1) {
			if !alone.MatchString(m[1]) || !slices.Contains(packages, of) {
				t.Errorf("%s of %s never runs", m[1], of)
			}
		}
	}
	for _, names := range find(t, "../Makefile", `(?m)^(?:RACED|TWICE|RACED_ORIGIN|ALONE) = (.*)$`) {
		for _, name := range strings.Split(names, "|") {
			if name, _, _ = strings.Cut(strings.TrimSuffix(name, "$$"), "/"); !regexp.MustCompile(`func Test\w*` + name).MatchString(all) {
				t.Errorf("no test is called %s", name)
			}
		}
	}
}
