package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// slots returns the names of the server's slots.
func slots(t *testing.T, address string) (names []string) {
	t.Helper()
	rows, _ := connect(t, address).Query(t.Context(), "SELECT slot_name::text FROM pg_replication_slots")
	names = must1(pgx.CollectRows(rows, pgx.RowTo[string]))
	return names
}

// The slot of a fleet that is gone is dropped by command, and one that is in use is not.
func TestDroppingASlot(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	n := startNode(t, address)
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	refused(t, exitFailed, "stop all nodes", "migrate", "drop-slot", "--database-url", address)
	refused(t, exitFailed, "stop all nodes", "migrate", "remove", "--yes", "--database-url", address)
	n.stop()
	if names := slots(t, address); len(names) != 1 { // its size is limited, so a stopped fleet keeps it
		t.Errorf("%v", names)
	}
	command(t, "migrate", "up", "--region", "east", "--database-url", address)
	for _, want := range []string{"dropped the slot", "there is no slot"} {
		if said := command(t, "migrate", "drop-slot", "--region", "east", "--database-url", address); !strings.HasPrefix(said, want) || !strings.Contains(said, "_east") {
			t.Errorf("%q, want %q", said, want)
		}
	}
	if names := slots(t, address); len(names) != 1 || strings.Contains(names[0], "east") {
		t.Errorf("%v", names)
	}
}

// Removing leaves the tables of other systems with their rows, and nothing else of ours.
func TestRemoving(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	command(t, "migrate", "up", "--database-url", address)
	workspace, _ := workspaceWithKey(t, address)
	if said := command(t, "migrate", "remove", "--database-url", address); !strings.Contains(said, "Nothing was changed") || len(slots(t, address)) != 1 {
		t.Error(said)
	}
	command(t, "migrate", "remove", "--yes", "--database-url", address)
	if names := slots(t, address); len(names) > 0 {
		t.Errorf("slots: %v", names)
	}
	const leftSQL = `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM (
		SELECT relname::text AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p LEFT JOIN pg_depend d ON d.objid = p.oid AND deptype = 'e' WHERE pronamespace = 'public'::regnamespace AND d.objid IS NULL
		UNION ALL SELECT collname FROM pg_collation WHERE collnamespace = 'public'::regnamespace
		UNION ALL SELECT 'publication ' || pubname FROM pg_publication) left_over`
	var left string
	if err := connect(t, address).QueryRow(t.Context(), leftSQL).Scan(&left); err != nil || left != "api_keys api_keys_key_hash_key api_keys_pkey contacts contacts_pkey items items_pkey workspaces workspaces_pkey" {
		t.Errorf("%s (%v)", left, err)
	}
	command(t, "migrate", "up", "--database-url", address)
	if said := command(t, "workspaces", "list", "--database-url", address); !strings.Contains(said, workspace) {
		t.Error(said)
	}
}

// Where nothing limits the WAL that a slot retains, the last node that stops drops it.
func TestTheLastNodeDropsAnUnlimitedSlot(t *testing.T) {
	t.Parallel()
	_, address := privateDatabaseWith(t, map[string]string{"max_slot_wal_keep_size": "-1"})
	expect(t, diagnose(t, exitFailed, "--database-url", address), "max_slot_wal_keep_size", admin.Fail, "may fill")
	redis := sandboxtest.Redis(t)
	var nodes []*testNode
	for range 2 {
		n := startNode(t, address, "--redis-url", redis.URL())
		within(t, patience, "followed", func() bool { return n.mode() == "followed" })
		within(t, patience, "it warns", func() bool { return strings.Contains(n.err.String(), "max_slot_wal_keep_size is not set") })
		nodes = append(nodes, n)
	}
	within(t, patience, "both are in the roster", func() bool {
		return strings.Contains(diagnose(t, exitFailed, "--database-url", address, "--redis-url", redis.URL())["redis nodes"].Text, "2 known: ")
	})
	for i, n := range nodes {
		n.stop()
		if last := i == 1; strings.Contains(n.err.String(), "dropped the slot") != last {
			t.Errorf("node %d has stopped:\n%s", i+1, n.err.String())
		}
	}
	if names := slots(t, address); len(names) > 0 {
		t.Errorf("slots: %v", names)
	}
}

// The doctor warns of a slot that retains much, and names the transaction that is why.
func TestDoctorOfRetainedWAL(t *testing.T) {
	t.Parallel()
	_, address := privateDatabaseWith(t, map[string]string{"max_slot_wal_keep_size": "96MB"})
	n := startNode(t, address)
	within(t, patience, "followed", func() bool { return n.mode() == "followed" })
	expect(t, diagnose(t, exitFine, "--database-url", address), "slot", admin.OK, "of 96 MB")
	writer := connect(t, address)
	must1(writer.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"))
	for range 4 { // segments of 16 MB
		execute(t, address, "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()")
	}
	says(t, []string{"--database-url", address, "--node", n.admin}, exitFine,
		admin.Finding{Subject: "slot", Level: admin.Warn, Text: fmt.Sprintf("the oldest write transaction is process %d of user ", writer.PgConn().PID())},
		admin.Finding{Subject: "fleet follower", Level: admin.OK})
}
