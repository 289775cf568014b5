package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Child is a process that is ended by its pid and, on Linux, by the kernel
// when this process dies.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been reaped
}

// launch starts a server's program.
func launch(as *syscall.Credential, dir string, output io.Writer, name string, args ...string) (*Child, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	return StartChild(cmd)
}

// run runs a program of a server and waits until it ends. An error has its output.
func run(ctx context.Context, as *syscall.Credential, dir string, name string, args ...string) error {
	var output strings.Builder
	p, err := launch(as, dir, &output, name, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.End(time.Second, syscall.SIGTERM, syscall.SIGKILL)
		return fmt.Errorf("%s: %w", filepath.Base(name), ctx.Err())
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %s", filepath.Base(name), strings.ReplaceAll(strings.TrimSpace(output.String()), "\n", "; "))
	}
	return nil
}

// StartChild starts the command in a process group of its own, so that Ctrl-C
// in a terminal reaches only the parent, which then ends its children in order.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	p := &Child{cmd: cmd, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the *thread* that forked ends,
		// so this goroutine keeps its thread until the child has ended.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return p, nil
}

// Pid is the child's process id.
func (p *Child) Pid() int { return p.cmd.Process.Pid }

// Done is closed once the child has ended.
func (p *Child) Done() <-chan struct{} { return p.done }

// State says how the child ended, once it has.
func (p *Child) State() string { return p.cmd.ProcessState.String() }

func (p *Child) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends s to the child alone, never to a group.
func (p *Child) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to process %d: %w", s, p.Pid(), err)
	}
	return nil
}

// signalTree sends s to the child and to the child's own children. Postgres gives
// every backend a session of its own, so a process group would miss them.
func (p *Child) signalTree(s syscall.Signal) error {
	if err := p.Signal(s); err != nil {
		return err
	}
	children, err := childrenOf(p.Pid())
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := syscall.Kill(child, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("send %s to process %d: %w", s, child, err)
		}
	}
	return nil
}

// End sends the signals one after the other and waits up to timeout after each.
func (p *Child) End(timeout time.Duration, signals ...syscall.Signal) error {
	for _, s := range signals {
		if err := p.Signal(s); err != nil {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(timeout):
		}
	}
	return fmt.Errorf("process %d does not end", p.Pid())
}

// awaitReady polls ready until it is true, the child exits or ctx is done.
func (p *Child) awaitReady(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ready() {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at once (%s)", filepath.Base(p.cmd.Path), p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", filepath.Base(p.cmd.Path), ctx.Err())
		case <-tick.C:
		}
	}
}

// childrenOf lists the pids whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for line := range strings.Lines(string(out)) {
		var child, parent int
		if n, _ := fmt.Sscan(line, &child, &parent); n == 2 && parent == pid {
			children = append(children, child)
		}
	}
	return children, nil
}

// lastLines returns the end of a log file, for an error message.
func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// pidIn reads a pid from the first line of a file; 0 if there is none.
func pidIn(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	return pid
}
