//go:build release

package deploy_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sassoftware/go-rpmutils"

	"listedge/internal/sandbox/sandboxtest"
)

// These tests are about what `make release-snapshot` has left in bin/release.

const releaseFolder = "../bin/release"

// released returns the files of the release with their checksums, as its list has them.
func released(t *testing.T) (sums map[string]string) {
	t.Helper()
	sums = map[string]string{}
	file, err := os.Open(filepath.Join(releaseFolder, "checksums.txt"))
	if err != nil {
		t.Fatalf("%v: `make release-snapshot` makes it", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		sums[name] = sum
	}
	return sums
}

// the returns the one file of the release with that ending.
func the(t *testing.T, ending string) (path string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(releaseFolder, "*"+ending))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d files end in %s (%v)", len(found), ending, err)
	}
	return found[0]
}

func sha256Of(t *testing.T, path string) string {
	t.Helper()
	content := must1(os.ReadFile(path))
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func TestReleaseIsWhole(t *testing.T) {
	sums := released(t)
	for _, ending := range []string{
		"_linux_amd64.tar.gz", "_linux_arm64.tar.gz", "_darwin_amd64.tar.gz", "_darwin_arm64.tar.gz",
		"_amd64.deb", "_arm64.deb", "_amd64.rpm", "_arm64.rpm",
		"_linux_amd64.cdx.json", "_linux_arm64.cdx.json", "_darwin_amd64.cdx.json", "_darwin_arm64.cdx.json",
	} {
		path := the(t, ending)
		if name := filepath.Base(path); sums[name] != sha256Of(t, path) {
			t.Errorf("the checksum of %s is not that of the file", name)
		}
		delete(sums, filepath.Base(path))
	}
	if len(sums) > 0 {
		t.Errorf("nobody expected %v", sums)
	}
}

func TestReleaseListsItsModules(t *testing.T) {
	for _, file := range []string{"_linux_amd64.cdx.json", "_darwin_arm64.cdx.json"} {
		content := must1(os.ReadFile(the(t, file)))
		var bom struct {
			BOMFormat string
			Metadata  struct {
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version, PURL string }
		}
		if err := json.Unmarshal(content, &bom); err != nil || bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Name != "listedge" {
			t.Fatalf("%s: %v %+v", file, err, bom.Metadata)
		}
		want := find(t, "../go.mod", `github.com/jackc/pgx/v5 (v\S+)`)[0]
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version, PURL string }) bool {
			return c.Name == "github.com/jackc/pgx/v5" && c.Version == want
		}) {
			t.Errorf("%s does not list pgx %s", file, want)
		}
	}
}

// inArchive returns the program in an archive of the release.
func inArchive(t *testing.T, path string) []byte {
	t.Helper()
	file := must1(os.Open(path))
	defer file.Close()
	unzipped := must1(gzip.NewReader(file))
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if err != nil {
			t.Fatalf("%s has no program: %v", path, err)
		}
		if header.Name == "listedge" {
			content, err := io.ReadAll(archive)
			if err != nil || header.FileInfo().Mode().Perm() != 0o755 {
				t.Fatal(err, header.FileInfo().Mode())
			}
			return content
		}
	}
}

// head is the commit that is checked out.
func head(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(string(must1(exec.Command("git", "rev-parse", "HEAD").Output())))
}

// The same source in another folder gives the same bytes.
func TestReleaseIsReproducible(t *testing.T) {
	there := t.TempDir()
	copied := exec.Command("/bin/sh", "-c", `git ls-files -z --cached | tar -c --null -T - | tar -x -C "$0"`, there)
	copied.Dir = ".."
	if said, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	ldflags := strings.NewReplacer("$VERSION", versionInSource(t), "$(git rev-parse HEAD)", head(t)).Replace(find(t, "release/release.sh", `-ldflags "(.*?)"`)[0])
	for _, arch := range []string{"amd64", "arm64"} {
		made := filepath.Join(t.TempDir(), "listedge")
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", made, "./cmd/listedge")
		cmd.Dir = there
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux", "GOARCH="+arch)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		again, err := os.ReadFile(made)
		if err != nil || !bytes.Equal(again, inArchive(t, the(t, "_linux_"+arch+".tar.gz"))) {
			t.Errorf("linux/%s is another program when it is built again (%v)", arch, err)
		}
	}
}

func TestReleaseRPMHasTheFiles(t *testing.T) {
	file := must1(os.Open(the(t, "_amd64.rpm")))
	defer file.Close()
	rpm := must1(rpmutils.ReadRpm(file))
	files := must1(rpm.Header.GetFiles())
	const noReplace = 1<<0 | 1<<4 // RPMFILE_CONFIG | RPMFILE_NOREPLACE
	modes := map[string]int{}
	for _, f := range files {
		modes[f.Name()] = f.Mode() & 0o777
		if strings.HasPrefix(f.Name(), "/etc/") && f.Flags()&noReplace != noReplace {
			t.Error("an upgrade replaces the settings")
		}
	}
	for name, mode := range map[string]int{"/usr/bin/listedge": 0o755, "/usr/lib/systemd/system/listedge.service": 0o644, "/etc/listedge/listedge.env": 0o600,
		"/etc/listedge/database-url": 0o600, "/etc/listedge/redis-url": 0o600} {
		if modes[name] != mode {
			t.Errorf("%s has mode %o", name, modes[name])
		}
	}
}

