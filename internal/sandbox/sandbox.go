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
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
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

// Redis is a running private server: 127.0.0.1 only, nothing written to disk. A restart
// empties it.
type Redis struct{ *Server }

// StartRedis makes the folder and starts a server in it, with further arguments of redis-server.
// It returns when the server takes connections. An error has the end of its log.
func StartRedis(ctx context.Context, dir string, arguments ...string) (*Redis, error) {
	path, err := FindRedis()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := StartServer(ctx, Program{
		Path: path, Dir: dir, Ready: (*Server).TakesConnections, End: []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL},
		Args: func(port string) []string {
			return append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
				"--maxmemory-policy", "noeviction", "--daemonize", "no", "--dir", dir}, arguments...)
		}})
	if err != nil {
		return nil, err
	}
	return &Redis{s}, nil
}

// URL is the server's address as --redis-url takes it.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Kill ends the server at once (SIGKILL).
func (r *Redis) Kill() error { return r.End(stopTimeout, syscall.SIGKILL) }

// ServerAccount returns the account that Postgres runs as: our own (nil), unless that is
// root, which Postgres refuses. Then it is the first unprivileged account that exists.
// Error: there is none.
func ServerAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.Atoi(u.Uid) // on Unix it is a number
			gid, _ := strconv.Atoi(u.Gid)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("Postgres does not run as root, and there is neither a user postgres nor nobody")
}

// Give gives a file or a folder to the account; nil = it stays ours.
func Give(path string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	return os.Chown(path, int(as.Uid), int(as.Gid))
}

// WriteFile writes a file that only the account may read.
func WriteFile(path, text string, as *syscall.Credential) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return Give(path, as)
}

// errNotInstalled: the server's programs were not found on this machine.
var errNotInstalled = errors.New("not installed (deploy/install.sh installs it)")

// postgresFolders are where Postgres' programs are installed, besides the folders of
// PATH: by Debian, Fedora, Homebrew (on Apple and Intel processors) and Postgres.app.
var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// oldestPostgres is the oldest major version that listedge supports.
const oldestPostgres = 15

// FindPostgres returns the folder that contains initdb and postgres: the first one in PATH, or
// else that of the newest version.
func FindPostgres() (bin string, err error) {
	inPath := filepath.SplitList(os.Getenv("PATH"))
	folders := slices.Clone(inPath)
	for _, pattern := range postgresFolders {
		found, _ := filepath.Glob(pattern)
		folders = append(folders, found...)
	}
	newest := oldestPostgres - 1
	for i, folder := range folders {
		server := filepath.Join(folder, "postgres")
		if real, err := filepath.EvalSymlinks(server); err == nil { // PATH may have links to only some of the programs
			server, folder = real, filepath.Dir(real)
		}
		var version int
		out, _ := exec.Command(server, "--version").Output()
		_, _ = fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &version)
		if _, err := exec.LookPath(filepath.Join(folder, "initdb")); err != nil || version <= newest {
			continue
		}
		bin, newest = folder, version
		if i < len(inPath) {
			break
		}
	}
	if bin == "" {
		return "", fmt.Errorf("PostgreSQL %d or newer: %w", oldestPostgres, errNotInstalled)
	}
	return bin, nil
}

// FindRedis returns the path of Redis, or of Valkey, which newer distributions have in its
// place. Valkey has the same protocol and runs the same scripts.
func FindRedis() (string, error) {
	return FindServer("a Redis server", "redis-server", "valkey-server")
}

// FindServer returns the path of the first of these programs that is installed.
func FindServer(what string, names ...string) (string, error) {
	for _, name := range names {
		for _, folder := range []string{"", "/usr/bin", "/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin"} { // "" = those of PATH
			if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", what, errNotInstalled)
}

//go:embed sample.sql
var sampleSQL string

// Sample returns a script that makes a workspace with sample rows, for a session of its own in
// which each statement is sent as text. Equal arguments make equal rows in every database. Different
// n make different workspaces, of which later ones were created later.
func Sample(n, items, contacts int) string {
	return fmt.Sprintf("%s\nSELECT pg_temp.sample_workspace(%d, %d, %d); COMMIT; ANALYZE;", sampleSQL, n, items, contacts)
}
