package deploy_test

import (
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
	cmd.Env = append(os.Environ(), "PATH="+here+":"+postgres.Bin+":"+os.Getenv("PATH"), "LISTEDGE_LISTEN="+public, "LISTEDGE_ADMIN_LISTEN="+admin, "LISTEDGE_DRAIN=0s")
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, said)
	}
	for _, want := range []string{"made the slot", "ok    wal_level", `"name":"Bolt"`, `"hasMore":true`, `"name":"Washer"`, `"hasMore":false`,
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
