package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each section of the runbook that the doctor and the checks of a node name exists.
func TestTheRunbookHasWhatTheDoctorNames(t *testing.T) {
	runbook, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "RUNBOOK.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, file := range []string{"redis.go", "nodes.go", "fleet.go", "../node/checks.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`Listedge[A-Z]\w+`).FindAllString(string(source), -1) {
			named++
			if !strings.Contains(string(runbook), "\n## "+name+"\n") {
				t.Errorf("%s: the runbook has no section %s", file, name)
			}
		}
	}
	if named < 5 {
		t.Errorf("%d found", named)
	}
}
