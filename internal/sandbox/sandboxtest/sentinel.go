package sandboxtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox"
)

// Sentinel starts a Sentinel that watches master (host:port) under a name, alone: its own
// vote is enough to replace the master, which it takes for dead after downAfter without an
// answer.
func Sentinel(t testing.TB, name, master string, downAfter time.Duration) *sandbox.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	path, err := sandbox.FindServer("a Redis server", "redis-server", "valkey-server")
	must(t, err)
	host, masterPort, err := net.SplitHostPort(master)
	must(t, err)
	dir := Dir(t)
	config := filepath.Join(dir, "sentinel.conf") // which Sentinel rewrites
	s, err := sandbox.StartServer(ctx, sandbox.Program{
		Path: path, Dir: dir, Log: "sentinel.log", Ready: (*sandbox.Server).TakesConnections, End: []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL},
		Args: func(port string) ([]string, error) {
			text := "bind 127.0.0.1\nport " + port + "\ndir " + dir + "\n" +
				"sentinel monitor " + name + " " + host + " " + masterPort + " 1\n" +
				"sentinel down-after-milliseconds " + name + " " + strconv.FormatInt(downAfter.Milliseconds(), 10) + "\n" +
				"sentinel failover-timeout " + name + " 5000\n"
			return []string{config, "--sentinel"}, os.WriteFile(config, []byte(text), 0o644)
		}})
	must(t, err)
	t.Cleanup(func() { _ = s.Stop() })
	return s
}
