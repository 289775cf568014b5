// Package sandboxtest starts private Postgres and Redis servers for tests, each in a
// new folder. When the test ends, it stops the server and removes the folder.
package sandboxtest

import (
	"os"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox"
)

// Dir makes a folder that any account may enter, and removes it when the test ends.
// Postgres refuses to run as root, so it may run as another account than the test.
// testing's TempDir is closed to other accounts.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := TempDir()
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TempDir makes a folder that any account may enter, in memory if there is room: on a disk, to
// make and remove thousands of small files is most of the kernel's work for private servers.
func TempDir() (string, error) {
	const memory, room = "/dev/shm", 4 << 30
	in := ""
	var free syscall.Statfs_t
	if err := syscall.Statfs(memory, &free); err == nil && free.Bavail*uint64(free.Bsize) > room {
		in = memory
	}
	dir, err := os.MkdirTemp(in, "listedge-test-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// Postgres starts a private Postgres without crash safety, for speed.
func Postgres(t testing.TB) *sandbox.Postgres {
	t.Helper()
	return PostgresWith(t, nil)
}

// PostgresWith starts a private Postgres as Postgres does, with further settings.
func PostgresWith(t testing.TB, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	return startPostgres(t, sandbox.PostgresOptions{Dir: Dir(t), Disposable: true, Settings: settings})
}

func startPostgres(t testing.TB, o sandbox.PostgresOptions) *sandbox.Postgres {
	t.Helper()
	p, err := sandbox.StartPostgres(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// Within calls ok until it returns true. It fails the test if that takes longer than
// limit. It sleeps twice as long as ok took, and longer the longer it has waited, so that
// the code it waits for gets most of the processor.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for first := time.Now(); ; {
		began := time.Now()
		if ok() {
			return
		}
		waited := time.Since(first)
		if waited > limit {
			t.Fatalf("never came: %s", what)
		}
		time.Sleep(max(time.Millisecond, 2*time.Since(began), min(waited/16, 25*time.Millisecond)))
	}
}

// Redis starts a private Redis, with further arguments of redis-server.
func Redis(t testing.TB, args ...string) *sandbox.Redis {
	t.Helper()
	r, err := sandbox.StartRedis(t.Context(), Dir(t), args...)
	must(t, err)
	t.Cleanup(func() { _ = r.Stop() })
	return r
}

// start starts a server that takes connections once it accepts them.
func start(t testing.TB, p sandbox.Program) *sandbox.Server {
	t.Helper()
	p.Ready, p.End = (*sandbox.Server).TakesConnections, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
	s, err := sandbox.StartServer(t.Context(), p)
	must(t, err)
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
