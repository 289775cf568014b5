package deploy_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// The tutorial, as somebody follows it: its commands one after the other in one
// shell. What it shows as their output is what they print.
func TestTutorial(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "TUTORIAL.md"))
	must(err)
	blocks := tutorialBlocks(strings.Replace(string(text), "PORT=8080", "PORT="+strconv.Itoa(freePorts(t, 500)), 1))
	if len(blocks) < 10 {
		t.Fatalf("only %d blocks of commands", len(blocks))
	}

	postgres := sandboxtest.Postgres(t)
	// This server has its settings from its command line; one of the reader's own
	// has them in its files, which a standby's are a copy of.
	for _, sql := range []string{"CREATE DATABASE listedge", "ALTER SYSTEM SET max_connections = 200", "ALTER SYSTEM SET max_wal_senders = 20"} {
		set := exec.Command(filepath.Join(postgres.Bin, "psql"), postgres.URL("postgres"), "-c", sql)
		if said, err := set.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	ours, err := program()
	must(err)
	home := sandboxtest.Dir(t)
	copied := filepath.Join(home, "listedge") // where another account may run it
	binary, err := os.ReadFile(ours)
	must(err)
	must(os.WriteFile(copied, binary, 0o755))
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", tutorialShell)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "LISTEDGE_DATABASE_URL="+postgres.URL("listedge"),
		"LISTEDGE_FRESHNESS_BOUND=10s", // so large that a busy machine does not end it
		"PATH="+home+":"+postgres.Bin+":"+os.Getenv("PATH"), "HOME="+home, "TMPDIR="+home)
	asServer(t, cmd, home)
	run := startBlocks(t, cmd, home)
	for _, b := range blocks {
		b.follow(t, run)
	}
}

// tutorialBlock is a block of commands, and what the tutorial shows as its output; empty = nothing.
type tutorialBlock struct{ commands, shown string }

func tutorialBlocks(text string) (blocks []tutorialBlock) {
	for _, m := range regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		if m[1] == "sh" {
			blocks = append(blocks, tutorialBlock{commands: m[2]})
			continue
		}
		b := &blocks[len(blocks)-1]
		b.shown = m[2]
		answers := regexp.MustCompile(`(?m)^\d{3} listedge; (fwd=[\w-]+|hit; detail=\w+)`).FindAllStringSubmatch(b.shown, -1)
		flags := regexp.MustCompile(`(?m)^node \d (--.*)$`).FindStringSubmatch(b.commands + "\nnode 0 -- ")[1]
		b.commands = regexp.MustCompile(`(?m)^ask (\d)`).ReplaceAllStringFunc(b.commands, func(ask string) string {
			from := answers[0][1] // one for each
			answers = answers[1:]
			return fmt.Sprintf("askFor '%s' %s %s", from, ask[len("ask "):], strings.TrimPrefix(flags, "-- "))
		})
	}
	return blocks
}

// repeatable says whether the block may run again if a server was too slow: it starts and ends nothing.
func (b *tutorialBlock) repeatable() bool {
	return b.shown != "" && !regexp.MustCompile(`(?m)^ *(node|stop|kill|redis-server|pg_ctl|mkdir) `).MatchString(b.commands)
}

// follow runs the commands, which print what is shown.
func (b *tutorialBlock) follow(t *testing.T, run func(commands string) string) {
	t.Helper()
	got := run(b.commands)
	if b.repeatable() {
		sandboxtest.Within(t, patience, "the output of\n"+b.commands, func() bool {
			if like(got, b.shown) {
				return true
			}
			t.Logf("printed, and not for the first time shown:\n%s", got)
			got = run(b.commands)
			return false
		})
	}
	if !like(got, b.shown) {
		t.Errorf("printed\n%s\nand the page shows\n%s", got, b.shown)
	}
}

// tutorialShell runs the blocks in the files that are its arguments. askFor asks a node for a page that comes from there. A
// server may be too slow for it on a busy machine: then askFor asks again, a node that has just started unless the page shall be in
// memory. A page of a node with flags comes from its standby.
const tutorialShell = `
set -eu
askFor() {
	from=$1 asked=$2; shift 2
	for attempt in $(seq 50); do
		ask "$asked" >"$DATA/asked" || true
		grep -q "^200 listedge; $from" "$DATA/asked" && ofStandby "$@" && break
		case $from in *memory) continue ;; esac
		stop "$asked"; node "$asked" "$@"
	done
	cat "$DATA/asked"
}
ofStandby() { [ $# = 0 ] || curl -s "http://127.0.0.1:$((PORT + 100 + asked))/metrics" | grep -q '^listedge_origin_standby_fetches_total{outcome="ok"} 1$'; }
while read -r block <&3; do
	. "$block" 3<&-
	echo "--- ended"
done`

