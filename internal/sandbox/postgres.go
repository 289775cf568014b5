package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PostgresOptions describe a private Postgres.
type PostgresOptions struct {
	// Dir keeps everything of this server; it is made when missing, and a
	// server found in it is used again with the data it has.
	Dir string
	// Settings are passed as `-c name=value`, over the defaults below.
	Settings map[string]string
	// Disposable gives up crash safety and passwords for speed: for tests. Under the race
	// detector a client takes 20 ms for the rounds of a password, with each connection.
	Disposable bool
}

// Postgres is a running private server: superuser `postgres`, a password of
// its own, 127.0.0.1 only, wal_level=logical.
type Postgres struct {
	*Server
	Options  PostgresOptions
	bin      string
	password string
	as       *syscall.Credential
}

// ErrDataFolder: the folder cannot be used for a server.
var ErrDataFolder = errors.New("data folder")

// StartPostgres starts a server on o.Dir and returns when it takes connections.
// Errors: ErrNoBinaries, ErrDataFolder (another version's, not ours, not
// reachable for the account Postgres runs as), or what the server itself said.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, o.Dir, err)
	}
	o.Dir = dir
	p := &Postgres{Options: o}
	kept, err := keptVersion(p.cluster())
	if err != nil {
		return nil, err
	}
	if p.bin, err = findPostgres(kept); err != nil {
		if kept != 0 {
			return nil, fmt.Errorf("%w %s was made by PostgreSQL %d, another version than this machine has: choose another folder", ErrDataFolder, o.Dir, kept)
		}
		return nil, err
	}
	if p.as, err = ServerAccount(); err != nil {
		return nil, err
	}
	if err := prepareFolder(o.Dir, p.as); err != nil {
		return nil, err
	}
	if kept == 0 {
		err = p.initialise(ctx)
	} else {
		err = p.adopt()
	}
	if err != nil {
		return nil, err
	}
	return p, p.start(ctx)
}

func (p *Postgres) cluster() string      { return filepath.Join(p.Options.Dir, "cluster") }
func (p *Postgres) passwordFile() string { return filepath.Join(p.Options.Dir, "password") }

// Bin is the folder of the server's programs, pgbench and pg_basebackup among them.
func (p *Postgres) Bin() string { return p.bin }

// URL is the connection string of the named database.
func (p *Postgres) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", p.password), Host: p.Addr(), Path: "/" + database}
	return u.String()
}

// initialise makes a new cluster, UTF-8 whatever the machine's locale is: the
// product stores every script there is.
func (p *Postgres) initialise(ctx context.Context) error {
	p.password = rand.Text()
	if err := p.writeSecret(p.passwordFile(), p.password); err != nil {
		return err
	}
	auth := []string{"--auth", "scram-sha-256"}
	if p.Options.Disposable {
		auth = []string{"--auth", "trust", "--no-sync"}
	}
	var err error
	for _, locale := range []string{"C.UTF-8", "en_US.UTF-8"} { // macOS may lack the first
		args := append(auth, "--pgdata", p.cluster(), "--username", "postgres", "--pwfile", p.passwordFile(), "--encoding", "UTF8", "--locale", locale)
		if err = run(ctx, p.as, p.Options.Dir, filepath.Join(p.bin, "initdb"), args...); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// writeSecret writes a file that only the account Postgres runs as may read.
func (p *Postgres) writeSecret(path, secret string) error {
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		return fmt.Errorf("%w %s: %w", ErrDataFolder, p.Options.Dir, err)
	}
	return give(path, p.as)
}

// adopt takes over the cluster of an earlier run. If that run was killed, it ends the server
// that still runs on the cluster.
func (p *Postgres) adopt() error {
	b, err := os.ReadFile(p.passwordFile())
	if err != nil {
		return fmt.Errorf("%w %s was not made by listedge: %w", ErrDataFolder, p.Options.Dir, err)
	}
	p.password = string(b)
	pidFile := filepath.Join(p.cluster(), "postmaster.pid")
	orphan := pidIn(pidFile)
	if orphan == 0 || !p.runs(orphan) {
		return nil // a stale file, which the server itself removes
	}
	if err := syscall.Kill(orphan, syscall.SIGINT); err != nil {
		return fmt.Errorf("%w %s: another server (pid %d) runs on it", ErrDataFolder, p.Options.Dir, orphan)
	}
	for range 1000 {
		if _, err := os.Stat(pidFile); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%w %s: another server (pid %d) runs on it and does not end", ErrDataFolder, p.Options.Dir, orphan)
}

// runs reports whether the process is a server on this cluster. The pid in a stale file may
// be that of any process.
func (p *Postgres) runs(pid int) bool {
	args, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(args), p.cluster())
}

// start starts the server on its folder.
func (p *Postgres) start(ctx context.Context) (err error) {
	p.Server, err = StartServer(ctx, Program{
		Path: filepath.Join(p.bin, "postgres"), Dir: p.Options.Dir, Log: "postgres.log", As: p.as, Args: p.args, Ready: p.takesConnections,
		End: []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL}, // fast first
	})
	return err
}

func (p *Postgres) args(port string) ([]string, error) {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    port,
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_connections":         "200",
		"max_slot_wal_keep_size":  "1GB",
		"max_replication_slots":   "100",
		"max_wal_senders":         "20",
	}
	if p.Options.Disposable {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	maps.Copy(settings, p.Options.Settings)
	args := []string{"-D", p.cluster()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args, nil
}

// takesConnections reads the status line that the postmaster keeps in its pid file.
func (p *Postgres) takesConnections(s *Server) bool {
	b, err := os.ReadFile(filepath.Join(p.cluster(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(b), "\n")
	return len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready" && strings.TrimSpace(lines[0]) == strconv.Itoa(s.Pid())
}

// Kill ends the postmaster with the signal: SIGQUIT is a crash with recovery
// at the next start, SIGINT a clean end.
func (p *Postgres) Kill(s syscall.Signal) error { return p.End(stopTimeout, s) }
