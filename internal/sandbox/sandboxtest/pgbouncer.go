package sandboxtest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"listedge/internal/sandbox"
)

// Pooler is a running PgBouncer, of 127.0.0.1 only.
type Pooler struct {
	*sandbox.Server
	dir      string
	leadsTo  string            // host:port of the Postgres behind it
	user     *url.Userinfo     // Postgres must have the same
	settings map[string]string // such as pool_mode
	as       *syscall.Credential
}

// PgBouncer starts a private pooler in front of the server of the URL direct. It
// accepts the URL's user. pooled is the URL of the same database through the pooler.
func PgBouncer(t testing.TB, direct string, settings map[string]string) (b *Pooler, pooled string) {
	t.Helper()
	u, err := url.Parse(direct)
	must(t, err)
	path, err := sandbox.FindServer("a PgBouncer", "pgbouncer")
	must(t, err)
	b = &Pooler{dir: Dir(t), leadsTo: u.Host, user: u.User, settings: settings}
	b.as, err = sandbox.ServerAccount() // like Postgres it refuses root
	must(t, err)
	must(t, sandbox.Give(b.dir, b.as))
	b.Server = start(t, sandbox.Program{Path: path, Dir: b.dir, As: b.as, Args: func(port string) []string {
		must(t, b.configure(port))
		return []string{b.configFile()}
	}})
	u.Host = b.Addr()
	return b, u.String()
}

func (b *Pooler) configFile() string { return filepath.Join(b.dir, "pgbouncer.ini") }

// configure writes what the pooler reads when it starts, and on SIGHUP.
func (b *Pooler) configure(port string) error {
	host, serverPort, err := net.SplitHostPort(b.leadsTo)
	if err != nil {
		return err
	}
	password, _ := b.user.Password()
	usersFile := filepath.Join(b.dir, "users.txt")
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "",
		"auth_type": "scram-sha-256", "auth_file": usersFile,
	}
	maps.Copy(settings, b.settings)
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\n", host, serverPort)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text += name + " = " + settings[name] + "\n"
	}
	return errors.Join(sandbox.WriteFile(usersFile, fmt.Sprintf("%q %q\n", b.user.Username(), password), b.as), sandbox.WriteFile(b.configFile(), text, b.as))
}

// LeadTo makes the pooler connect to another server from now on.
func (b *Pooler) LeadTo(server string) error {
	b.leadsTo = server
	_, port, err := net.SplitHostPort(b.Addr())
	if err != nil {
		return err
	}
	if err := b.configure(port); err != nil {
		return err
	}
	return b.Signal(syscall.SIGHUP)
}
