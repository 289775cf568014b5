package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// errNotInstalled: the server's programs were not found on this machine.
var errNotInstalled = errors.New("not installed (deploy/install.sh installs it)")

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

// oldestPostgres is the oldest major version that listedge supports.
const oldestPostgres = 15

// findPostgres returns the folder that contains initdb and postgres: the first one in PATH, or
// else that of the newest version.
func findPostgres() (bin string, err error) {
	inPath := filepath.SplitList(os.Getenv("PATH"))
	folders := slices.Clone(inPath)
	for _, pattern := range postgresFolders {
		found, _ := filepath.Glob(pattern)
		folders = append(folders, found...)
	}
	newest := oldestPostgres - 1
	for i, folder := range folders {
		server := filepath.Join(folder, "postgres")
		if real, err := filepath.EvalSymlinks(server); err == nil { // PATH may have links to only some of the programs
			server, folder = real, filepath.Dir(real)
		}
		var version int
		out, _ := exec.Command(server, "--version").Output()
		_, _ = fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &version)
		if _, err := exec.LookPath(filepath.Join(folder, "initdb")); err != nil || version <= newest {
			continue
		}
		bin, newest = folder, version
		if i < len(inPath) {
			break
		}
	}
	if bin == "" {
		return "", fmt.Errorf("PostgreSQL %d or newer: %w", oldestPostgres, errNotInstalled)
	}
	return bin, nil
}

// FindRedis returns the path of Redis, or of Valkey, which newer distributions have in its
// place. Valkey has the same protocol and runs the same scripts.
func FindRedis() (string, error) {
	return FindServer("a Redis server", "redis-server", "valkey-server")
}

// FindServer returns the path of the first of these programs that is installed.
func FindServer(what string, names ...string) (string, error) {
	for _, name := range names {
		for _, folder := range []string{"", "/usr/bin", "/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"} { // "" = those of PATH
			if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", what, errNotInstalled)
}
