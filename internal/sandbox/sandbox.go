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
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Program says how a server is started and ended.
type Program struct {
	Path  string
	Dir   string                     // has its log
	As    *syscall.Credential        // nil = the account of this process
	Args  func(port string) []string // to listen on that port of 127.0.0.1
	Ready func(*Server) bool         // whether it takes connections
	End   []syscall.Signal           // that end it, sent one after the other
}

// Server is a server that this process has started.
type Server struct {
	*Child
	program Program
	port    string
}

// stopTimeout is how long a server may take to end after each signal.
const stopTimeout = 10 * time.Second

// StartServer starts the program on a free port, and returns when it is ready. Errors have
// the end of its log.
func StartServer(ctx context.Context, p Program) (*Server, error) {
	s := &Server{program: p}
	var err error
	for range 3 { // another process may have taken the free port, or the second one of a Redis Cluster's node
		s.port, err = FreePort()
		if err != nil {
			return nil, err
		}
		err = s.start(ctx)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func (s *Server) start(ctx context.Context) error {
	log, err := os.Create(s.LogFile())
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	cmd := exec.Command(s.program.Path, s.program.Args(s.port)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = "/", log, log, &syscall.SysProcAttr{Credential: s.program.As}
	s.Child, err = StartChild(cmd)
	if err != nil {
		return err
	}
	for !s.program.Ready(s) {
		select {
		case <-s.done:
			return fmt.Errorf("%s ended at once (%s): %s", s.name(), s.State(), s.said())
		case <-ctx.Done():
			_ = s.Stop()
			return fmt.Errorf("%s is not ready: %w: %s", s.name(), ctx.Err(), s.said())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (s *Server) name() string { return filepath.Base(s.program.Path) }

// said is the end of the server's log, in one line.
func (s *Server) said() string {
	log, _ := os.ReadFile(s.LogFile())
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// Addr is where the server listens, as host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", s.port) }

// LogFile is where the server writes its log.
func (s *Server) LogFile() string { return filepath.Join(s.program.Dir, s.name()+".log") }

// Stop shuts the server down, by force if need be.
func (s *Server) Stop() error {
	if s.Child == nil {
		return nil
	}
	_ = s.Thaw() // a frozen server cannot end
	return s.End(stopTimeout, s.program.End...)
}

// Freeze stops every process of the server: connections stay open, and nothing is
// answered. Thaw undoes it.
func (s *Server) Freeze() error { return s.signalTree(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (s *Server) Thaw() error { return s.signalTree(syscall.SIGCONT) }

// Restart starts a stopped or killed server on the same folder and port.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.start(ctx)
}

// TakesConnections says whether the server accepts a connection.
func (s *Server) TakesConnections() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

var ports atomic.Int64 // counts those that FreePort has returned

// FreePort returns a TCP port of 127.0.0.1 that no process listens on. The kernel does not give
// it to a client, so a killed server finds it free when it starts again. Each process begins
// elsewhere, and gets no port twice.
func FreePort() (string, error) {
	const lowest, n = 12_000, 8_000
	for range n {
		port := strconv.Itoa(lowest + (os.Getpid()*257+int(ports.Add(1)))%n)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no free port")
}
