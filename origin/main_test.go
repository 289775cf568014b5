package origin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

// One private Postgres serves the whole binary; it starts with the first test
// that wants a database. Tests that kill or freeze a server start their own.
func TestMain(m *testing.M) {
	code := m.Run()
	must(shared.Stop())
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
		code = 1
	}
	os.Exit(code)
}

// patience is for what a test waits for and expects to come.
const patience = 5 * time.Minute

// shared has no autovacuum, so that tests say when statistics are taken.
var shared = sandboxtest.Shared{
	Settings: map[string]string{
		"autovacuum": "off", "synchronous_commit": "off", "wal_level": "minimal", "max_wal_senders": "0",
		"shared_buffers": "256MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB",
	},
	Prepare: postgrestest.Prepare(admin.MigrateUp),
}

func server() *sandbox.Postgres {
	p, err := shared.Postgres()
	must(err)
	return p
}

// must is for the server that all tests need: without it there is no test to fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newDatabase makes a database with the schema and returns its URL.
func newDatabase(t testing.TB) string {
	t.Helper()
	return copyDatabase(t, postgrestest.Template)
}

func copyDatabase(t testing.TB, template string) string {
	t.Helper()
	name := postgrestest.Copy(t, server(), template)
	t.Cleanup(func() { execOn(t, server().URL("postgres"), "DROP DATABASE "+name+" WITH (FORCE)") })
	return server().URL(name)
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

var connect, execOn = postgrestest.Connect, postgrestest.Exec

// exec runs statements apart from the code under test.
func exec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%v\n%.300s", err, sql)
	}
}

// openDatabase opens the pools as a node does.
func openDatabase(t testing.TB, o postgres.Options) *postgres.Database {
	t.Helper()
	if o.Connections == 0 {
		o.Connections = 2
	}
	if o.QueryTimeout == 0 {
		o.QueryTimeout = patience
	}
	db, err := postgres.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

func openOrigin(t testing.TB, url string) *Origin {
	t.Helper()
	return New(openDatabase(t, postgres.Options{URL: url}))
}

// eventually waits for what something else is about to bring.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	sandboxtest.Within(t, patience, what, ok)
}

// number is a UUID that sorts as n does.
func number(n int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012x", n))
}

func describe(q Query) string {
	return fmt.Sprintf("%s sort=%d stock=%d type=%d search=%q limit=%d", q.Collection, q.Sort, q.Stock, q.Type, q.Search, q.Limit)
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
