package admin

import (
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
)

// Migration 7 bounds usage_30. It waits while another session holds the table, in short tries,
// so that other sessions do not wait for it for long.
func TestUsageIsBoundOnALiveTable(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	if err := bareGoose(t.Context(), url, func(p *goose.Provider) error { _, err := p.UpTo(t.Context(), 6); return err }); err != nil {
		t.Fatal(err)
	}
	slow, conn := connect(t, url), connect(t, url)
	const write = "INSERT INTO items (workspace_id, name, usage_30) VALUES (gen_random_uuid(), 'written', 9007199254740991)"
	exec(t, slow, "BEGIN; "+write)
	migrated := make(chan error, 1)
	go func() { _, err := MigrateUp(t.Context(), url); migrated <- err }()
	eventually(t, "a lock that is waited for", func() (waits bool) {
		if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'items'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	exec(t, conn, "SET statement_timeout = '30s'; "+write+"; SELECT count(*) FROM items; RESET statement_timeout")
	exec(t, slow, "COMMIT")
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	var valid bool
	if err := conn.QueryRow(t.Context(), "SELECT convalidated FROM pg_constraint WHERE conname = 'items_usage_30_bound'").Scan(&valid); err != nil || !valid {
		t.Errorf("valid: %v, %v", valid, err)
	}
}

// Rows above the bound are left to their writer: the migration names them, has
// done nothing, and is run again.
func TestUsageAboveTheBoundIsNotChanged(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	if err := bareGoose(t.Context(), url, func(p *goose.Provider) error { _, err := p.UpTo(t.Context(), 6); return err }); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	exec(t, conn, "INSERT INTO items (workspace_id, name, usage_30) VALUES (gen_random_uuid(), 'x', 1e400), (gen_random_uuid(), 'y', 9007199254740992), (gen_random_uuid(), 'z', 1)")
	_, err := MigrateUp(t.Context(), url)
	if err == nil || !strings.Contains(err.Error(), "usage_30 of 2 items is above 9007199254740991: lower it") || strings.Contains(err.Error(), "LOOP") {
		t.Errorf("%v", err)
	}
	exec(t, conn, "UPDATE items SET name = 'still writable'")
	exec(t, conn, "UPDATE items SET usage_30 = 0 WHERE usage_30 > 9007199254740991")
	if _, err := MigrateUp(t.Context(), url); err != nil {
		t.Error(err)
	}
}
