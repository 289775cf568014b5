package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// nodeProcess is a serving node as a separate process.
type nodeProcess struct {
	*testNode
	toRedis *sandboxtest.Relay // nil = none is between them
	process *os.Process
	log     *output
	stopped bool
}

// startNodeProcess starts `listedge serve` on free ports, with environment
// variables of its own, and waits until it listens.
func startNodeProcess(t *testing.T, environment []string, args ...string) *nodeProcess {
	t.Helper()
	return startNodeProgram(t, "", environment, args...)
}

// startNodeProgram is the same with a program that was built otherwise; empty = this one.
func startNodeProgram(t *testing.T, program string, environment []string, args ...string) *nodeProcess {
	t.Helper()
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	n := &nodeProcess{testNode: &testNode{}, log: &output{}}
	c := exec.Command(program, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--log-format", "json", "--drain", "50ms"}, args...)...)
	c.Env = append(append(os.Environ(), beListedge+"=1"), environment...)
	c.Stdout, c.Stderr = n.log, n.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n.process = c.Process
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	within(t, patience, "listening", func() bool { return n.listens(n.log.String()) })
	return n
}

// awaitCheck waits until /readyz says this of one thing the node depends on.
func (n *testNode) awaitCheck(t *testing.T, name, text string) {
	t.Helper()
	within(t, patience, name+": "+text, func() bool { return strings.Contains(n.check(t, name), text) })
}

// check is what /readyz says of one thing the node depends on.
func (n *testNode) check(t *testing.T, name string) string {
	t.Helper()
	r, err := http.Get(n.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var found struct{ Checks map[string]string }
	if err := json.NewDecoder(r.Body).Decode(&found); err != nil {
		t.Fatal(err)
	}
	return found.Checks[name]
}

// stopProcess ends the node as an operator does, and returns its exit status.
func (n *nodeProcess) stopProcess(t *testing.T) int {
	t.Helper()
	if err := n.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	state, err := n.process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state.ExitCode()
}
