package admin

import (
	"testing"
	"time"

	"listedge/internal/list"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"

	"listedge/origin"
	"listedge/origin/postgres"
	"listedge/origin/postgres/databasetest"
)

var shared = postgrestest.Shared{Settings: postgrestest.Fast, Prepare: postgrestest.Prepare(MigrateUp)}

func TestMain(m *testing.M) { shared.Main(m) }

// patience is for what a test waits for and expects to come.
const patience = 5 * time.Minute

var (
	postgresServer                = shared.Server
	newDatabase, copyDatabase     = shared.New, shared.CopyOf
	openDatabase                  = databasetest.Open
	connect, execOn, exec, within = postgrestest.Connect, postgrestest.Exec, postgrestest.ExecOn, postgrestest.Within
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// pages are read as a node reads them.
func pages(db *postgres.Database) Reader { return origin.New(db, list.BuiltIn(), nil) }

func readiness(db *postgres.Database) *Readiness { return NewReadiness(db, list.BuiltIn(), pages(db)) }

var eventually = sandboxtest.Eventually
