// Package deploy_test tries what is deployed. The installer runs on machines
// that are made up: a PATH of programs that only note how they were called, and
// a root folder of its own. The rest runs on this one, with the program that
// the Dockerfile's step builds: real nodes behind a real HAProxy, watched by a
// real Prometheus; and files that only others can run are held against what
// they speak of.
//
//	dashboard ────────────┐
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
	"slices"
	"strings"
	"testing"
)

// machine is a made-up computer.
type machine struct {
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
	top := t.TempDir()
	m := &machine{root: top + "/root", bin: top + "/bin", shelf: top + "/shelf", calls: top + "/calls", uid: "0"}
	for _, dir := range []string{m.root, m.bin, m.shelf} {
		must(os.Mkdir(dir, 0o755))
	}
	for _, tool := range []string{"sh", "cat", "chmod", "cp", "grep", "mkdir", "mktemp", "rm", "rmdir", "tail"} {
		must(os.Symlink(must1(exec.LookPath(tool)), filepath.Join(m.bin, tool)))
	}
	m.file(m.bin+"/uname", "echo "+system)
	m.file(m.bin+"/id", `echo "$MACHINE_UID"`)
	m.file(m.bin+"/sleep", "")
	return m
}

// file writes a program of the machine.
func (m *machine) file(path, body string) {
	must(os.MkdirAll(filepath.Dir(path), 0o755))
	must(os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
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

// packages are on the shelf, each with its programs in a folder.
func (m *machine) packages(bin string, programs map[string]string) {
	for name, all := range programs {
		for program := range strings.FieldsSeq(all) {
			m.file(m.shelf+"/"+name+bin+"/"+program, "")
		}
	}
}

// deliver is the part of a package manager that puts what is on the shelf into
// the root, for each package named.
const deliver = `for arg in "$@"; do
	[ ! -d "$MACHINE_SHELF/$arg" ] || cp -R "$MACHINE_SHELF/$arg/." "$INSTALL_TEST_ROOT/"
done`

// debian gives the machine apt-get, which also notes what is there to keep
// packages from starting servers and making clusters.
func (m *machine) debian() {
	m.postgres(m.shelf+"/postgresql", "/usr/lib/postgresql/16/bin", "16.3 (Debian 16.3-1)")
	m.packages("/usr/local/bin", map[string]string{"redis-server": "redis-server", "pgbouncer": "pgbouncer", "haproxy": "haproxy",
		"nginx-light": "nginx", "curl": "curl",
		"systemd": "systemd-analyze", "chromium": "chromium", "nodejs": "node", "npm": "npm", "prometheus": "prometheus promtool",
		"prometheus-alertmanager": "prometheus-alertmanager amtool"})
	m.file(m.shelf+"/gcc/usr/bin/gcc", "")
	must(os.Symlink(m.root+"/usr/bin/gcc", m.bin+"/gcc")) // dangles until gcc is installed
	m.command("systemctl", "")
	m.command("apt-get", `for guard in usr/sbin/policy-rc.d etc/postgresql-common/createcluster.d/listedge.conf; do
	[ ! -e "$INSTALL_TEST_ROOT/$guard" ] || echo "guard $guard: $(tail -n 1 "$INSTALL_TEST_ROOT/$guard")" >>"$MACHINE_CALLS"
done
`+deliver)
}

// install runs the installer and returns what it said, how it exited and which
// programs it called.
func (m *machine) install(t *testing.T, args ...string) (said string, code int, calls []string) {
	must1(os.Stat("install.sh")) // or go test would answer from its cache when only the script has changed
	cmd := exec.Command("/bin/sh", append([]string{"install.sh"}, args...)...)
	cmd.Env = []string{
		"PATH=" + m.bin, "TMPDIR=" + t.TempDir(), "INSTALL_TEST_ROOT=" + m.root,
		"MACHINE_CALLS=" + m.calls, "MACHINE_SHELF=" + m.shelf, "MACHINE_UID=" + m.uid,
	}
	if m.cc != "" {
		cmd.Env = append(cmd.Env, "CC="+m.cc)
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	noted, err := os.ReadFile(m.calls)
	if err == nil {
		calls = strings.Split(strings.TrimSpace(string(noted)), "\n")
		must(os.Remove(m.calls))
	}
	return string(out), cmd.ProcessState.ExitCode(), calls
}

// isCall says whether a call is the wanted one, which may leave options out: its words are
// found in the call, in that order.
func isCall(call, want string) bool {
	words := strings.Fields(want)
	for _, word := range strings.Fields(call) {
		if len(words) > 0 && word == words[0] {
			words = words[1:]
		}
	}
	return len(words) == 0
}

const (
	guardedService = "guard usr/sbin/policy-rc.d: exit 101"
	guardedCluster = "guard etc/postgresql-common/createcluster.d/listedge.conf: create_main_cluster = false"
	policyFile     = "/usr/sbin/policy-rc.d"
)

func TestInstall(t *testing.T) {
	debian := (*machine).debian
	bare := func(*machine) {}
	everything := "postgresql redis-server pgbouncer gcc libc6-dev prometheus prometheus-alertmanager haproxy nginx-light curl systemd chromium nodejs npm"
	byHand := "PostgreSQL 15,redis-server or valkey-server,pgbouncer,prometheus with promtool,Alertmanager with amtool,haproxy,nginx,curl," +
		"Chromium or Chrome,Node.js with npm"
	for name, c := range map[string]struct {
		system string
		with   func(*machine)
		args   string
		code   int
		says   string   // parts of what it says, between commas
		calls  []string // of programs
	}{
		"Debian: all in one go, and nothing is started": {"Linux", debian, "", 0, "install: apt-get install " + everything + "\n", []string{
			"apt-get install -y --no-install-recommends DPkg::Lock::Timeout=300 " + everything, guardedService, guardedCluster, "systemctl disable redis-server",
			"systemctl disable pgbouncer", "systemctl disable prometheus", "systemctl disable prometheus-alertmanager", "systemctl disable haproxy",
			"systemctl disable nginx"}},
		"Debian: only what is asked for and missing": {"Linux", func(m *machine) {
			m.debian()
			m.postgres(m.root, "/usr/lib/postgresql/15/bin", "15.18")
		}, "postgres redis", 0, "apt-get install redis-server", []string{
			"apt-get install redis-server", guardedService, guardedCluster, "systemctl disable redis-server"}},
		"Debian: lists are missing, and fetched at the second try": {"Linux", func(m *machine) {
			m.debian()
			m.command("systemctl", "exit 1")
			m.command("apt-get", `if [ "$1" = update ]; then
	echo once >>"$MACHINE_SHELF/updates"
	[ "$(grep -c once "$MACHINE_SHELF/updates")" -eq 2 ]; exit
fi
[ -e "$MACHINE_SHELF/updates" ] || exit 100
`+deliver)
		}, "redis", 0, "apt-get install redis-server", []string{"apt-get install redis-server", "apt-get update", "apt-get update", "apt-get install redis-server",
			"systemctl disable redis-server"}},
		"Debian: a killed run has left its files": {"Linux", func(m *machine) {
			m.debian()
			m.file(m.root+policyFile, "# made by deploy/install.sh, which removes it when it ends\nexit 101")
		}, "postgres", 0, "apt-get install postgresql", []string{"apt-get install postgresql", guardedService, guardedCluster}},
		"Debian: stopped": {"Linux", func(m *machine) { m.debian(); m.command("apt-get", "kill -TERM $PPID") }, "postgres", 143, "apt-get",
			[]string{"apt-get install postgresql"}},
		"Debian: it fails": {"Linux", func(m *machine) { m.debian(); m.command("apt-get", "echo disk full; exit 100") }, "postgres", 1,
			"disk full\n,could not install: PostgreSQL 15", []string{"apt-get install", "apt-get update", "apt-get update", "apt-get update", "apt-get install"}},
		"Debian: the server that comes is too old": {"Linux", func(m *machine) {
			m.debian()
			m.postgres(m.shelf+"/postgresql", "/usr/lib/postgresql/16/bin", "13.9")
		}, "postgres", 1, "still missing: PostgreSQL 15 or later\n", []string{"apt-get install postgresql", guardedService, guardedCluster}},
		"Debian: by sudo, the whole script": {"Linux", func(m *machine) {
			m.debian()
			m.uid = "1000"
			m.command("sudo", `[ "$1" = -n ] || exit 1
shift
[ "$1" != true ] || exit 0
MACHINE_UID=0
exec "$@"`)
		}, "postgres redis", 0, "apt-get", []string{"sudo -n true", "sudo -n sh install.sh postgres redis",
			"apt-get install postgresql redis-server", guardedService, guardedCluster, "systemctl disable redis-server"}},
		"neither root nor sudo": {"Linux", func(m *machine) { m.debian(); m.uid = "1000" }, "postgres redis", 1, "run: sudo sh install.sh postgres redis", nil},
		"sudo that asks": {"Linux", func(m *machine) {
			m.debian()
			m.uid = "1000"
			m.command("sudo", "echo a password is required >&2; exit 1")
		}, "redis", 1, "run: sudo sh install.sh redis", []string{"sudo -n true"}},
		"Ubuntu's Chromium has another name": {"Linux", func(m *machine) {
			m.debian()
			m.file(m.shelf+"/chromium-browser/usr/local/bin/chromium-browser", "")
			m.file(m.root+"/etc/os-release", "NAME=Ubuntu\nID=ubuntu")
		}, "chromium", 0, "apt-get", []string{"apt-get install chromium-browser", guardedService, guardedCluster}},
		"Fedora": {"Linux", func(m *machine) {
			m.cc = "clang -m64"
			for _, program := range []string{"clang", "curl", "systemd-analyze"} {
				m.file(m.bin+"/"+program, "")
			}
			m.postgres(m.shelf+"/postgresql-server", "/usr/pgsql-17/bin", "17.2")
			m.packages("/usr/local/bin", map[string]string{"valkey": "valkey-server", "pgbouncer": "pgbouncer", "haproxy": "haproxy",
				"nginx": "nginx", "chromium": "chromium-browser"})
			for _, name := range []string{"prometheus", "promtool", "alertmanager", "amtool", "node", "npm"} { // dnf finds a package by a file that it has
				m.file(m.shelf+"/usr/bin/"+name+"/usr/local/bin/"+name, "")
			}
			m.command("dnf", `for arg in "$@"; do [ "$arg" != redis ] || exit 1; done
`+deliver)
		}, "", 0, "dnf install", []string{"dnf install -y postgresql-server postgresql-contrib", "dnf install -y redis", "dnf install -y valkey",
			"dnf install -y pgbouncer", "dnf install -y /usr/bin/prometheus /usr/bin/promtool", "dnf install -y /usr/bin/alertmanager /usr/bin/amtool",
			"dnf install -y haproxy", "dnf install -y nginx", "dnf install -y chromium", "dnf install -y /usr/bin/node /usr/bin/npm"}},
		"macOS, Homebrew not on the PATH": {"Darwin", func(m *machine) {
			m.uid = "501"
			m.postgres(m.shelf+"/postgresql@17", "/opt/homebrew/opt/postgresql@17/bin", "17.2 (Homebrew)")
			m.packages("/opt/homebrew/bin", map[string]string{"redis": "redis-server", "pgbouncer": "pgbouncer", "prometheus": "prometheus promtool",
				"alertmanager": "alertmanager amtool", "haproxy": "haproxy", "nginx": "nginx", "node": "node npm"})
			m.file(m.shelf+"/google-chrome/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "")
			m.file(m.bin+"/curl", "")
			m.command("brew", deliver)
			must(os.MkdirAll(m.root+"/opt/homebrew/bin", 0o755))
			must(os.Rename(m.bin+"/brew", m.root+"/opt/homebrew/bin/brew"))
		}, "", 0, "brew install", []string{"brew install postgresql@17", "brew install redis", "brew install pgbouncer", "brew install prometheus",
			"brew install alertmanager", "brew install haproxy", "brew install nginx", "brew install google-chrome", "brew install node"}},
		"Linux without a package manager": {"Linux", bare, "", 1, byHand + ",gcc,systemd", nil},
		"FreeBSD":                         {"FreeBSD", bare, "", 1, byHand + ",gcc,systemd", nil},
		"macOS without Homebrew":          {"Darwin", bare, "", 1, byHand + ",Homebrew", nil},
		"an unknown argument":             {"Linux", bare, "postgres mysql", 2, "mysql", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.system)
			c.with(m)
			said, code, calls := m.install(t, strings.Fields(c.args)...)
			if code != c.code || c.calls == nil && strings.Count(said, "\n") != 1 {
				t.Errorf("exit status %d: %s", code, said)
			}
			for part := range strings.SplitSeq(c.says, ",") {
				if !strings.Contains(said, part) {
					t.Errorf("said %q, which lacks %q", said, part)
				}
			}
			if !slices.EqualFunc(calls, c.calls, isCall) {
				t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(calls, "\n"), strings.Join(c.calls, "\n"))
			}
			for _, path := range []string{policyFile, "/etc/postgresql-common"} { // which it needs only while it installs
				if _, err := os.Lstat(m.root + path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s was left behind (%v)", path, err)
				}
			}
			if code == 0 { // what is there is not installed again
				if said, code, calls := m.install(t, strings.Fields(c.args)...); code != 0 || said != "" || calls != nil {
					t.Errorf("the second run: exit status %d, said %q, called %v", code, said, calls)
				}
			}
		})
	}
}

func TestInstallKeepsAPolicyThatWasThere(t *testing.T) {
	m := newMachine(t, "Linux")
	m.debian()
	m.file(m.root+policyFile, "exit 101")
	if said, code, _ := m.install(t, "postgres"); code != 0 {
		t.Errorf("exit status %d: %s", code, said)
	}
	if text := string(must1(os.ReadFile(m.root + policyFile))); text != "#!/bin/sh\nexit 101\n" {
		t.Errorf("policy-rc.d is %q, want it as it was", text)
	}
}

// Where a server is found, nothing is called: a package manager would fail.
func TestPostgresIsFoundWhereSystemsPutIt(t *testing.T) {
	for _, c := range []struct {
		name, bin, version string
		found              bool
	}{
		{"Debian", "/usr/lib/postgresql/15/bin", "15.18 (Debian 15.18-0)", true},
		{"the project's own RPM", "/usr/pgsql-16/bin", "16.1", true},
		{"Homebrew", "/usr/local/opt/postgresql@16/bin", "16.1 (Homebrew)", true},
		{"Postgres.app", "/Applications/Postgres.app/Contents/Versions/18/bin", "18beta1 (Postgres.app)", true},
		{"Fedora, on PATH", "/../bin", "16.3", true},
		{"too old", "/usr/pgsql-14/bin", "14.14", false},
		{"no version", "/usr/pgsql-15/bin", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, "Linux")
			m.postgres(m.root, c.bin, c.version)
			if said, code, _ := m.install(t, "postgres"); (code == 0 && said == "") != c.found {
				t.Errorf("exit status %d, said %q", code, said)
			}
		})
	}
}
