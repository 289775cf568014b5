package origin

import (
	"fmt"
	"testing"
	"time"

	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/postgres"
	"listedge/origin/postgres/databasetest"
)

var shared = postgrestest.Shared{Settings: postgrestest.Fast, Prepare: postgrestest.Prepare(admin.MigrateUp)}

func TestMain(m *testing.M) { shared.Main(m) }

// patience is for what a test waits for and expects to come.
const patience = 5 * time.Minute

var (
	server                        = shared.Server
	newDatabase, copyDatabase     = shared.New, shared.CopyOf
	openDatabase                  = databasetest.Open
	connect, execOn, exec, within = postgrestest.Connect, postgrestest.Exec, postgrestest.ExecOn, postgrestest.Within
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

func openOrigin(t testing.TB, url string) *Origin {
	t.Helper()
	return New(openDatabase(t, postgres.Options{URL: url}), list.BuiltIn(), nil)
}

var eventually = sandboxtest.Eventually

// number is a UUID that sorts as n does.
func number(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

func describe(q page.Query) string {
	return fmt.Sprintf("%s sort=%s filter=%b search=%q limit=%d", q.List.Name, q.List.Orders[q.Order].Name, q.Match, q.Search, q.Limit)
}
