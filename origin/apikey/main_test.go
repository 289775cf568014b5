package apikey_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
	"listedge/origin/postgres/databasetest"
)

// Tests that need Postgres are external: they make keys by package admin, which
// imports this one.

var shared = postgrestest.Shared{
	Settings: map[string]string{"synchronous_commit": "off"},
	Prepare:  postgrestest.Prepare(admin.MigrateUp),
}

func TestMain(m *testing.M) { shared.Main(m) }

// patience is a limit for what a test waits for.
const patience = 5 * time.Minute

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

var within = postgrestest.Within

var newDatabase = shared.New

// newStore reads keys as a node does.
func newStore(t testing.TB, url string) *apikey.Store {
	t.Helper()
	return apikey.NewStore(openPools(t, url), list.BuiltIn())
}

func openPools(t testing.TB, url string) *postgres.Database {
	t.Helper()
	return databasetest.Open(t, postgres.Options{URL: url})
}

func openAdmin(t testing.TB, url string) *admin.Conn {
	t.Helper()
	conn, err := admin.Open(within(t, patience), url)
	must(err)
	t.Cleanup(conn.Close)
	return conn
}

// runOf is when the server was started, as an answer says it.
func runOf(t testing.TB, url string) (run string) {
	t.Helper()
	must(postgrestest.Connect(t, url).QueryRow(within(t, patience), "SELECT extract(epoch FROM pg_postmaster_start_time())::text").Scan(&run))
	return run
}

// number is the id of the nth row.
func number(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012x", n)) }
