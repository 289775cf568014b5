package sandbox

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// PgBouncerOptions describe a private connection pooler.
type PgBouncerOptions struct {
	Dir      string            // a folder of its own; made when missing
	Server   string            // host:port of the Postgres behind it
	Users    map[string]string // name and password of each user; Postgres must have the same
	Settings map[string]string // further ones of the pooler, such as pool_mode
}

// PgBouncer is a running pooler: 127.0.0.1 only. Like Postgres it refuses root.
type PgBouncer struct {
	options PgBouncerOptions
	port    int
	as      *syscall.Credential
	process *Child
}

// StartPgBouncer starts a pooler and returns when it takes connections.
// Errors: ErrNoBinaries, or what the pooler itself said.
func StartPgBouncer(ctx context.Context, o PgBouncerOptions) (*PgBouncer, error) {
	path, err := findServer("a PgBouncer", "pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{options: o}
	if b.as, err = ServerAccount(); err != nil {
		return nil, err
	}
	if err := prepareFolder(o.Dir, b.as); err != nil {
		return nil, err
	}
	for range 3 { // a free port may be taken before the pooler listens
		if b.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = b.start(ctx, path); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (b *PgBouncer) configFile() string { return filepath.Join(b.options.Dir, "pgbouncer.ini") }

// configure writes what the pooler reads when it starts, and on SIGHUP.
func (b *PgBouncer) configure() error {
	host, port, err := net.SplitHostPort(b.options.Server)
	if err != nil {
		return err
	}
	users, usersFile := "", filepath.Join(b.options.Dir, "users.txt")
	for _, name := range slices.Sorted(maps.Keys(b.options.Users)) {
		users += fmt.Sprintf("%q %q\n", name, b.options.Users[name])
	}
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.port), "unix_socket_dir": "",
		"auth_type": "scram-sha-256", "auth_file": usersFile,
	}
	maps.Copy(settings, b.options.Settings)
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\n", host, port)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text += name + " = " + settings[name] + "\n"
	}
	for file, text := range map[string]string{usersFile: users, b.configFile(): text} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("%w %s: %w", ErrDataFolder, b.options.Dir, err)
		}
		if err := give(file, b.as); err != nil {
			return err
		}
	}
	return nil
}

func (b *PgBouncer) start(ctx context.Context, path string) error {
	if err := b.configure(); err != nil {
		return err
	}
	log, err := os.Create(b.LogFile())
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrDataFolder, b.options.Dir, err)
	}
	defer log.Close() // the child has its own descriptor
	if b.process, err = launch(b.as, b.options.Dir, log, path, b.configFile()); err != nil {
		return err
	}
	if err := b.process.awaitReady(ctx, b.takesConnections); err != nil {
		_ = b.Stop()
		return fmt.Errorf("%w: %s", err, lastLines(b.LogFile(), 3))
	}
	return nil
}

func (b *PgBouncer) takesConnections() bool {
	conn, err := net.DialTimeout("tcp", b.Addr(), time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// LogFile is where the pooler writes its log.
func (b *PgBouncer) LogFile() string { return filepath.Join(b.options.Dir, "pgbouncer.log") }

// Addr is host:port.
func (b *PgBouncer) Addr() string { return loopback(b.port) }

// URL returns the URL direct with the pooler's address in place of the server's.
func (b *PgBouncer) URL(direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return "", err
	}
	u.Host = b.Addr()
	return u.String(), nil
}

// LeadTo makes the pooler connect to another server from now on.
func (b *PgBouncer) LeadTo(server string) error {
	b.options.Server = server
	if err := b.configure(); err != nil {
		return err
	}
	return b.process.Signal(syscall.SIGHUP)
}

// Stop ends the pooler.
func (b *PgBouncer) Stop() error {
	if b.process == nil || b.process.exited() {
		return nil
	}
	return b.process.End(10*time.Second, syscall.SIGTERM, syscall.SIGKILL)
}
