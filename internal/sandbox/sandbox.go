// Package sandbox starts private Postgres and Redis servers: `listedge dev`
// runs on one, and the tests of every package run on them, so that what is
// tested is what is deployed.
//
//	        ┌ folder of its own ┐
//	start ──┤ free port, 127.0.0.1 ├── URL ── Freeze, Kill, Restart ── Stop (by pid)
//	        └ password of its own ┘
//
// A server started here never outlives its parent on Linux, whatever ends the
// parent: the kernel signals it (PR_SET_PDEATHSIG). Nothing is shared with
// servers the machine may already be running.
package sandbox

import (
	"fmt"
	"net"
	"strconv"
)

// freePort asks the kernel for a TCP port of 127.0.0.1 that nobody listens on.
// Another process may take it before the server does; callers try again.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
