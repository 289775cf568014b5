package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// RedisOptions describe a private Redis.
type RedisOptions struct {
	Dir  string   // a folder of its own; made when missing
	Args []string // further arguments of redis-server, e.g. "--cluster-enabled", "yes"
}

// Redis is a running private server: 127.0.0.1 only, nothing written to disk. A restart
// empties it.
type Redis struct{ *Server }

// StartRedis starts a server and returns when it answers PING.
// Errors: ErrNoBinaries, ErrDataFolder, or the end of the server's log.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	path, err := FindServer("a Redis server", redisPrograms...)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, o.Dir, err)
	}
	s, err := StartServer(ctx, Program{
		Path: path, Dir: o.Dir, Log: "redis.log", Ready: (*Server).answersPing, End: []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL},
		Args: func(port string) ([]string, error) {
			return append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
				"--maxmemory-policy", "noeviction", "--daemonize", "no", "--dir", o.Dir}, o.Args...), nil
		}})
	if err != nil {
		return nil, err
	}
	return &Redis{s}, nil
}

func (s *Server) answersPing() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
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

// URL is the connection string.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Kill ends the server at once (SIGKILL).
func (r *Redis) Kill() error { return r.End(stopTimeout, syscall.SIGKILL) }