// startBlocks starts the shell. run has it run commands, and returns what they print.
func startBlocks(t *testing.T, cmd *exec.Cmd, dir string) (run func(commands string) (printed string)) {
	t.Helper()
	blocks, names, err := os.Pipe()
	must(err)
	printed, out, err := os.Pipe()
	must(err)
	errs := must1(os.Create(filepath.Join(dir, "errors")))
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{blocks}, out, errs
	cmd.SysProcAttr.Setpgid = true
	must(cmd.Start())
	for _, f := range []*os.File{blocks, out, errs} {
		must(f.Close())
	}
	lines := bufio.NewReader(printed)
	t.Cleanup(func() {
		_ = names.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left running
		_ = cmd.Wait()
		_ = printed.Close()
		if t.Failed() {
			t.Logf("%s", must1(os.ReadFile(errs.Name())))
		}
	})
	count := 0
	return func(commands string) string {
		t.Helper()
		count++
		name := filepath.Join(dir, fmt.Sprintf("block%d", count))
		must(os.WriteFile(name, []byte(commands), 0o644))
		must1(fmt.Fprintln(names, name))
		var all strings.Builder
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the shell has ended (%v) in\n%s\nafter\n%s", err, commands, all.String())
			}
			if line == "--- ended\n" {
				return all.String()
			}
			all.WriteString(line)
		}
	}
}

// like matches an output with … for what may be anything. A block that shows
// nothing of its output may print what it likes.
func like(got, want string) bool {
	if want == "" {
		return true
	}
	pattern := regexp.QuoteMeta(want)
	pattern = strings.ReplaceAll(pattern, "…\n", "(?s:.*)")
	return regexp.MustCompile("^" + strings.ReplaceAll(pattern, "…", ".*") + "$").MatchString(got)
}

// freePorts is a base port from which the ports that the tutorial uses are free.
func freePorts(t *testing.T, span int) int {
	t.Helper()
	for base := 20000; base < 32000; base += span {
		free := true
		for _, offset := range []int{0, 1, 2, 3, 4, 5, 6, 100, 101, 102, 103, 104, 105, 106, 200, 300, 401, 402, 403, 10401, 10402, 10403} {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(base+offset))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

// asServer has the command run as the account that Postgres runs as: it will
// not run as root.
func asServer(t *testing.T, cmd *exec.Cmd, home string) {
	t.Helper()
	account := must1(sandbox.ServerAccount())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	if account == nil {
		return
	}
	must(os.Chown(home, int(account.Uid), int(account.Gid)))
}

// The README's commands from an empty database to a page, in their order. Only addresses and
// ids are replaced by those of the test.
func TestTheREADMEsCommandsWork(t *testing.T) {
	t.Parallel()
	ours := must1(program())
	here, postgres, redis := t.TempDir(), sandboxtest.Postgres(t), sandboxtest.Redis(t)
	must(os.Symlink(ours, filepath.Join(here, "listedge")))
	must(os.WriteFile(filepath.Join(here, "items.csv"), []byte("Bolt\nNut\nRing\nRod\nScrew\nWasher\n"), 0o644)) // of the workspace to come
	var walk, install string
	for _, block := range find(t, "../README.md", "(?ms)^```sh\n(.*?)^```$") {
		switch {
		case strings.Contains(block, "cursor=…"):
			walk = block
		case strings.Contains(block, "listedge serve"):
			install = block
		}
	}
	public, admin := "127.0.0.1:"+freePort(), "127.0.0.1:"+freePort()
	changes := []string{ // each has to be there
		"postgres://user:password@host/database", "'" + postgres.URL("postgres") + "'",
		"redis://host", redis.URL(),
		"127.0.0.1:9090", admin,
		"listedge workspaces create", "ID=$(listedge workspaces create",
		`--name "Shop" `, `--name "Shop") `,
		"listedge keys create", "KEY=$(listedge keys create",
		`--name "Sync" `, `--name "Sync") `,
		"--workspace ID", `--workspace "$ID"`,
		"psql ", `sed -i.old "s/^/$ID,/" items.csv; psql `,
		"# one node;", "& NODE=$!; until curl -sf http://" + admin + "/readyz | grep followed; do sleep 0.1; done\n" + walk + "#",
		"127.0.0.1:8080", public,
		"curl -i", "curl -sfi --retry 60", // a busy machine may not look up the key in time: 503
		"&cursor=…'", "&cursor='$(curl -s --retry 60 -H \"X-API-Key: $KEY\" 'http://" + public +
			"/v1/items?limit=5&sort=name' | grep -o '\"nextCursor\":\"[^\"]*' | cut -d'\"' -f4)",
	}
	script := install
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(script, changes[i]) {
			t.Fatalf("the README has no %q any more", changes[i])
		}
		script = strings.ReplaceAll(script, changes[i], changes[i+1])
	}
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", "set -euo pipefail\nNODE=; trap 'kill $NODE; wait' EXIT\n"+script)
	cmd.Dir = here
	cmd.Env = append(os.Environ(), "PATH="+here+":"+postgres.Bin+":"+os.Getenv("PATH"), "LISTEDGE_LISTEN="+public, "LISTEDGE_ADMIN_LISTEN="+admin,
		"LISTEDGE_DRAIN=0s")
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, said)
	}
	for _, want := range []string{"made the slot", "ok    follower", `"name":"Bolt"`, `"hasMore":true`, `"name":"Washer"`, `"hasMore":false`,
		"ok    fleet follower", "ok    fleet size"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("%q is missing:\n%s\n%s", want, script, said)
		}
	}
}

