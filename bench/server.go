package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"listedge/internal/sandbox"
)

// fetched is the metric that counts a node's statements for pages.
const fetched = `listedge_origin_fetches_total{outcome="ok"}`

// server is a program under load.
type server struct {
	*sandbox.Child
	address string
	admin   string // listedge's
}

// startServer starts a program. args returns its arguments for the addresses to listen on.
func startServer(program string, args func(address, admin string) []string, env ...string) (*server, error) {
	address, admin := "127.0.0.1:"+must1(sandbox.FreePort()), "127.0.0.1:"+must1(sandbox.FreePort())
	command := exec.Command(program, args(address, admin)...)
	command.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	child, err := sandbox.StartChild(command)
	if err != nil {
		return nil, err
	}
	s := &server{Child: child, address: address, admin: admin}
	for range 1000 {
		if conn, err := net.Dial("tcp", address); err == nil {
			return s, conn.Close()
		}
		select {
		case <-child.Done():
			return nil, fmt.Errorf("%s ended: %s", program, said.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.end()
	return nil, fmt.Errorf("%s does not listen: %s", program, said.String())
}

func (s *server) end() { _ = s.End(10*time.Second, syscall.SIGTERM, syscall.SIGKILL) }

// startNode starts a node on the subject's database.
func (s *subject) startNode(flags ...string) (*server, error) {
	return startServer(s.program, func(address, admin string) []string {
		return append([]string{"serve", "--listen", address, "--admin-listen", admin, "--drain", "0s"}, flags...)
	}, "LISTEDGE_DATABASE_URL="+s.url)
}

// startFollower starts a node on the subject's database that proves its pages.
func (s *subject) startFollower(ctx context.Context, flags ...string) (*server, error) {
	node, err := s.startNode(flags...)
	if err != nil {
		return nil, err
	}
	if err := node.awaitMode(ctx, "followed"); err != nil {
		node.end()
		return nil, err
	}
	return node, nil
}

// startBare starts the bare handler; redis is for when it is to GET.
func startBare(redis string) (*server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startServer(program, func(address, _ string) []string { return []string{bareArgument, address, redis} })
}

// processes are the server's own and all that descend from it.
func (s *server) processes() (procfs.Procs, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil {
			parents[p.PID] = stat.PPID
		}
	}
	var ours procfs.Procs
	for _, p := range all {
		for pid := p.PID; pid > 1; pid = parents[pid] {
			if pid == s.Pid() {
				ours = append(ours, p)
				break
			}
		}
	}
	return ours, nil
}

// cpu is the processor time its processes have used.
func (s *server) cpu() (used time.Duration, err error) {
	processes, err := s.processes()
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		threads, err := procfs.AllThreads(p.PID)
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			if stat, err := thread.Schedstat(); err == nil { // else it has just ended
				used += time.Duration(stat.RunningNanoseconds)
			}
		}
	}
	return used, nil
}

// spent is the processor time its processes use while do runs.
func (s *server) spent(do func() error) (used time.Duration, err error) {
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := s.cpu()
	return after - before, err
}
