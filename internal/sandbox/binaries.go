package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// ErrNoBinaries: the server's programs were not found on this machine.
var ErrNoBinaries = errors.New("not installed (deploy/install.sh installs it)")

// postgresFolders are where Postgres' programs are installed, besides the folders of
// PATH: by Debian, Fedora, Homebrew (on Apple and Intel processors) and Postgres.app.
var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// oldestPostgres is the first major version that has the logical decoding and the
// extensions which listedge needs.
const oldestPostgres = 14

var versionPattern = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// findPostgres returns the folder that contains initdb and postgres of the wanted major
// version. If want is 0, it is the first one in PATH, or else the newest one.
func findPostgres(want int) (bin string, err error) {
	inPath := filepath.SplitList(os.Getenv("PATH"))
	folders := slices.Clone(inPath)
	for _, pattern := range postgresFolders {
		found, _ := filepath.Glob(pattern)
		folders = append(folders, found...)
	}
	versions := map[int]string{}
	for i, folder := range folders {
		server := filepath.Join(folder, "postgres")
		if real, err := filepath.EvalSymlinks(server); err == nil { // PATH may have links to only some of the programs
			server, folder = real, filepath.Dir(real)
		}
		if !executable(server) || !executable(filepath.Join(folder, "initdb")) {
			continue
		}
		out, err := exec.Command(server, "--version").Output()
		if err != nil {
			continue
		}
		m := versionPattern.FindSubmatch(out)
		if m == nil {
			continue
		}
		n, _ := strconv.Atoi(string(m[1]))
		if _, seen := versions[n]; !seen && n >= oldestPostgres {
			versions[n] = folder
			if want == 0 && i < len(inPath) {
				want = n
			}
		}
	}
	if len(versions) == 0 {
		return "", fmt.Errorf("PostgreSQL %d or newer: %w", oldestPostgres, ErrNoBinaries)
	}
	installed := slices.Sorted(maps.Keys(versions))
	if want == 0 {
		want = installed[len(installed)-1]
	}
	if versions[want] == "" {
		return "", fmt.Errorf("PostgreSQL %d: %w; this machine has %v", want, ErrNoBinaries, installed)
	}
	return versions[want], nil
}

// redisPrograms are Redis, and Valkey, which newer distributions have in its place. Valkey
// has the same protocol and runs the same scripts.
var redisPrograms = []string{"redis-server", "valkey-server"}

// FindServer returns the path of the first of these programs that is installed.
func FindServer(what string, names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		for _, folder := range []string{"/usr/bin", "/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"} {
			if path := filepath.Join(folder, name); executable(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", what, ErrNoBinaries)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}
