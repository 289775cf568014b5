// Package databasetest opens the pools of a database for tests.
package databasetest

import (
	"cmp"
	"context"
	"testing"
	"time"

	"listedge/origin/postgres"
)

// Open opens the pools as a node does, and closes them when the test ends. Without a limit for a
// query in o, it is five minutes.
func Open(t testing.TB, o postgres.Options) *postgres.Database {
	t.Helper()
	o.Connections, o.QueryTimeout = cmp.Or(o.Connections, 2), cmp.Or(o.QueryTimeout, 5*time.Minute)
	db, err := postgres.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}