// The package is installed by dpkg into an empty root, its program is started as the
// unit would, with its settings, and answers; removing it leaves the settings.
func TestReleasePackageInstallsAndStarts(t *testing.T) {
	root, tools := t.TempDir(), t.TempDir()
	for _, folder := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "run/systemd/system"} {
		must(os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	for _, file := range []string{"status", "available"} {
		must(os.WriteFile(filepath.Join(root, "var/lib/dpkg", file), nil, 0o644))
	}
	notes := filepath.Join(tools, "notes")
	must(os.WriteFile(filepath.Join(tools, "systemctl"), []byte("#!/bin/sh\necho \"$@\" >>'"+notes+"'\n"), 0o755))
	dpkg := func(args ...string) string {
		t.Helper()
		options := []string{"--root=" + root, "--force-script-chrootless", "--force-not-root", "--force-depends", "--force-bad-path", "--log=/dev/null"}
		cmd := exec.Command(tool("dpkg"), append(options, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg %v: %v\n%s", args, err, said)
		}
		return string(said)
	}
	noted := func() string {
		text, _ := os.ReadFile(notes)
		_ = os.Remove(notes)
		return strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\n", " ; ")), " ")
	}
	deb := the(t, "_"+runtime.GOARCH+".deb")
	if said := dpkg("--install", deb); !strings.Contains(said, "systemctl enable --now listedge") {
		t.Errorf("it does not say how to start it: %s", said)
	}
	if did := noted(); did != "daemon-reload ;" {
		t.Errorf("the installation did %q", did)
	}

	unitText := replaced(t, filepath.Join(root, "usr/lib/systemd/system/listedge.service"))
	command := strings.Fields(regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unitText)[1])
	settings := filepath.Join(root, regexp.MustCompile(`(?m)^EnvironmentFile=(.*)$`).FindStringSubmatch(unitText)[1])
	postgres, redis := sandboxtest.Postgres(t), sandboxtest.Redis(t)
	public, admin := "127.0.0.1:"+freePort(), "127.0.0.1:"+freePort()
	edited := replaced(t, settings, "LISTEDGE_LISTEN=:8080", "LISTEDGE_LISTEN="+public, "127.0.0.1:9090", admin)
	must(os.WriteFile(settings, []byte(edited), 0o600))
	if command[0] != "listedge" {
		t.Fatalf("the unit starts %v: a package and a manual installation have it in different folders", command)
	}
	program := filepath.Join(root, "usr/bin/listedge")
	env := append([]string{"PATH=/usr/bin:/bin"}, settingsIn(edited)...)
	urls := map[string]string{"database-url": postgres.URL("postgres"), "redis-url": redis.URL()}
	for variable, file := range credentials(unit(t)) {
		file = filepath.Join(root, file)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%v %v: it has passwords", info, err)
		}
		must(os.WriteFile(file, []byte(urls[filepath.Base(file)]+"\n"), 0o600))
		env = append(env, variable+"="+file)
	}
	for _, args := range [][]string{{"migrate", "up"}, {"--version"}} {
		cmd := exec.Command(program, args...)
		cmd.Env = env
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
		if want := "listedge " + versionInSource(t) + " (revision " + head(t) + ")"; args[0] == "--version" && strings.TrimSpace(string(said)) != want {
			t.Errorf("it says %s, want %s", said, want)
		}
	}
	cmd := exec.Command(program, command[1:]...)
	cmd.Env = env
	startProgram(t, cmd)
	within(t, patience, "the node is ready", func() bool {
		status, _, err := get("http://"+admin+"/readyz", "")
		return err == nil && status == http.StatusOK
	})

	dpkg("--install", deb) // again, as an upgrade
	if did := noted(); did != "daemon-reload ; --no-block try-restart listedge.service ;" {
		t.Errorf("the upgrade did %q", did)
	}
	if kept := replaced(t, settings); kept != edited {
		t.Errorf("the upgrade has changed the settings: %s", kept)
	}
	dpkg("--remove", "listedge")
	if did := noted(); did != "disable --now listedge.service ; daemon-reload ;" {
		t.Errorf("the removal did %q", did)
	}
	if _, err := os.Stat(program); !os.IsNotExist(err) {
		t.Errorf("the program is still there (%v)", err)
	}
	if kept := replaced(t, settings); kept != edited {
		t.Errorf("the removal has changed the settings: %s", kept)
	}
}

// settingsIn are the NAME=value lines of an environment file.
func settingsIn(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}
