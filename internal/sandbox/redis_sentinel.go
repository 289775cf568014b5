package sandbox

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Sentinel watches one Redis and its replicas, alone: its own vote is enough to
// replace the master.
type Sentinel struct {
	addr    string
	process *Child
}

// StartSentinel watches master (host:port) under a name, with a folder of its
// own, and takes it for dead after downAfter without an answer.
func StartSentinel(ctx context.Context, dir, name, master string, downAfter time.Duration) (*Sentinel, error) {
	path, err := findRedis()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	host, masterPort, err := net.SplitHostPort(master)
	if err != nil {
		return nil, fmt.Errorf("address of the master: %w", err)
	}
	milliseconds := strconv.FormatInt(downAfter.Milliseconds(), 10)
	config := filepath.Join(dir, "sentinel.conf") // which Sentinel rewrites
	text := "bind 127.0.0.1\nport " + strconv.Itoa(port) + "\ndir " + dir + "\n" +
		"sentinel monitor " + name + " " + host + " " + masterPort + " 1\n" +
		"sentinel down-after-milliseconds " + name + " " + milliseconds + "\n" +
		"sentinel failover-timeout " + name + " 5000\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
	}
	log, err := os.Create(filepath.Join(dir, "sentinel.log"))
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
	}
	defer log.Close() // the child has its own descriptor
	s := &Sentinel{addr: loopback(port)}
	if s.process, err = launch(nil, dir, log, path, config, "--sentinel"); err != nil {
		return nil, err
	}
	answers := (&Redis{port: port}).answersPing
	if err := s.process.awaitReady(ctx, answers); err != nil {
		_ = s.Stop()
		return nil, fmt.Errorf("%w: %s", err, lastLines(log.Name(), 3))
	}
	return s, nil
}

// Addr is host:port.
func (s *Sentinel) Addr() string { return s.addr }

// Stop ends it, by force if need be.
func (s *Sentinel) Stop() error {
	return s.process.End(5*time.Second, syscall.SIGTERM, syscall.SIGKILL)
}
