package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// find returns what the first group of pattern matched, each time, in a file
// of this folder.
func find(t *testing.T, file, pattern string) []string {
	t.Helper()
	text := must1(os.ReadFile(file))
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("nothing in %s matches %s", file, pattern)
	}
	return found
}

// replaced is the text of a file of this folder with some of it changed for
// this machine; each change must find its place, so that what is tested stays
// the file that is deployed.
func replaced(t *testing.T, file string, changes ...string) string {
	t.Helper()
	b := must1(os.ReadFile(file))
	text := string(b)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("%s has no %q", file, changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	return text
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	must(os.WriteFile(path, []byte(text), 0o644))
	return path
}
