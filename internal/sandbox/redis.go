package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisOptions describe a private Redis.
type RedisOptions struct {
	Dir  string   // a folder of its own; made when missing
	Args []string // further arguments of redis-server, e.g. "--cluster-enabled", "yes"
}

// Redis is a running private server: 127.0.0.1 only, nothing written to disk.
type Redis struct {
	options RedisOptions
	path    string
	port    int
	process *Child
}

// StartRedis starts a server and returns when it answers PING.
// Errors: ErrNoBinaries, ErrDataFolder, or the end of the server's log.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	r := &Redis{options: o}
	var err error
	if r.path, err = findRedis(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, o.Dir, err)
	}
	for range 3 { // a free port may be taken before the server listens
		if r.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = r.start(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "already in use") {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Redis) start(ctx context.Context) error {
	log, err := os.Create(r.LogFile())
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrDataFolder, r.options.Dir, err)
	}
	defer log.Close() // the child has its own descriptor
	args := append([]string{"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--save", "", "--appendonly", "no",
		"--maxmemory-policy", "noeviction", "--daemonize", "no", "--dir", r.options.Dir}, r.options.Args...)
	if r.process, err = launch(nil, r.options.Dir, log, r.path, args...); err != nil {
		return err
	}
	if err := r.process.awaitReady(ctx, r.answersPing); err != nil {
		_ = r.Stop()
		return fmt.Errorf("%w: %s", err, lastLines(r.LogFile(), 3))
	}
	return nil
}

func (r *Redis) answersPing() bool {
	conn, err := net.DialTimeout("tcp", r.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(answer, "+PONG")
}

// LogFile is where the server writes its log.
func (r *Redis) LogFile() string { return filepath.Join(r.options.Dir, "redis.log") }

// Addr is host:port.
func (r *Redis) Addr() string { return loopback(r.port) }

// URL is the connection string.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Pid is the server's process id.
func (r *Redis) Pid() int { return r.process.Pid() }

// Stop shuts the server down. It kills the server if that takes too long.
func (r *Redis) Stop() error {
	if r.process == nil || r.process.exited() {
		return nil
	}
	_ = r.Thaw() // a frozen server cannot end
	return r.process.End(5*time.Second, syscall.SIGTERM, syscall.SIGKILL)
}

// Kill ends the server at once (SIGKILL).
func (r *Redis) Kill() error { return r.process.End(5*time.Second, syscall.SIGKILL) }

// Freeze pauses the server (SIGSTOP): connections stay open, and nothing is answered.
func (r *Redis) Freeze() error { return r.process.Signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (r *Redis) Thaw() error { return r.process.Signal(syscall.SIGCONT) }

// Restart starts a stopped or killed server, empty, on the same port.
func (r *Redis) Restart(ctx context.Context) error {
	if err := r.Stop(); err != nil {
		return err
	}
	return r.start(ctx)
}
