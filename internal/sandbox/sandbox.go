// Package sandbox starts private Postgres and Redis servers. `listedge dev` uses
// them, and so do the tests of every package: tests run against real servers, not
// against imitations.
//
//	        ┌ folder of its own ┐
//	start ──┤ free port, 127.0.0.1 ├── URL ── Freeze, Kill, Restart ── Stop (by pid)
//	        └ password of its own ┘
//
// On Linux a server never outlives the process that started it: the kernel signals
// it when that process ends for any reason (PR_SET_PDEATHSIG). A private server
// shares nothing with other servers on the machine.
package sandbox

import (
	"fmt"
	"net"
	"strconv"
)

// freePort returns a TCP port of 127.0.0.1 that no process listens on. Another
// process may take it before the server does, so callers try again.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
