package e2e

import (
	"strings"
	"syscall"
	"testing"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
)

// Two fleets, each with a Redis of its own, follow one Postgres.
func TestTwoRegionsOnOneDatabase(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	execute(t, url, "INSERT INTO items (workspace_id, name) VALUES ($1, 'v0')", workspace)
	if said := command(t, "migrate", "up", "--region", "east", "--database-url", url); !strings.Contains(said, "_east") {
		t.Error(said)
	}
	var nodes []*testNode
	for _, region := range []string{"east", "west"} {
		redis := sandboxtest.Redis(t)
		for range 2 {
			nodes = append(nodes, startNode(t, url, "--redis-url", redis.URL(), "--region", region))
		}
	}
	followers := 0.0
	for _, n := range nodes {
		n.awaitFollowed(t)
		followers += n.metric(t, "listedge_freshness_follower")
		n.get(t, "/v1/items", key)
	}
	if followers != 2 {
		t.Errorf("%v followers", followers)
	}
	execute(t, url, "UPDATE items SET name = 'v1' WHERE workspace_id = $1", workspace)
	for _, n := range nodes {
		within(t, patience, "the change", func() bool { return strings.Contains(string(n.get(t, "/v1/items", key).body), "v1") })
	}
	expect(t, diagnose(t, exitFine, "--database-url", url, "--region", "west"), "slot", "ok", "followed")
	by := diagnose(t, exitFailed, "--database-url", url, "--region", "east", "--node", nodes[0].admin+","+nodes[1].admin+","+nodes[2].admin+","+nodes[3].admin)
	expect(t, by, "fleet region", doctor.Fail, "east on ")
	expect(t, by, "fleet follower", doctor.Fail, "; 127.0.0.1:")
	expect(t, by, "fleet log of changes", doctor.Fail, "; ")
	expect(t, by, "fleet redis-url", doctor.Warn, "; redis://")
	refused(t, exitUsage, "--region", "serve", "--database-url", url, "--region", "New York")
}

// slots returns the names of the server's slots.
func slots(address string) []string {
	return must1(postgrestest.Value[[]string](address, "SELECT coalesce(array_agg(slot_name::text), '{}') FROM pg_replication_slots"))
}

// The slot of a fleet that is gone is dropped by command, and one that is in use is not.
func TestDroppingASlot(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	n := startFollowed(t, address)
	refused(t, exitFailed, "stop all nodes", "migrate", "drop-slot", "--database-url", address)
	refused(t, exitFailed, "stop all nodes", "migrate", "remove", "--yes", "--database-url", address)
	n.stop()
	if names := slots(address); len(names) != 1 { // its size is limited, so a stopped fleet keeps it
		t.Errorf("%v", names)
	}
	command(t, "migrate", "up", "--region", "east", "--database-url", address)
	for _, want := range []string{"dropped the slot", "there is no slot"} {
		if said := command(t, "migrate", "drop-slot", "--region", "east", "--database-url", address); !strings.HasPrefix(said, want) ||
			!strings.Contains(said, "_east") {
			t.Errorf("%q, want %q", said, want)
		}
	}
	if names := slots(address); len(names) != 1 || strings.Contains(names[0], "east") {
		t.Errorf("%v", names)
	}

	// Removing leaves the tables of other systems with their rows, and nothing else of ours.
	workspace, _ := workspaceWithKey(t, address)
	if said := command(t, "migrate", "remove", "--database-url", address); !strings.Contains(said, "Nothing was changed") || len(slots(address)) != 1 {
		t.Error(said)
	}
	command(t, "migrate", "remove", "--yes", "--database-url", address)
	if names := slots(address); len(names) > 0 {
		t.Errorf("slots: %v", names)
	}
	const leftSQL = `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM (
		SELECT relname::text AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p LEFT JOIN pg_depend d ON d.objid = p.oid AND deptype = 'e'
			WHERE pronamespace = 'public'::regnamespace AND d.objid IS NULL
		UNION ALL SELECT collname FROM pg_collation WHERE collnamespace = 'public'::regnamespace
		UNION ALL SELECT 'publication ' || pubname FROM pg_publication) left_over`
	if left, err := postgrestest.Value[string](address, leftSQL); err != nil ||
		left != "api_keys api_keys_key_hash_key api_keys_pkey contacts contacts_pkey items items_pkey workspaces workspaces_pkey" {
		t.Errorf("%s (%v)", left, err)
	}
	command(t, "migrate", "up", "--database-url", address)
	if said := command(t, "workspaces", "list", "--database-url", address); !strings.Contains(said, workspace) {
		t.Error(said)
	}
}

