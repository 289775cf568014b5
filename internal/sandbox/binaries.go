package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
)

// ErrNoBinaries: the server's programs are not on this machine.
var ErrNoBinaries = errors.New("not installed (deploy/install.sh installs it)")

// postgresHomes are the folders, beside PATH, in which systems put Postgres:
// Debian, Fedora, Homebrew on both processors, Postgres.app.
var postgresHomes = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// oldestPostgres is the first version whose logical decoding and contrib
// extensions are what the product needs.
const oldestPostgres = 14

var versionPattern = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// findPostgres returns the folder of initdb and postgres of the wanted major
// version, or of the newest one when want is 0.
func findPostgres(want int) (bin string, major int, err error) {
	homes := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range postgresHomes {
		found, _ := filepath.Glob(pattern)
		homes = append(homes, found...)
	}
	versions := map[int]string{}
	for _, home := range homes {
		server := filepath.Join(home, "postgres")
		if real, err := filepath.EvalSymlinks(server); err == nil { // PATH may have links to some of the programs
			server, home = real, filepath.Dir(real)
		}
		if !executable(server) || !executable(filepath.Join(home, "initdb")) {
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
			versions[n] = home
		}
	}
	if len(versions) == 0 {
		return "", 0, fmt.Errorf("PostgreSQL %d or newer: %w", oldestPostgres, ErrNoBinaries)
	}
	var have []int
	for n := range versions {
		have = append(have, n)
	}
	sort.Sort(sort.Reverse(sort.IntSlice(have)))
	if want == 0 {
		want = have[0]
	}
	if versions[want] == "" {
		return "", 0, fmt.Errorf("PostgreSQL %d: %w; this machine has %v", want, ErrNoBinaries, have)
	}
	return versions[want], want, nil
}

// findRedis returns the path of a Redis server. Valkey, which replaced Redis
// in newer distributions, speaks the same protocol and scripts.
func findRedis() (string, error) {
	return findServer("a Redis server", "redis-server", "valkey-server")
}

// findServer returns the path of the first of the programs that is there.
func findServer(what string, names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		for _, home := range []string{"/usr/bin", "/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"} {
			if path := filepath.Join(home, name); executable(path) {
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
