package deploy_test

import (
	"bytes"
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

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// The tutorial, as somebody follows it: its commands one after the other in one
// shell. What it shows as their output is what they print.
func TestTutorial(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "TUTORIAL.md"))
	must(err)
	var script, want strings.Builder
	script.WriteString("set -eu\n")
	blocks := 0
	for _, m := range regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if m[1] == "sh" {
			blocks++
			fmt.Fprintf(&script, "echo '--- %d'\n%s", blocks, m[2])
			fmt.Fprintf(&want, "--- %d\n", blocks)
		} else {
			want.WriteString(m[2])
		}
	}
	if blocks < 10 {
		t.Fatalf("only %d blocks of commands", blocks)
	}
	base := freePorts(t, 500)
	commands := strings.Replace(script.String(), "PORT=8080", "PORT="+strconv.Itoa(base), 1)

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
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", commands)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "LISTEDGE_DATABASE_URL="+postgres.URL("listedge"),
		"LISTEDGE_FRESHNESS_BOUND=10s", // so large that a busy machine does not end it
		"PATH="+home+":"+postgres.Bin+":"+os.Getenv("PATH"), "HOME="+home, "TMPDIR="+home)
	asServer(t, cmd, home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr.Setpgid = true
	err = cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what a failure has left running
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), errs.String())
	}
	blocksOf := func(s string) []string { return strings.Split(s, "--- ") }
	got, wanted := blocksOf(out.String()), blocksOf(want.String())
	for i := range wanted {
		if i >= len(got) || !like(got[i], wanted[i]) {
			t.Errorf("printed\n%s\nand the tutorial shows\n%s\n%s", got[min(i, len(got)-1)], wanted[i], errs.String())
		}
	}
}

// like matches an output with … for what may be anything. A block that shows
// nothing of its output may print what it likes.
func like(got, want string) bool {
	if strings.Count(want, "\n") <= 1 {
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
