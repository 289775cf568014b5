package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/alecthomas/kong"

	"listedge/cmd/listedge/node"
	"listedge/internal/sandbox"
)

// fleet runs each node as a process, so that one can be stopped or killed while the
// others go on, and ends them all when ctx does.
func (c *devCommand) fleet(ctx context.Context, t *terminal, flags *kong.Context, addresses []node.ListenFlags, url string, ready func()) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	out := &lineWriter{to: t.err}
	var children []*sandbox.Child
	var running sync.WaitGroup // children
	killAfter := c.Drain + 3*node.StopTimeout
	defer func() {
		for _, child := range children {
			_ = child.Signal(syscall.SIGTERM)
		}
		for _, child := range children {
			_ = child.End(killAfter, syscall.SIGTERM, syscall.SIGKILL)
		}
	}()
	for i, a := range addresses {
		command := exec.Command(program, "serve")
		command.Env = environment(flags, a, url)
		prefix := fmt.Sprintf("node %d | ", i+1)
		command.Stdout, command.Stderr = out.prefixed(prefix), out.prefixed(prefix)
		child, err := sandbox.StartChild(command)
		if err != nil {
			return err
		}
		children = append(children, child)
		fmt.Fprintf(t.err, "node %d is process %d\n", i+1, child.Pid())
		running.Go(func() {
			<-child.Done()
			if ctx.Err() == nil {
				fmt.Fprintf(out, "node %d ended (%s)\n", i+1, child.State())
			}
		})
	}
	ready()
	ended := make(chan struct{})
	go func() { defer close(ended); running.Wait() }() // at the latest after the deferred function above
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
		return errors.New("all nodes have ended")
	}
}

// lineWriter is a writer that several nodes share, line by line.
type lineWriter struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// prefixed returns a writer whose lines begin with prefix.
func (w *lineWriter) prefixed(prefix string) io.Writer { return &prefixWriter{w: w, prefix: prefix} }

type prefixWriter struct {
	w      *lineWriter
	prefix string
	line   []byte // incomplete
}

func (p *prefixWriter) Write(b []byte) (int, error) {
	p.line = append(p.line, b...)
	for {
		line, rest, ended := bytes.Cut(p.line, []byte{'\n'})
		if !ended {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, line); err != nil {
			return 0, err
		}
		p.line = rest
	}
}
