package sandboxtest

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"listedge/internal/sandbox"
)

// Sentinel starts a Sentinel that watches master (host:port) under a name, alone: its own
// vote is enough to replace the master, which it takes for dead after downAfter without an
// answer.
func Sentinel(t testing.TB, name, master string, downAfter time.Duration) *sandbox.Server {
	t.Helper()
	path, err := sandbox.FindRedis()
	must(t, err)
	host, masterPort, err := net.SplitHostPort(master)
	must(t, err)
	dir := Dir(t)
	config := filepath.Join(dir, "sentinel.conf") // which Sentinel rewrites
	return start(t, sandbox.Program{Path: path, Dir: dir, Args: func(port string) []string {
		must(t, sandbox.WriteFile(config, fmt.Sprintf("bind 127.0.0.1\nport %[1]s\ndir %[2]s\nsentinel monitor %[3]s %[4]s %[5]s 1\n"+
			"sentinel down-after-milliseconds %[3]s %[6]d\nsentinel failover-timeout %[3]s 5000\n",
			port, dir, name, host, masterPort, downAfter.Milliseconds()), nil))
		return []string{config, "--sentinel"}
	}})
}