// The README's first command, with three nodes: what it prints works, the
// doctor finds a fleet, and Ctrl-C leaves nothing running.
func TestMakeRun(t *testing.T) {
	base := freePorts(t, 500) // before the parallel tests take ports
	at := func(offset int) string { return "127.0.0.1:" + strconv.Itoa(base+offset) }
	data := filepath.Join(sandboxtest.Dir(t), "data")
	cmd := exec.Command("make", "-C", "..", "run", "ARGS=--nodes 3 --data-dir "+data+" --listen "+at(0)+" --admin-listen "+at(100))
	printed, err := os.Create(filepath.Join(t.TempDir(), "printed"))
	must(err)
	defer printed.Close()
	cmd.Stdout, cmd.Stderr = printed, printed
	child, err := sandbox.StartChild(cmd)
	must(err)
	said := func() string {
		text, err := os.ReadFile(printed.Name())
		must(err)
		return string(text)
	}
	defer func() {
		_ = syscall.Kill(-child.Pid(), syscall.SIGINT) // a terminal sends Ctrl-C to all of the group
		select {
		case <-child.Done():
		case <-time.After(patience):
			t.Errorf("it does not end:\n%s", said())
			_ = syscall.Kill(-child.Pid(), syscall.SIGKILL)
		}
		if _, err := os.Stat(filepath.Join(data, "postmaster.pid")); !os.IsNotExist(err) {
			t.Errorf("Postgres still runs (%v)", err)
		}
		for _, offset := range []int{0, 1, 2, 100, 101, 102} {
			if _, _, err := get("http://"+at(offset)+"/", ""); err == nil {
				t.Errorf("%s is still answered", at(offset))
			}
		}
	}()
	within(t, patience, "it prints what to try", func() bool {
		select {
		case <-child.Done():
			t.Fatalf("it ended:\n%s", said())
		default:
		}
		return strings.Contains(said(), "\ncurl -i ")
	})
	try := regexp.MustCompile(`(?m)^curl -i .*$`).FindString(said())
	var page []byte
	within(t, patience, "the curl line that is printed works", func() bool {
		page, err = exec.Command("/bin/sh", "-c", try).Output()
		return err == nil
	})
	if !strings.HasPrefix(string(page), "HTTP/1.1 200") || !strings.Contains(string(page), `"data":[{"id":`) {
		t.Errorf("%s: %s", try, page)
	}
	valueOf := func(name string) string {
		return regexp.MustCompile(`(?m)^` + name + ` +(\S+)`).FindStringSubmatch(said())[1]
	}
	if nodes := regexp.MustCompile(`(?m)^node +http://`).FindAllString(said(), -1); len(nodes) != 3 {
		t.Errorf("it names %d nodes:\n%s", len(nodes), said())
	}
	within(t, patience, "the doctor finds a fleet", func() bool {
		found, err := exec.Command("../bin/listedge", "doctor", "--database-url", valueOf("database"), "--redis-url", valueOf("redis"), "--node",
			at(100)+","+at(101)+","+at(102)).Output()
		return err == nil && strings.Contains(string(found), "ok    fleet follower") && strings.Contains(string(found), "ok    fleet size")
	})
}
