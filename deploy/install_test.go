// Package deploy_test tries what is deployed. The installer runs on machines
// that are made up: a PATH of programs that only note how they were called, and
// a root folder of its own. The rest runs on this one, with the program that
// the Dockerfile's step builds: real nodes behind a real HAProxy, watched by a
// real Prometheus; and files that only others can run are held against what
// they speak of.
//
//	panels ──► dashboard ─┐
//	rules  ──► alerts ────┼─► judged by what nodes export at /metrics
//	       └─► runbook    ┘   and, live, by what Prometheus says of them
//
// It is a module of its own, so that Kubernetes' and Prometheus' libraries are
// none of the product's dependencies. It is not run under the race detector,
// which would double the time to compile them: what is tried are other
// programs.
package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a made-up computer.
type machine struct {
	t     *testing.T
	root  string // what the installer takes for /
	bin   string // all of its PATH
	shelf string // what its package manager can put into root, a folder per package
	calls string // a file with a line per call of a program that was made up
	uid   string
	cc    string
}

// newMachine is a computer on which uname says system and with the ordinary
// tools, but no package manager, server or compiler.
func newMachine(t *testing.T, system string) *machine {
	t.Helper()
	top := t.TempDir()
	m := &machine{t: t, root: top + "/root", bin: top + "/bin", shelf: top + "/shelf", calls: top + "/calls", uid: "0"}
	for _, dir := range []string{m.root, m.bin, m.shelf} {
		must(os.Mkdir(dir, 0o755))
	}
	for _, tool := range []string{"sh", "cat", "chmod", "cp", "grep", "mkdir", "mktemp", "rm", "rmdir", "tail"} {
		real := must1(exec.LookPath(tool))
		must(os.Symlink(real, filepath.Join(m.bin, tool)))
	}
	m.file(m.bin+"/uname", "echo "+system)
	m.file(m.bin+"/id", `echo "$MACHINE_UID"`)
	m.file(m.bin+"/sleep", "")
	return m
}

