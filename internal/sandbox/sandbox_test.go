package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// openDir is a folder that the account Postgres runs as may enter.
func openDir(t *testing.T) string {
	dir := must1(os.MkdirTemp("", "listedge-test-"))
	must(os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

func TestPostgresLivesDiesAndComesBackOnItsFolder(t *testing.T) {
	dir := openDir(t)
	p := must1(StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}))
	t.Cleanup(func() { _ = p.Stop() })
	if conn, err := net.Dial("tcp", p.Addr()); err != nil {
		t.Fatal(err)
	} else {
		conn.Close()
	}
	first := p.Pid()
	must(p.Kill(syscall.SIGQUIT))
	if alive(first) {
		t.Fatalf("postmaster %d survived", first)
	}
	must(p.Restart(within(t, time.Minute)))
	must(p.Freeze())
	if err := p.Stop(); err != nil {
		t.Fatal("a frozen server must end too:", err)
	}

	again := must1(StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}))
	if again.password != p.password {
		t.Error("the folder's password changed")
	}
	// A second server on the same folder is refused, and named.
	if _, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint(again.Pid())) {
		t.Error(err)
	}
	must(again.Stop())
}

func TestAnInterruptedInitdbSaysSoAndLeavesNothing(t *testing.T) {
	dir := openDir(t)
	if _, err := StartPostgres(within(t, 100*time.Millisecond), PostgresOptions{Dir: dir}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestTheFirstPostgresInPATHIsUsed(t *testing.T) {
	folder := openDir(t)
	for _, name := range []string{"postgres", "initdb"} {
		must(os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n"), 0o755))
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	if bin := must1(FindPostgres()); bin != folder {
		t.Error("used", bin)
	}
}

// alive says whether a process with this pid exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestPostgresRefusesFoldersItCannotUse(t *testing.T) {
	other := openDir(t)
	p := must1(StartPostgres(within(t, time.Minute), PostgresOptions{Dir: other, Disposable: true}))
	must(p.Stop())
	must(os.WriteFile(filepath.Join(other, "cluster", "PG_VERSION"), []byte("9\n"), 0o644))
	file := filepath.Join(t.TempDir(), "file")
	must(os.WriteFile(file, nil, 0o644))
	for name, c := range map[string]struct{ dir, says string }{"another version": {other, "not compatible"}, "a file": {file, "not a directory"}} {
		if _, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: c.dir}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Geteuid() != 0 { // Postgres runs as the user who made all folders
		return
	}
	if _, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "ermission denied") {
		t.Errorf("a folder that Postgres may not enter: %v", err)
	}
}
