// Package postgrestest makes databases on a private Postgres, for tests: each
// has one of its own, a copy of one with the schema, which takes a fraction of
// migrating. It is apart from sandboxtest, which needs no client.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/sandbox"
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
