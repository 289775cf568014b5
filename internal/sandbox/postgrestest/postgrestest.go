// Package postgrestest gives each test a database of its own on a private
// Postgres. The database is a copy of a template that has the schema. To copy the
// template takes a fraction of the time of a migration. The package is separate
// from sandboxtest so that sandboxtest does not import pgx.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// Template is the name of the database that has the schema and no rows.
const Template = "template_listedge"

// Make creates a database and migrates it for the lists of the contract. It does nothing if the database exists.
func Make[T any](ctx context.Context, p *sandbox.Postgres, name string, migrate func(ctx context.Context, url string, lists *list.Set) (T, error)) error {
	var server *pgconn.PgError
	switch err := run(ctx, p.URL("postgres"), "CREATE DATABASE "+name); {
	case errors.As(err, &server) && server.Code == "42P04": // duplicate_database
		return nil
	case err != nil:
		return err
	}
	_, err := migrate(ctx, p.URL(name), list.BuiltIn())
	return err
}

// Prepare returns a function for Shared.Prepare that makes the template.
func Prepare[T any](migrate func(context.Context, string, *list.Set) (T, error)) func(context.Context, *sandbox.Postgres) error {
	return func(ctx context.Context, p *sandbox.Postgres) error { return Make(ctx, p, Template, migrate) }
}

// Shared is one private Postgres for all tests of a binary. It starts when the first
// test needs a database, and Main stops it. Tests that kill or freeze a server
// start their own.
type Shared struct {
	Settings map[string]string
	Prepare  func(context.Context, *sandbox.Postgres) error // once it has started

	once     sync.Once
	postgres *sandbox.Postgres
}

// Fast are settings for a server that neither archives nor replicates. Autovacuum is
// off, so table statistics change only when a test runs ANALYZE.
var Fast = map[string]string{
	"autovacuum": "off", "synchronous_commit": "off", "wal_level": "minimal", "max_wal_senders": "0",
	"shared_buffers": "256MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB",
}

// Main runs the tests of a binary and stops the server. It fails if goroutines are
// left running.
func (s *Shared) Main(m *testing.M) {
	code := m.Run()
	s.Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// Server returns the server, and starts it first if need be.
func (s *Shared) Server() *sandbox.Postgres {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
		defer cancel()
		dir, err := sandboxtest.TempDir()
		must(err)
		must(sandboxtest.CopyCluster(dir))
		s.postgres, err = sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: dir, Disposable: true, Settings: s.Settings})
		must(err)
		must(s.Prepare(ctx, s.postgres))
	})
	return s.postgres
}

// Stop ends the server, if it was started, and removes its folder.
func (s *Shared) Stop() {
	if s.postgres != nil {
		must(s.postgres.Stop())
		must(os.RemoveAll(s.postgres.Options.Dir))
	}
}

// must panics on an error of the shared server: no single test is to blame for it.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// New makes a database with the schema and returns its URL. It is dropped when the
// test ends.
func (s *Shared) New(t testing.TB) (url string) {
	t.Helper()
	return s.CopyOf(t, Template)
}

// CopyOf makes a copy of the template for the test, and returns its URL.
func (s *Shared) CopyOf(t testing.TB, template string) (url string) {
	t.Helper()
	name := Copy(t, s.Server(), template)
	t.Cleanup(func() { Exec(t, s.Server().URL("postgres"), "DROP DATABASE "+name+" WITH (FORCE)") })
	return s.Server().URL(name)
}

// Within is a context that ends after d, or with the test.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

var copies atomic.Int64 // numbers the copies; the number is part of a copy's name

// Copy makes a copy of a database and returns its name. It is not dropped: it lasts
// as long as the server.
func Copy(t testing.TB, p *sandbox.Postgres, template string) (name string) {
	t.Helper()
	name = fmt.Sprintf("test_%d", copies.Add(1))
	Exec(t, p.URL("postgres"), fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template))
	return name
}

// Role makes a role that logs in, by statements in which $ROLE is its name, and returns that, and the URL with which it connects. It is
// dropped when the test ends, with what it owns in the database.
func Role(t testing.TB, address, sql string) (name, as string) {
	t.Helper()
	u, err := url.Parse(address)
	must(err)
	name = fmt.Sprintf("role_%d", copies.Add(1))
	u.User = url.UserPassword(name, "p")
	Exec(t, address, strings.ReplaceAll("CREATE ROLE $ROLE LOGIN PASSWORD 'p'; "+sql, "$ROLE", name))
	t.Cleanup(func() { Exec(t, address, "DROP OWNED BY "+name+"; DROP ROLE "+name) })
	return name, u.String()
}

// statementTimeout is a limit for hangs: it is long enough for a busy machine.
const statementTimeout = 5 * time.Minute

// Connect opens a plain connection, as another system that writes the tables would.
// It is closed when the test ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	return conn
}

// Exec runs a statement on a new connection.
func Exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	if err := run(ctx, url, sql, args...); err != nil {
		t.Fatalf("%v\n%.300s", err, sql)
	}
}

// Value returns what a statement that gives one value gives, on a new connection. It is for what is asked again and again,
// where connections that live as long as the test would be used up.
func Value[T any](url, sql string, args ...any) (value T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return value, err
	}
	defer closeConn(conn)
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// ExecOn runs a statement on the connection.
func ExecOn(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%v\n%.300s", err, sql)
	}
}

func run(ctx context.Context, url, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

// closeConn closes the connection and waits until its goroutines have ended.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	_ = conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}
