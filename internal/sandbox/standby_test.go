package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ask asks a server once, on a connection of its own.
func ask(t *testing.T, p *Postgres, sql string) (answer string, err error) {
	t.Helper()
	conn, err := pgx.Connect(within(t, time.Minute), p.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(within(t, time.Minute))
	err = conn.QueryRow(within(t, time.Minute), sql).Scan(&answer)
	return answer, err
}

func say(t *testing.T, p *Postgres, sql string) string {
	t.Helper()
	answer, err := ask(t, p, sql)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// sees waits until the statement has the answer there.
func sees(t *testing.T, p *Postgres, sql, want string) {
	t.Helper()
	var is string
	var err error
	failed := p.awaitReady(within(t, time.Minute), func() bool {
		is, err = ask(t, p, sql)
		return err == nil && is == want
	})
	if failed != nil {
		t.Fatalf("%s: %q, %v; want %q", sql, is, err, want)
	}
}

func TestAStandbyFollowsItsPrimary(t *testing.T) {
	primary, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: openDir(t), Disposable: true,
		Settings: map[string]string{"max_prepared_transactions": "3", "max_connections": "210"}}) // a standby may not have less
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	say(t, primary, "CREATE TABLE marks AS SELECT 0 AS n")
	say(t, primary, "SELECT pg_create_logical_replication_slot('ours', 'pgoutput')::text")
	dir := openDir(t)
	s, err := primary.StartStandby(within(t, time.Minute), dir, nil)
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

	if _, err := primary.StartStandby(within(t, time.Minute), dir, nil); err == nil {
		t.Error("two standbys on one folder")
	}
	must(t, s.Freeze())
	pids, err := childrenOf(s.Pid())
	if err != nil || len(pids) == 0 {
		t.Fatal(pids, err)
	}
	pids = append(pids, s.Pid())
	must(t, s.Stop())
	for _, pid := range pids {
		if err := primary.awaitReady(within(t, time.Minute), func() bool { return !alive(pid) }); err != nil {
			t.Errorf("process %d is left", pid)
		}
	}
	sees(t, primary, "SELECT count(*)::text FROM pg_stat_replication", "0")
	if is := say(t, primary, slots); is != "1" {
		t.Errorf("%s slots on the primary, want ours alone", is)
	}
}

func TestAStandbyLagsAsItIsTold(t *testing.T) {
	primary, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: openDir(t), Disposable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	say(t, primary, "CREATE TABLE marks AS SELECT 0 AS n")
	const delay = time.Second
	s, err := primary.StartStandby(within(t, time.Minute), openDir(t), map[string]string{"recovery_min_apply_delay": "1s"})
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
	b, err := os.ReadFile(filepath.Join(s.cluster(), "postgresql.auto.conf"))
	if err != nil || strings.Contains(string(b), primary.password) {
		t.Errorf("the password is in the configuration, or %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
