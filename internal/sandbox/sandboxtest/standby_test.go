package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox"
)

// ask asks a server once, on a connection of its own.
func ask(t *testing.T, p *sandbox.Postgres, sql string) (answer string, err error) {
	t.Helper()
	conn, err := pgx.Connect(within(t, time.Minute), p.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(within(t, time.Minute))
	err = conn.QueryRow(within(t, time.Minute), sql).Scan(&answer)
	return answer, err
}

func say(t *testing.T, p *sandbox.Postgres, sql string) string {
	t.Helper()
	answer, err := ask(t, p, sql)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// sees waits until the statement has the answer there.
func sees(t *testing.T, p *sandbox.Postgres, sql, want string) {
	t.Helper()
	Within(t, time.Minute, sql+": "+want, func() bool {
		is, err := ask(t, p, sql)
		return err == nil && is == want
	})
}

func TestAStandbyFollowsItsPrimary(t *testing.T) {
	primary := PostgresWith(t, map[string]string{"max_prepared_transactions": "3", "max_connections": "210"}) // a standby may not have less
	say(t, primary, "CREATE TABLE marks AS SELECT 0 AS n")
	say(t, primary, "SELECT pg_create_logical_replication_slot('ours', 'pgoutput')::text")
	dir := Dir(t)
	s, err := startStandby(within(t, time.Minute), primary, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	const newest, slots, recovers = "SELECT max(n)::text FROM marks", "SELECT count(*)::text FROM pg_replication_slots", "SELECT pg_is_in_recovery()::text"
	if s.Addr() == primary.Addr() || say(t, s, recovers) != "true" || say(t, s, slots) != "0" {
		t.Errorf("%s of %s, in recovery: %s, slots: %s", s.Addr(), primary.Addr(), say(t, s, recovers), say(t, s, slots))
	}
	mark := func(n string) { say(t, primary, "INSERT INTO marks VALUES ("+n+")") }
	mark("1")
	sees(t, s, newest, "1")
	if _, err := ask(t, s, "INSERT INTO marks VALUES (9)"); err == nil {
		t.Error("a standby was written to")
	}
	for n, restart := range map[string]func(){
		"2": func() { must(t, s.Kill(syscall.SIGQUIT)); mark("2"); must(t, s.Restart(within(t, time.Minute))) },
		"3": func() { mark("3"); must(t, s.Restart(within(t, time.Minute))) },
		"4": func() { must(t, primary.Restart(within(t, time.Minute))); mark("4") },
	} {
		say(t, primary, "TRUNCATE marks")
		restart()
		sees(t, s, newest, n)
	}
	say(t, s, "SELECT pg_wal_replay_pause()::text")
	sees(t, s, "SELECT pg_get_wal_replay_pause_state()", "paused")
	mark("5")
	sees(t, s, "SELECT (pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn())::text", "true")
	if is := say(t, s, newest); is == "5" {
		t.Error("it replays while it is paused")
	}
	say(t, s, "SELECT pg_wal_replay_resume()::text")
	sees(t, s, newest, "5")

	must(t, s.Freeze())
	mark("6")
	must(t, s.Thaw())
	sees(t, s, newest, "6")

	if _, err := startStandby(within(t, time.Minute), primary, dir, nil); err == nil {
		t.Error("two standbys on one folder")
	}
	must(t, s.Freeze())
	pids := childrenOf(t, s.Pid())
	if len(pids) == 0 {
		t.Fatal("the server has no children")
	}
	pids = append(pids, s.Pid())
	must(t, s.Stop())
	for _, pid := range pids {
		Within(t, time.Minute, fmt.Sprintf("process %d ends", pid), func() bool { return syscall.Kill(pid, 0) != nil })
	}
	sees(t, primary, "SELECT count(*)::text FROM pg_stat_replication", "0")
	if is := say(t, primary, slots); is != "1" {
		t.Errorf("%s slots on the primary, want only the one of this test", is)
	}
}

func TestAStandbyReplaysWithItsDelay(t *testing.T) {
	primary := Postgres(t)
	say(t, primary, "CREATE TABLE marks AS SELECT 0 AS n")
	const delay = time.Second
	dir := Dir(t)
	s, err := startStandby(within(t, time.Minute), primary, dir, map[string]string{"recovery_min_apply_delay": "1s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	sees(t, s, "SELECT max(n)::text FROM marks", "0")
	for n := range 2 {
		began := time.Now()
		say(t, primary, "UPDATE marks SET n = n + 1")
		sees(t, s, "SELECT max(n)::text FROM marks", string(rune('1'+n)))
		if took := time.Since(began); took < delay {
			t.Errorf("seen after %s", took)
		}
		must(t, s.Restart(within(t, time.Minute))) // which the delay outlives
	}
	b, err := os.ReadFile(filepath.Join(dir, "cluster", "postgresql.auto.conf"))
	u, _ := url.Parse(primary.URL("postgres"))
	if password, _ := u.User.Password(); err != nil || strings.Contains(string(b), password) {
		t.Errorf("the password is in the configuration, or %v", err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// childrenOf lists the pids whose parent is pid.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		var child, parent int
		if n, _ := fmt.Sscan(line, &child, &parent); n == 2 && parent == pid {
			children = append(children, child)
		}
	}
	return children
}
