package admin

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

// risks are what is said of each, as the doctor prints it.
func risks(t *testing.T, url string, nodes int) map[string]string {
	t.Helper()
	conn := must1(postgres.Connect(within(t, patience), url, patience))
	defer conn.Close(t.Context())
	said := map[string]string{}
	for _, r := range must1(Risks(t.Context(), conn, "", 21, nodes)) {
		if said[r.Subject] = r.Fine; r.Why != "" {
			said[r.Subject] = r.Why + ": " + r.Remedy
		}
	}
	return said
}

// A slot that is followed, or retains much, is in the end-to-end tests.
func TestFindingsOnTheSlot(t *testing.T) {
	t.Parallel()
	url := sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": "1MB"}).URL("postgres")
	for _, c := range []struct {
		name, sql, text string
	}{
		{"none", "SELECT", "there is none: start a node"},
		{"nobody follows", "SELECT pg_create_logical_replication_slot('listedge_' || oid, 'pgoutput') FROM pg_database WHERE datname = current_database()",
			"no node follows it, and it retains [^,]+, of 1024 kB that max_slot_wal_keep_size allows: " +
				"start a node, or see why none follows; `listedge migrate drop-slot`"},
		{"lost", "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal(); CHECKPOINT",
			"so Postgres invalidated it: nothing: the next follower makes a new one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, url, c.sql)
			if said := risks(t, url, 0)["slot"]; !regexp.MustCompile(c.text).MatchString(said) {
				t.Error(said)
			}
		})
	}
}

// Each bound of connections is compared with what the nodes may use.
func TestFindingsOnConnections(t *testing.T) {
	t.Parallel()
	server := sandboxtest.PostgresWith(t, map[string]string{"max_connections": "60", "superuser_reserved_connections": "3"})
	execOn(t, server.URL("postgres"), "CREATE ROLE node LOGIN PASSWORD 'secret'; GRANT pg_read_all_stats TO node")
	address, err := url.Parse(server.URL("postgres"))
	must(err)
	address.User = url.UserPassword("node", "secret")
	for _, c := range []struct {
		name, sql string
		nodes     int
		want      map[string]string // by subject, what it says; others are fine
	}{
		{"enough for two", "SELECT", 0, map[string]string{"max_connections": "57 connections, 1 used, 0 not by nodes: enough for 2 nodes"}},
		{"three nodes", "SELECT", 3, map[string]string{
			"max_connections": "57 connections, 1 used, 0 not by nodes; 3 nodes use up to 63: set max_connections = 63 and restart Postgres, or lower --database-connections"}},
		{"a role's limit", "ALTER ROLE node CONNECTION LIMIT 8", 1, map[string]string{
			"role's limit": "8 connections, 1 used, 0 not by nodes; 2 nodes use up to 42: ALTER ROLE node CONNECTION LIMIT 42, or lower --database-connections"}},
		{"a database's limit", "ALTER ROLE node CONNECTION LIMIT -1; ALTER DATABASE postgres CONNECTION LIMIT 50", 0, map[string]string{
			"database's limit": "50 connections, 1 used, 0 not by nodes: enough for 2 nodes"}},
		{"a database's limit that is low", "ALTER DATABASE postgres CONNECTION LIMIT 20", 0, map[string]string{
			"database's limit": "ALTER DATABASE postgres CONNECTION LIMIT 42, or lower"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, server.URL("postgres"), c.sql)
			seen := risks(t, address.String(), c.nodes)
			for _, subject := range []string{"max_connections", "role's limit", "database's limit"} {
				want := c.want[subject]
				if text, found := seen[subject]; !found || !strings.Contains(text, want) || want == "" && strings.Contains(text, "use up to") {
					t.Errorf("%s: %q, want %q", subject, text, want)
				}
			}
		})
	}
}