// file writes a program.
func (m *machine) file(path, body string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// command puts a program on the PATH that notes each call and then does body.
func (m *machine) command(name, body string) {
	m.file(m.bin+"/"+name, `echo "`+name+` $*" >>"$MACHINE_CALLS"`+"\n"+body)
}

// postgres puts a server of a version under top, its programs in bin.
func (m *machine) postgres(top, bin, version string) {
	m.file(top+bin+"/initdb", "")
	m.file(top+bin+"/postgres", `echo "postgres (PostgreSQL) `+version+`"`)
}

func (m *machine) debianPostgres(top, version string) {
	major, _, _ := strings.Cut(version, ".")
	m.postgres(top, "/usr/lib/postgresql/"+major+"/bin", version)
}

// deliver is the part of a package manager that puts what is on the shelf into
// the root, for each package named.
const deliver = `for arg in "$@"; do
	[ ! -d "$MACHINE_SHELF/$arg" ] || cp -R "$MACHINE_SHELF/$arg/." "$LISTEDGE_INSTALL_ROOT/"
done`

// debian gives the machine apt-get, which also notes what is there to keep
// packages from starting servers and making clusters.
func (m *machine) debian() {
	m.debianPostgres(m.shelf+"/postgresql", "16.3 (Debian 16.3-1)")
	m.file(m.shelf+"/redis-server/usr/local/bin/redis-server", "")
	m.file(m.shelf+"/gcc/usr/bin/gcc", "")
	m.file(m.shelf+"/prometheus/usr/local/bin/prometheus", "")
	m.file(m.shelf+"/prometheus/usr/local/bin/promtool", "")
	m.file(m.shelf+"/prometheus-alertmanager/usr/local/bin/prometheus-alertmanager", "")
	m.file(m.shelf+"/prometheus-alertmanager/usr/local/bin/amtool", "")
	m.file(m.shelf+"/pgbouncer/usr/sbin/pgbouncer", "")
	m.file(m.shelf+"/haproxy/usr/sbin/haproxy", "")
	m.file(m.shelf+"/curl/usr/local/bin/curl", "")
	m.file(m.shelf+"/systemd/usr/local/bin/systemd-analyze", "")
	m.file(m.shelf+"/chromium/usr/local/bin/chromium", "")
	m.file(m.shelf+"/nodejs/usr/local/bin/node", "")
	m.file(m.shelf+"/npm/usr/local/bin/npm", "")
	if err := os.Symlink(m.root+"/usr/bin/gcc", m.bin+"/gcc"); err != nil { // dangles until gcc is installed
		m.t.Fatal(err)
	}
	m.command("systemctl", "")
	m.command("apt-get", `for guard in usr/sbin/policy-rc.d etc/postgresql-common/createcluster.d/listedge.conf; do
	[ ! -e "$LISTEDGE_INSTALL_ROOT/$guard" ] || echo "guard $guard: $(tail -n 1 "$LISTEDGE_INSTALL_ROOT/$guard")" >>"$MACHINE_CALLS"
done
`+deliver)
}

// install runs the installer and returns what it said, how it exited and which
// programs it called.
func (m *machine) install(args ...string) (said string, code int, calls []string) {
	m.t.Helper()
	if _, err := os.Stat("install.sh"); err != nil { // or go test would answer from its cache when only the script has changed
		m.t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", append([]string{"install.sh"}, args...)...)
	cmd.Env = []string{
		"PATH=" + m.bin, "TMPDIR=" + m.t.TempDir(), "LISTEDGE_INSTALL_ROOT=" + m.root,
		"MACHINE_CALLS=" + m.calls, "MACHINE_SHELF=" + m.shelf, "MACHINE_UID=" + m.uid,
	}
	if m.cc != "" {
		cmd.Env = append(cmd.Env, "CC="+m.cc)
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	noted, err := os.ReadFile(m.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	if len(noted) > 0 {
		calls = strings.Split(strings.TrimSpace(string(noted)), "\n")
	}
	return string(out), cmd.ProcessState.ExitCode(), calls
}

// mustInstall runs the installer where it should succeed and holds the calls it
// made against want, each of which may leave options out: the words of a wanted
// line must be found in the call, in that order.
func (m *machine) mustInstall(args []string, want ...string) string {
	m.t.Helper()
	said, code, calls := m.install(args...)
	if code != 0 {
		m.t.Fatalf("exit status %d: %s", code, said)
	}
	m.check(calls, want)
	return said
}

func (m *machine) check(calls, want []string) {
	m.t.Helper()
	if len(calls) != len(want) {
		m.t.Fatalf("calls:\n%s\nwant:\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
	for i := range want {
		words := strings.Fields(want[i])
		for _, word := range strings.Fields(calls[i]) {
			if len(words) > 0 && word == words[0] {
				words = words[1:]
			}
		}
		if len(words) > 0 {
			m.t.Errorf("call %d is %q, want %q", i, calls[i], want[i])
		}
	}
}

// mustRefuse runs the installer where it should give up, with one line that
// holds every one of the words, and without having called anything but what is
// in calls.
func (m *machine) mustRefuse(args []string, status int, words []string, want ...string) {
	m.t.Helper()
	said, code, calls := m.install(args...)
	if code != status || strings.Count(said, "\n") != 1 {
		m.t.Errorf("exit status %d, want %d and one line: %s", code, status, said)
	}
	for _, word := range words {
		if !strings.Contains(said, word) {
			m.t.Errorf("said %q, which lacks %q", said, word)
		}
	}
	m.check(calls, want)
}

const (
	guardedService = "guard usr/sbin/policy-rc.d: exit 101"
	guardedCluster = "guard etc/postgresql-common/createcluster.d/listedge.conf: create_main_cluster = false"
)

// bare fails if the installer left behind one of the files that it only needs
// while it installs.
func (m *machine) bare() {
	m.t.Helper()
	for _, path := range []string{"/usr/sbin/policy-rc.d", "/etc/postgresql-common"} {
		if _, err := os.Lstat(m.root + path); !errors.Is(err, os.ErrNotExist) {
			m.t.Errorf("%s was left behind (%v)", path, err)
		}
	}
}

func TestDebianInstallsAllInOneGoAndStartsNothing(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	want := []string{
		"apt-get install -y --no-install-recommends DPkg::Lock::Timeout=300 postgresql redis-server pgbouncer gcc libc6-dev prometheus prometheus-alertmanager haproxy curl systemd chromium nodejs npm",
		guardedService, guardedCluster, "systemctl disable redis-server", "systemctl disable pgbouncer", "systemctl disable prometheus", "systemctl disable prometheus-alertmanager", "systemctl disable haproxy",
	}
	said := m.mustInstall(nil, want...)
	if said != "install: apt-get install postgresql redis-server pgbouncer gcc libc6-dev prometheus prometheus-alertmanager haproxy curl systemd chromium nodejs npm\n" {
		t.Errorf("said %q, want a line about what was done", said)
	}
	m.bare()

	if said := m.mustInstall(nil, want...); said != "" { // the calls of before, and no new one
		t.Errorf("the second run said %q, want nothing", said)
	}
}

func TestDebianInstallsOnlyWhatIsAskedForAndMissing(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.debianPostgres(m.root, "15.18")
	m.mustInstall([]string{"postgres"})
	m.mustInstall([]string{"postgres", "redis"}, "apt-get install redis-server", guardedService, guardedCluster, "systemctl disable redis-server")
}

func TestDebianFetchesListsWhenTheyAreMissing(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.command("systemctl", "exit 1")
	m.command("apt-get", `if [ "$1" = update ]; then
	echo once >>"$MACHINE_SHELF/updates"
	[ "$(grep -c once "$MACHINE_SHELF/updates")" -eq 2 ]; exit
fi
[ -e "$MACHINE_SHELF/updates" ] || exit 100
`+deliver)
	m.mustInstall([]string{"redis"},
		"apt-get install redis-server", "apt-get update", "apt-get update", "apt-get install redis-server",
		"systemctl disable redis-server")
	m.bare()
}

func TestDebianKeepsAPolicyThatWasThere(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.file(m.root+"/usr/sbin/policy-rc.d", "exit 101")
	m.mustInstall([]string{"postgres"}, "apt-get install postgresql", guardedService, guardedCluster)
	if text, err := os.ReadFile(m.root + "/usr/sbin/policy-rc.d"); err != nil || string(text) != "#!/bin/sh\nexit 101\n" {
		t.Errorf("policy-rc.d is %q (%v), want it as it was", text, err)
	}
}

func TestDebianTakesOverWhatAKilledRunLeftBehind(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.command("apt-get", "kill -KILL $PPID")
	if _, code, _ := m.install("postgres"); code == 0 {
		t.Fatal("the run was not killed")
	}
	must1(os.Stat(m.root + "/usr/sbin/policy-rc.d"))
	m.command("apt-get", deliver)
	m.mustInstall([]string{"postgres"}, "apt-get install postgresql", "apt-get install postgresql")
	m.bare()
}

func TestDebianLeavesNothingBehindWhenStopped(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.command("apt-get", "kill -TERM $PPID")
	said, code, calls := m.install("postgres")
	if code != 143 {
		t.Errorf("exit status %d, want 143: %s", code, said)
	}
	m.check(calls, []string{"apt-get install postgresql"})
	m.bare()
}

func TestWithoutRootTheWholeScriptRunsBySudo(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.uid = "1000"
	m.command("sudo", `[ "$1" = -n ] || exit 1
shift
[ "$1" != true ] || exit 0
MACHINE_UID=0
exec "$@"`)
	m.mustInstall([]string{"postgres", "redis"},
		"sudo -n true", "sudo -n sh install.sh postgres redis",
		"apt-get install postgresql redis-server", guardedService, guardedCluster, "systemctl disable redis-server")
	m.bare()
}

func TestUbuntusChromiumHasAnotherName(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.file(m.shelf+"/chromium-browser/usr/local/bin/chromium-browser", "")
	m.file(m.root+"/etc/os-release", "NAME=Ubuntu\nID=ubuntu")
	m.mustInstall([]string{"chromium"}, "apt-get install -y --no-install-recommends DPkg::Lock::Timeout=300 chromium-browser", guardedService, guardedCluster)
}

func TestWithoutRootAndSudoItSaysWhatToRun(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.uid = "1000"
	m.mustRefuse([]string{"postgres", "redis"}, 1, []string{"run: sudo sh install.sh postgres redis"})
	m.command("sudo", "echo a password is required >&2; exit 1")
	m.mustRefuse([]string{"redis"}, 1, []string{"run: sudo sh install.sh redis"}, "sudo -n true")
}

func TestFedora(t *testing.T) {
	m := newMachine(t, "Linux")
	m.cc = "clang -m64"
	m.file(m.bin+"/clang", "")
	m.postgres(m.shelf+"/postgresql-server", "/usr/pgsql-17/bin", "17.2")
	m.file(m.shelf+"/valkey/usr/sbin/valkey-server", "")
	m.file(m.shelf+"/pgbouncer/usr/sbin/pgbouncer", "")
	m.file(m.shelf+"/haproxy/usr/sbin/haproxy", "")
	m.file(m.shelf+"/chromium/usr/local/bin/chromium-browser", "")
	m.file(m.bin+"/curl", "")
	m.file(m.bin+"/systemd-analyze", "")
	for _, name := range []string{"prometheus", "promtool", "alertmanager", "amtool", "node", "npm"} { // dnf finds a package by a file that it has
		m.file(m.shelf+"/usr/bin/"+name+"/usr/local/bin/"+name, "")
	}
	m.command("dnf", `for arg in "$@"; do [ "$arg" != redis ] || exit 1; done
`+deliver)
	want := []string{"dnf install -y postgresql-server postgresql-contrib", "dnf install -y redis", "dnf install -y valkey", "dnf install -y pgbouncer",
		"dnf install -y /usr/bin/prometheus /usr/bin/promtool", "dnf install -y /usr/bin/alertmanager /usr/bin/amtool", "dnf install -y haproxy", "dnf install -y chromium",
		"dnf install -y /usr/bin/node /usr/bin/npm"}
	m.mustInstall(nil, want...)
	if said := m.mustInstall(nil, want...); said != "" {
		t.Errorf("the second run said %q, want nothing", said)
	}
}

func TestMacOS(t *testing.T) {
	m := newMachine(t, "Darwin")
	m.uid = "501"
	m.postgres(m.shelf+"/postgresql@17", "/opt/homebrew/opt/postgresql@17/bin", "17.2 (Homebrew)")
	for name, programs := range map[string][]string{"redis": {"redis-server"}, "pgbouncer": {"pgbouncer"}, "prometheus": {"prometheus", "promtool"}, "alertmanager": {"alertmanager", "amtool"}, "haproxy": {"haproxy"}, "node": {"node", "npm"}} {
		for _, program := range programs {
			m.file(m.shelf+"/"+name+"/opt/homebrew/bin/"+program, "")
		}
	}
	m.file(m.shelf+"/google-chrome/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "")
	m.file(m.bin+"/curl", "")
	m.command("brew", deliver)
	m.mustInstall(nil, "brew install postgresql@17", "brew install redis", "brew install pgbouncer", "brew install prometheus", "brew install alertmanager", "brew install haproxy", "brew install google-chrome", "brew install node")
}

func TestMacOSFindsHomebrewWhichIsNotOnPath(t *testing.T) {
	m := newMachine(t, "Darwin")
	m.command("brew", deliver)
	m.file(m.shelf+"/redis/usr/local/bin/redis-server", "")
	must(os.MkdirAll(m.root+"/opt/homebrew/bin", 0o755))
	must(os.Rename(m.bin+"/brew", m.root+"/opt/homebrew/bin/brew"))
	m.mustInstall([]string{"redis"}, "brew install redis")
}

func TestWithoutAPackageManagerItSaysWhatIsNeeded(t *testing.T) {
	all := []string{"PostgreSQL 14", "redis-server or valkey-server", "pgbouncer", "prometheus with promtool", "Alertmanager with amtool", "haproxy", "curl", "Chromium or Chrome", "Node.js with npm"}
	newMachine(t, "Linux").mustRefuse(nil, 1, append(all, "gcc", "systemd"))
	newMachine(t, "FreeBSD").mustRefuse(nil, 1, append(all, "gcc", "systemd"))
	newMachine(t, "Darwin").mustRefuse(nil, 1, append(all, "Homebrew"))
}

func TestAnUnknownArgumentIsWrongUsage(t *testing.T) {
	newMachine(t, "Linux").mustRefuse([]string{"postgres", "mysql"}, 2, []string{"mysql"})
}

func TestAFailedInstallationShowsWhy(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.command("apt-get", "echo disk full; exit 100")
	said, code, _ := m.install("postgres")
	if code != 1 || !strings.Contains(said, "disk full\n") || !strings.Contains(said, "could not install: PostgreSQL 14") {
		t.Errorf("exit status %d, said %q", code, said)
	}
	m.bare()
}

func TestAServerThatIsTooOldIsNotTakenForInstalled(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	must(os.RemoveAll(m.shelf + "/postgresql"))
	m.debianPostgres(m.shelf+"/postgresql", "13.9")
	said, code, _ := m.install("postgres")
	if code != 1 || !strings.HasSuffix(said, "still missing: PostgreSQL 14 or later\n") {
		t.Errorf("exit status %d, said %q", code, said)
	}
}

// Where a server is found, nothing is called: a package manager would fail.
func TestPostgresIsFoundWhereSystemsPutIt(t *testing.T) {
	for _, c := range []struct {
		name, bin, version string
		found              bool
	}{
		{"Debian", "/usr/lib/postgresql/15/bin", "15.18 (Debian 15.18-0)", true},
		{"the project's own RPM", "/usr/pgsql-14/bin", "14.1", true},
		{"Homebrew", "/usr/local/opt/postgresql@16/bin", "16.1 (Homebrew)", true},
		{"Postgres.app", "/Applications/Postgres.app/Contents/Versions/18/bin", "18beta1 (Postgres.app)", true},
		{"Fedora, on PATH", "/../bin", "16.3", true},
		{"too old", "/usr/pgsql-13/bin", "13.14", false},
		{"no version", "/usr/pgsql-15/bin", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, "Linux")
			m.postgres(m.root, c.bin, c.version)
			if !c.found {
				m.mustRefuse([]string{"postgres"}, 1, []string{"PostgreSQL 14"})
				return
			}
			if said := m.mustInstall([]string{"postgres"}); said != "" {
				t.Errorf("said %q, want nothing", said)
			}
		})
	}
}
