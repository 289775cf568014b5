package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Child is a process that is ended by its pid and, on Linux, by the kernel
// when this process dies.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been reaped
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
	err := exec.Command("pkill", fmt.Sprintf("-%d", s), "-P", strconv.Itoa(p.Pid())).Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 { // it has none
		return nil
	}
	return err
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
