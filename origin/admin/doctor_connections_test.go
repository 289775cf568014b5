package admin

import (
	"net/url"
	"strings"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

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
			seen := map[string]string{}
			for _, f := range Diagnose(t.Context(), address.String(), DoctorOptions{Connections: 21, Nodes: c.nodes}) {
				if seen[f.Subject] = f.Text + ": " + f.Remedy; f.Level == OK {
					seen[f.Subject] = f.Text
				}
			}
			for _, subject := range []string{"max_connections", "role's limit", "database's limit"} {
				want := c.want[subject]
				if text, found := seen[subject]; !found || !strings.Contains(text, want) || want == "" && strings.Contains(text, "use up to") {
					t.Errorf("%s: %q, want %q", subject, text, want)
				}
			}
		})
	}
}
