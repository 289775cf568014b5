package deploy_test

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// program is the path of listedge, built by the Dockerfile's own step: the
// tests of this package run what is deployed.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "listedge-image-")
	if err != nil {
		return "", err
	}
	removed = append(removed, dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	step, err := buildStep()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(step, "/out/", dir+"/"))
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH, "REVISION="+revision, "VERSION=")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", step, err, said)
	}
	return filepath.Join(dir, "listedge"), nil
})

// revision is what the program was built from.
const revision = "0123456789abcdef0123456789abcdef01234567"

// versionInSource is the version of a program that was built without another one.
func versionInSource(t *testing.T) string {
	t.Helper()
	return find(t, "../cmd/listedge/main.go", `(?m)^var version = "(.+)"$`)[0]
}

// removed are folders that go when the tests have ended.
var removed []string

func TestMain(m *testing.M) {
	must(flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))) // tests wait more than they compute; -parallel overrides it
	code := m.Run()
	for _, dir := range removed {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// buildStep is the command by which the Dockerfile makes the program.
func buildStep() (string, error) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		return "", err
	}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	m := regexp.MustCompile(`(?m)^RUN (?:--\S+ +)*(.* go build .*)$`).FindStringSubmatch(joined)
	if m == nil {
		return "", errors.New("the Dockerfile has no step that builds")
	}
	return m[1], nil
}

// What `docker build` sends has every file that the program is made from.
func TestTheImagesContextIsEnough(t *testing.T) {
	file := must1(os.Open("../.dockerignore"))
	defer file.Close()
	patterns := must1(ignorefile.ReadAll(file))
	ignored := must1(patternmatcher.New(patterns))
	cmd := exec.Command("go", "list", "-deps", "-f", `{{if and .Module .Module.Main}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$dir}}/{{.}}
{{end}}{{end}}`, "./cmd/listedge")
	cmd.Dir = ".."
	listed := must1(cmd.Output())
	root := must1(filepath.Abs(".."))
	needed := append(strings.Fields(string(listed)), root+"/go.mod", root+"/go.sum")
	if len(needed) < 50 {
		t.Fatalf("the program is made from %d files", len(needed))
	}
	for _, path := range needed {
		name := must1(filepath.Rel(root, path))
		if missing, err := ignored.MatchesOrParentMatches(name); err != nil || missing {
			t.Errorf("%s is not sent (%v)", name, err)
		}
	}
	if sent, err := ignored.MatchesOrParentMatches("deploy/compose.yaml"); err != nil || !sent {
		t.Errorf("what the image is not made from is sent (%v)", err)
	}
}

// The image's base has neither a shell nor a C library.
func TestTheImagesProgramNeedsNothing(t *testing.T) {
	path := must1(program())
	if said := listedge(t, nil, "--version"); !regexp.MustCompile(`^listedge ` + regexp.QuoteMeta(versionInSource(t)) + ` \(revision ` + revision +
		`\)$`).MatchString(said) {
		t.Errorf("--version says %q", said)
	}
	info := must1(buildinfo.ReadFile(path))
	for _, setting := range info.Settings {
		if setting.Key == "CGO_ENABLED" && setting.Value != "0" {
			t.Error("built with cgo")
		}
	}
	for _, module := range info.Deps {
		if strings.HasPrefix(module.Path, "k8s.io/") || module.Path == "github.com/prometheus/prometheus" {
			t.Errorf("%s, which only tests need, is in the program", module.Path)
		}
	}
	if runtime.GOOS != "linux" {
		return
	}
	file := must1(elf.Open(path))
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP || part.Type == elf.PT_DYNAMIC {
			t.Errorf("the program is not static: it has %s", part.Type)
		}
	}
}
