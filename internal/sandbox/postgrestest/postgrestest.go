// Package postgrestest makes databases on a private Postgres, for tests: each
// has one of its own, a copy of one with the schema, which takes a fraction of
// migrating. It is apart from sandboxtest, which needs no client.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// Template is the database with the schema and nothing in it.
const Template = "template_listedge"

// Make makes a database and migrates it, unless it is there.
func Make[T any](ctx context.Context, p *sandbox.Postgres, name string, migrate func(ctx context.Context, url string) (T, error)) error {
	var server *pgconn.PgError
	switch err := run(ctx, p.URL("postgres"), "CREATE DATABASE "+name); {
	case errors.As(err, &server) && server.Code == "42P04": // duplicate_database
		return nil
	case err != nil:
		return err
	}
	_, err := migrate(ctx, p.URL(name))
	return err
}

// Prepare makes the template: of a sandboxtest.Shared.
func Prepare[T any](migrate func(ctx context.Context, url string) (T, error)) func(context.Context, *sandbox.Postgres) error {
	return func(ctx context.Context, p *sandbox.Postgres) error { return Make(ctx, p, Template, migrate) }
}

// Shared is one private Postgres for all tests of a binary. It starts with the first
// test that wants a database, and Main ends it. Tests that kill or freeze a server
// start their own.
type Shared struct{ sandboxtest.Shared }

// Fast are settings of a server that neither archives nor replicates. Statistics are
// taken when a test says so.
var Fast = map[string]string{
	"autovacuum": "off", "synchronous_commit": "off", "wal_level": "minimal", "max_wal_senders": "0",
	"shared_buffers": "256MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB",
}

// Main runs the tests of a binary, and fails if they leave goroutines.
func (s *Shared) Main(m *testing.M) {
	code := m.Run()
	must(s.Stop())
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// Server is the server.
func (s *Shared) Server() *sandbox.Postgres {
	p, err := s.Postgres()
	must(err)
	return p
}

// must is for the server that all tests need: without it there is no test to fail.
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

// CopyOf is New with another template.
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

var copies atomic.Int64 // each has its number in its name

// Copy makes a copy of a database and returns its name. It is gone with the
// server.
func Copy(t testing.TB, p *sandbox.Postgres, template string) (name string) {
	t.Helper()
	name = fmt.Sprintf("test_%d", copies.Add(1))
	Exec(t, p.URL("postgres"), fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template))
	return name
}

// patience bounds a statement, on a busy machine too.
const patience = 5 * time.Minute

// Connect opens a connection such as any other system has that writes the
// tables, until the test ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	return conn
}

// Exec runs a statement on a connection of its own.
func Exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, url, sql, args...); err != nil {
		t.Fatalf("%v\n%.300s", err, sql)
	}
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

// closeConn waits until nothing of the connection is left.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}
