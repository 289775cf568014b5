package deploy_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