// Where nothing bounds the WAL that slots keep, a fleet that is killed leaves no slot, and a persistent one that a former
// run has left is dropped. With a bound it leaves its slot, and at most so much WAL. docs/OPERATIONS.md has figures.
func TestAKilledFleetKeepsNoWAL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ bound, kind string }{{"", "temporary"}, {"128MB", "persistent"}} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			_, address := privateDatabaseWith(t, map[string]string{"max_slot_wal_keep_size": c.bound})
			if said := command(t, "migrate", "up", "--database-url", address); strings.Contains(said, "made the slot") != (c.kind == "persistent") {
				t.Error(said)
			}
			const left = "SELECT pg_create_logical_replication_slot('listedge_' || oid, 'pgoutput') FROM pg_database WHERE datname = current_database()"
			if c.kind == "temporary" { // as a former version has made it
				execute(t, address, left)
				expect(t, diagnose(t, exitFailed, "--database-url", address), "max_slot_wal_keep_size", doctor.Fail, "may fill")
			}
			redis := sandboxtest.Redis(t)
			nodes := []*testNode{startFollowed(t, address, "--redis-url", redis.URL()), startFollowed(t, address, "--redis-url", redis.URL())}
			by := diagnose(t, exitFine, "--database-url", address)
			expect(t, by, "slot", doctor.OK, c.kind+", followed")
			level, why := doctor.OK, "128MB"
			if c.kind == "temporary" {
				level, why = doctor.Warn, "read their pages and keys again"
				for _, n := range nodes {
					n.awaitCheck(t, "slot", "ok: the slot is temporary")
					if up := n.metric(t, "listedge_check_up", `check="slot"`); up != 1 {
						t.Errorf("the check of the slot: %v", up)
					}
					within(t, patience, "it warns", func() bool { return strings.Contains(n.err.String(), "max_slot_wal_keep_size is not set") })
				}
			}
			expect(t, by, "max_slot_wal_keep_size", level, why)
			if c.kind == "persistent" {
				writer := connect(t, address)
				must1(writer.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"))
				writeSegments(t, address, 5)
				says(t, []string{"--database-url", address, "--node", nodes[0].admin}, exitFine,
					doctor.Finding{Subject: "slot", Level: doctor.Warn, Text: "followed, and it retains "},
					doctor.Finding{Subject: "slot", Level: doctor.Warn, Text: "of 128 MB that"})
			}
			for _, n := range nodes {
				n.signal(syscall.SIGKILL)
			}
			within(t, patience, "Postgres has noticed it", func() bool {
				return must1(postgrestest.Value[bool](address, "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)"))
			})
			writeSegments(t, address, 2)
			var slots, kept int
			must(connect(t, address).QueryRow(t.Context(),
				"SELECT count(*), coalesce(max(pg_current_wal_lsn() - restart_lsn), 0) FROM pg_replication_slots").Scan(&slots, &kept))
			t.Logf("--slot auto, so %s: all nodes killed, then 2 segments of WAL written: %d slots, which keep %d bytes of WAL", c.kind, slots, kept)
			if (slots == 0) != (c.kind == "temporary") || (kept == 0) != (slots == 0) {
				t.Error("not as documented")
			}
		})
	}
}

// writeSegments fills segments of WAL, of 16 MB each.
func writeSegments(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		execute(t, address, "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()")
	}
}

// awaitItem waits until a standby has replayed the item.
func awaitItem(t *testing.T, address, workspace string) {
	t.Helper()
	within(t, patience, "the standby has it all", func() bool {
		there, err := postgrestest.Value[bool](address, "SELECT EXISTS (SELECT FROM items WHERE workspace_id = $1)", workspace)
		return err == nil && there
	})
}
