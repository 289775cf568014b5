// Package sandboxtest starts private Postgres and Redis servers for tests, each in a
// new folder. When the test ends, it stops the server and removes the folder.
package sandboxtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"listedge/internal/sandbox"
)

// Dir makes a folder that any account may enter, and removes it when the test ends.
// Postgres refuses to run as root, so it may run as another account than the test.
// testing's TempDir is closed to other accounts.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := TempDir()
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TempDir makes a folder that any account may enter, in memory if there is room: on a disk, to
// make and remove thousands of small files is most of the kernel's work for private servers.
func TempDir() (string, error) {
	const memory, room = "/dev/shm", 4 << 30
	in := ""
	var free syscall.Statfs_t
	if err := syscall.Statfs(memory, &free); err == nil && free.Bavail*uint64(free.Bsize) > room {
		in = memory
	}
	dir, err := os.MkdirTemp(in, "listedge-test-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// Postgres starts a private Postgres without crash safety, for speed.
func Postgres(t testing.TB) *sandbox.Postgres {
	t.Helper()
	return PostgresWith(t, nil)
}

// PostgresWith starts a private Postgres as Postgres does, with further settings.
func PostgresWith(t testing.TB, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	return startPostgres(t, sandbox.PostgresOptions{Dir: Dir(t), Disposable: true, Settings: settings})
}

func startPostgres(t testing.TB, o sandbox.PostgresOptions) *sandbox.Postgres {
	t.Helper()
	if _, err := os.Stat(filepath.Join(o.Dir, "cluster")); err != nil {
		must(t, CopyCluster(o.Dir))
	}
	p, err := sandbox.StartPostgres(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// Eventually waits for what something else is about to bring.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, 5*time.Minute, what, ok)
}

// Within calls ok until it returns true. It fails the test if that takes longer than
// limit. It sleeps four times as long as ok took, and longer the longer it has waited, but at most
// a second, so that the code it waits for, and tests beside it, get most of the processor.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for first := time.Now(); ; {
		began := time.Now()
		if ok() {
			return
		}
		took, waited := time.Since(began), time.Since(first)
		if waited > limit {
			t.Fatalf("never came: %s", what)
		}
		time.Sleep(min(time.Second, max(time.Millisecond, 4*took, min(waited/8, max(200*time.Millisecond, 10*took)))))
	}
}

// Redis starts a private Redis, with further arguments of redis-server.
func Redis(t testing.TB, args ...string) *sandbox.Redis {
	t.Helper()
	r, err := sandbox.StartRedis(t.Context(), Dir(t), args...)
	must(t, err)
	t.Cleanup(func() { _ = r.Stop() })
	return r
}

// start starts a server that takes connections once it accepts them.
func start(t testing.TB, p sandbox.Program) *sandbox.Server {
	t.Helper()
	p.Ready, p.End = (*sandbox.Server).TakesConnections, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
	s, err := sandbox.StartServer(t.Context(), p)
	must(t, err)
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Standby starts a hot standby of the primary, with the primary's settings and these; where
// both have a setting, the standby's wins. It has the same databases and password, and
// another port. "recovery_min_apply_delay": "2s" makes it lag. It uses no replication slot, so
// a standby that is stopped for long needs wal_keep_size on the primary. Both are Disposable:
// they ask each other for no password.
func Standby(t testing.TB, primary *sandbox.Postgres, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	dir := Dir(t)
	account, err := sandbox.ServerAccount()
	must(t, err)
	must(t, sandbox.Give(dir, account))
	u, err := url.Parse(primary.URL("postgres"))
	must(t, err)
	password, _ := u.User.Password()
	must(t, sandbox.WriteFile(filepath.Join(dir, "password"), password, account))
	backup := exec.CommandContext(t.Context(), filepath.Join(primary.Bin, "pg_basebackup"), "--pgdata", filepath.Join(dir, "cluster"),
		"--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-password", "--no-sync",
		"--dbname", "host="+u.Hostname()+" port="+u.Port()+" user=postgres")
	backup.Dir, backup.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	all := map[string]string{"hot_standby": "on"}
	maps.Copy(all, primary.Options.Settings)
	maps.Copy(all, settings)
	return startPostgres(t, sandbox.PostgresOptions{Dir: dir, Settings: all, Disposable: true})
}

// Sentinel starts a Sentinel that watches master (host:port) under a name, alone: its own
// vote is enough to replace the master, which it takes for dead after downAfter without an
// answer.
func Sentinel(t testing.TB, name, master string, downAfter time.Duration) *sandbox.Server {
	t.Helper()
	path, err := sandbox.FindRedis()
	must(t, err)
	host, masterPort, err := net.SplitHostPort(master)
	must(t, err)
	dir := Dir(t)
	config := filepath.Join(dir, "sentinel.conf") // which Sentinel rewrites
	return start(t, sandbox.Program{Path: path, Dir: dir, Args: func(port string) []string {
		must(t, sandbox.WriteFile(config, fmt.Sprintf("bind 127.0.0.1\nport %[1]s\ndir %[2]s\nsentinel monitor %[3]s %[4]s %[5]s 1\n"+
			"sentinel down-after-milliseconds %[3]s %[6]d\nsentinel failover-timeout %[3]s 5000\n",
			port, dir, name, host, masterPort, downAfter.Milliseconds()), nil))
		return []string{config, "--sentinel"}
	}})
}

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

// Certificate writes a self-signed certificate of the name, which is good for
// 127.0.0.1 and as its own authority, and its key; both as PEM, in the files.
func Certificate(t testing.TB, name string, life time.Duration, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(life), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// Relay is the network between a node and a server. It forwards bytes, and drops them when a
// test says so.
type Relay struct {
	address   string
	listener  net.Listener
	accepting sync.WaitGroup // until the listener is closed
	clients   sync.Map       // all connections that it accepted

	to    atomic.Value // the address of the server
	delay atomic.Pointer[delay]
	lost  atomic.Bool
	open  sync.RWMutex // locked while bytes are lost
}

// StartRelay starts a relay that leads to an address, until the test ends.
func StartRelay(t testing.TB, to string) *Relay {
	t.Helper()
	return StartRelayAt(t, "127.0.0.1:0", to)
}

// StartRelayAt starts one that listens on an address of one's choice.
func StartRelayAt(t testing.TB, address, to string) *Relay {
	t.Helper()
	r := &Relay{address: address}
	r.Redirect(to)
	must(t, r.Refuse(false))
	r.address = r.listener.Addr().String()
	t.Cleanup(func() {
		_ = r.Refuse(true)
		r.Lose(false)
	})
	return r
}

// Addr is host:port of the relay.
func (r *Relay) Addr() string { return r.address }

// Lose makes every connection hang, or go on, as when packets are lost: neither side gets
// an error.
func (r *Relay) Lose(lose bool) {
	switch was := r.lost.Swap(lose); {
	case lose && !was:
		r.open.Lock()
	case !lose && was:
		r.open.Unlock()
	}
}

// Delay makes every piece of bytes take this much longer.
func (r *Relay) Delay(d time.Duration) { r.DelayPiecesWith("", d) }

// DelayPiecesWith does so with pieces that have the text. What follows them on their connection waits, too.
func (r *Relay) DelayPiecesWith(text string, d time.Duration) { r.delay.Store(&delay{[]byte(text), d}) }

type delay struct {
	of []byte
	by time.Duration
}

// Redirect makes new connections lead to another server. Existing ones stay.
func (r *Relay) Redirect(to string) { r.to.Store(to) }

// Sever closes all connections.
func (r *Relay) Sever() {
	for client := range r.clients.Range {
		client.(net.Conn).Close() // which ends its carriers
	}
}

// Refuse closes all connections and refuses new ones, or accepts them again.
func (r *Relay) Refuse(refuse bool) (err error) {
	if refuse {
		r.listener.Close()
		r.accepting.Wait()
		r.Sever()
		return nil
	}
	r.listener, err = net.Listen("tcp", r.address)
	if err == nil {
		r.accepting.Go(r.accept)
	}
	return err
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.clients.Store(client, nil)
		go func() {
			r.await(nil)
			server, err := net.Dial("tcp", r.to.Load().(string))
			if err != nil {
				client.Close()
				return
			}
			go r.carry(server, client)
			r.carry(client, server)
		}()
	}
}

// await waits while bytes are delayed or lost.
func (r *Relay) await(piece []byte) {
	if d := r.delay.Load(); d != nil && bytes.Contains(piece, d.of) {
		time.Sleep(d.by)
	}
	r.open.RLock()
	defer r.open.RUnlock()
}

func (r *Relay) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			r.await(buffer[:n])
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
