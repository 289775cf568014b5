package sandbox

import (
	"context"
	"os"
	"syscall"
)

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
