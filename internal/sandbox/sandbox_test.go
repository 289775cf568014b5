package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	// A second start on the same folder takes over from a server left behind.
	third := must1(StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}))
	if !again.exited() {
		t.Error("two servers on one folder")
	}
	must(third.Stop())
}

func TestTheFirstPostgresInPATHIsUsed(t *testing.T) {
	folder := openDir(t)
	for _, name := range []string{"postgres", "initdb"} {
		must(os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 14.1'\n"), 0o755))
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	if bin := must1(findPostgres(0)); bin != folder {
		t.Error("used", bin)
	}
	if bin, err := findPostgres(99); err == nil {
		t.Error("found the Postgres 99 in", bin)
	}
}

// alive says whether a process with this pid exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestAStalePidFileNamesNobodyWhoIsEnded(t *testing.T) {
	dir := openDir(t)
	p := must1(StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}))
	must(p.Stop())
	bystander := exec.Command("sleep", "60")
	must(bystander.Start())
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	pidFile := filepath.Join(dir, "cluster", "postmaster.pid")
	must(os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n%s\n", bystander.Process.Pid, p.cluster()), 0o600))
	must(give(pidFile, p.as))
	// Postgres may refuse to start while the process of that pid runs. This process must not be ended.
	if again, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir, Disposable: true}); err == nil {
		_ = again.Stop()
	}
	if err := syscall.Kill(bystander.Process.Pid, 0); err != nil {
		t.Error("a process that happened to have the pid was ended")
	}
}

func TestPostgresRefusesFoldersItCannotUse(t *testing.T) {
	other := openDir(t)
	must(os.MkdirAll(filepath.Join(other, "cluster"), 0o755))
	must(os.WriteFile(filepath.Join(other, "cluster", "PG_VERSION"), []byte("9\n"), 0o644))
	file := filepath.Join(t.TempDir(), "file")
	must(os.WriteFile(file, nil, 0o644))
	for name, dir := range map[string]string{"another version": other, "a file": file} {
		_, err := StartPostgres(within(t, time.Minute), PostgresOptions{Dir: dir})
		if !errors.Is(err, ErrDataFolder) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
