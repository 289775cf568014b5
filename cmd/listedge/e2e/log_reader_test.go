package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// logPipe is the standard error of a node: a pipe whose reader may stop, or go away.
type logPipe struct {
	path    string
	reader  *os.File
	stopped chan struct{} // closed once the reader has stopped
}

// startWithPipe starts a node whose log is read from a pipe.
func startWithPipe(t *testing.T, databaseURL string, args ...string) (*testNode, *logPipe) {
	t.Helper()
	l := &logPipe{path: filepath.Join(sandboxtest.Dir(t), "log")}
	must(syscall.Mkfifo(l.path, 0o600))
	l.reader = must1(os.OpenFile(l.path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
	t.Cleanup(func() { l.reader.Close() })
	stderr := os.NewFile(uintptr(must1(syscall.Open(l.path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0))), l.path)
	c := serveCommand(listedge, databaseURL, args...)
	c.Stderr = stderr
	p := startCommand(t, c)
	stderr.Close()
	l.read(p)
	n := awaitListening(t, p)
	n.awaitReady(t)
	hang := time.AfterFunc(patience, func() { p.signal(syscall.SIGKILL) }) // so that the test ends
	t.Cleanup(func() { hang.Stop() })
	return n, l
}

// read begins to read the log of the program.
func (l *logPipe) read(p *program) {
	stopped := make(chan struct{})
	l.stopped = stopped
	must(l.reader.SetReadDeadline(time.Time{}))
	go func() {
		defer close(stopped)
		_, _ = io.Copy(&p.err, l.reader)
	}()
}

// stop stops reading, and fills the pipe to its last byte.
func (l *logPipe) stop() {
	must(l.reader.SetReadDeadline(time.Unix(1, 0)))
	<-l.stopped
	filler := must1(syscall.Open(l.path, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0))
	defer syscall.Close(filler)
	for _, size := range []int{4096, 1} {
		for err := error(nil); !errors.Is(err, syscall.EAGAIN); {
			_, err = syscall.Write(filler, bytes.Repeat([]byte("\n"), size))
		}
	}
}

// answers checks that pages are served, and that the admin listener says that Redis is down.
func answers(t *testing.T, n *testNode, key string) {
	t.Helper()
	for range 20 {
		n.first(t, "/v1/items", key).page(t)
		if a := n.get(t, "/v1/items?cursor=wrong", key); a.StatusCode != 400 {
			t.Errorf("%s", a.Status)
		}
	}
	n.awaitCheck(t, "redis", "refused")
	if n.metric(t, "listedge_check_up", `check="redis"`) != 0 {
		t.Error("the metric says that Redis is up")
	}
}

// A reader that hangs, or is gone, costs lines of the log, and nothing else: neither pages nor checks nor the end of the process
// wait for it.
func TestALogThatNobodyReadsStopsNothing(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"it hangs": nil, "it hangs, with an access log": {"--access-log", "sampled"}, "it is gone": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			_, key := workspaceWithKey(t, url)
			r := sandboxtest.Redis(t)
			n, log := startWithPipe(t, url, append(flags, "--redis-url", r.URL())...)
			lost := func() bool { return n.metric(t, "listedge_log_lines_lost_total") > 0 }
			if name == "it is gone" {
				log.reader.Close()
			} else {
				log.stop()
			}
			must(r.Kill())
			answers(t, n, key)
			if name == "it is gone" {
				within(t, patience, "lines are lost", lost)
			} else if flags != nil {
				within(t, patience, "lines are lost", func() bool {
					for range 100 {
						n.get(t, "/v1/items?cursor=wrong", key, "X-Request-Id: "+strings.Repeat("x", 128))
					}
					return lost()
				})
				log.read(n.program)
				within(t, patience, "it is said", func() bool { return strings.Contains(n.err.String(), `"msg":"lines of the log are lost`) })
				log.stop()
			}
			if code := n.stop(); code != exitFine {
				t.Errorf("exit %d", code)
			}
		})
	}
}
