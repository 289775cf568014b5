package sandbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// PostgresOptions describe a private Postgres.
type PostgresOptions struct {
	// Dir keeps everything of this server; it is made when missing, and a
	// server found in it is used again with the data it has.
	Dir string
	// Settings are passed as `-c name=value`, over the defaults below; an empty value leaves the server's own.
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
	Bin      string // the folder of the server's programs, pgbench and pg_basebackup among them
	Found    bool   // it was in Options.Dir already, with its data
	password string
	as       *syscall.Credential
}

// StartPostgres starts a server on o.Dir and returns when it takes connections. An error has
// what the server itself said: of a folder of another version, or one that it may not enter.
func StartPostgres(ctx context.Context, o PostgresOptions) (p *Postgres, err error) {
	o.Dir, err = filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	bin, err := FindPostgres()
	if err != nil {
		return nil, err
	}
	account, err := ServerAccount()
	if err != nil {
		return nil, err
	}
	err = os.MkdirAll(o.Dir, 0o755)
	if err == nil {
		err = Give(o.Dir, account)
	}
	if err != nil {
		return nil, err
	}
	p = &Postgres{Options: o, Bin: bin, as: account}
	if _, missing := os.Stat(filepath.Join(p.cluster(), "PG_VERSION")); missing != nil {
		err = p.initialise(ctx)
	} else if password, failed := os.ReadFile(p.passwordFile()); failed != nil {
		err = fmt.Errorf("the cluster was not made by listedge: %w", failed)
	} else {
		p.password, p.Found = string(password), true
	}
	if err != nil {
		return nil, err
	}
	p.Server, err = StartServer(ctx, Program{
		Path: filepath.Join(p.Bin, "postgres"), Dir: p.Options.Dir, As: p.as, Args: p.args, Ready: p.takesConnections,
		End: []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL}, // fast first
	})
	return p, err
}

func (p *Postgres) cluster() string      { return filepath.Join(p.Options.Dir, "cluster") }
func (p *Postgres) passwordFile() string { return filepath.Join(p.Options.Dir, "password") }

// URL is the connection string of the named database.
func (p *Postgres) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", p.password), Host: p.Addr(), Path: "/" + database}
	return u.String()
}

// initialise makes a new cluster, UTF-8 whatever the machine's locale is: the
// product stores every script there is.
func (p *Postgres) initialise(ctx context.Context) error {
	p.password = rand.Text()
	if err := WriteFile(p.passwordFile(), p.password, p.as); err != nil {
		return err
	}
	auth := []string{"--auth", "scram-sha-256"}
	if p.Options.Disposable {
		auth = []string{"--auth", "trust", "--no-sync"}
	}
	locale := "C.UTF-8"
	if runtime.GOOS == "darwin" { // may lack it
		locale = "en_US.UTF-8"
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, "initdb"), append(auth, "--pgdata", p.cluster(), "--username", "postgres",
		"--pwfile", p.passwordFile(), "--encoding", "UTF8", "--locale", locale)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: p.as}
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, stopTimeout // it removes what it has made
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("initdb: %w", ctx.Err())
	} else if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return nil
}

func (p *Postgres) args(port string) []string {
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
	maps.DeleteFunc(settings, func(_, value string) bool { return value == "" })
	args := []string{"-D", p.cluster()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// takesConnections reads the status line that the postmaster keeps in its pid file.
func (p *Postgres) takesConnections(s *Server) bool {
	status, _ := os.ReadFile(filepath.Join(p.cluster(), "postmaster.pid")) // it comes late
	lines := strings.Split(string(status), "\n")
	return len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready" && strings.TrimSpace(lines[0]) == strconv.Itoa(s.Pid())
}

// Kill ends the postmaster with the signal: SIGQUIT is a crash with recovery
// at the next start, SIGINT a clean end.
func (p *Postgres) Kill(s syscall.Signal) error { return p.End(stopTimeout, s) }
