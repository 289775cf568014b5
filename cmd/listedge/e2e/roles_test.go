package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"listedge/cmd/listedge/doctor"
	edgeadmin "listedge/edge/admin"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// as is the URL for another role, whose password is p.
func as(t *testing.T, address, role string) string {
	t.Helper()
	u := must1(url.Parse(address))
	u.User = url.UserPassword(role, "p")
	return u.String()
}

func (n *testNode) readiness(t *testing.T) (status int, r edgeadmin.Readiness) {
	t.Helper()
	response := must1(http.Get(n.admin + "/readyz"))
	defer response.Body.Close()
	must(json.NewDecoder(response.Body).Decode(&r))
	return response.StatusCode, r
}

// serves checks that a node serves pages of both collections and follows a change. writer is
// a connection that may write the tables.
func (n *testNode) serves(t *testing.T, writer string) {
	t.Helper()
	within(t, patience, "ready, and changes are followed", func() bool {
		status, r := n.readiness(t)
		return status == http.StatusOK && r.Mode == "followed"
	})
	workspace, key := workspaceWithKey(t, writer)
	for _, name := range []string{"Tea", "Cup", "Pot"} {
		execute(t, writer, "INSERT INTO items (workspace_id, name) VALUES ($1, $2)", workspace, name)
		execute(t, writer, "INSERT INTO contacts (workspace_id, name) VALUES ($1, $2)", workspace, name)
	}
	for _, path := range []string{"/v1/items", "/v1/contacts"} {
		for query, want := range map[string]int{"": 3, "&sort=name": 3, "&search=cup": 1} {
			within(t, patience, path+query, func() bool { return len(n.walk(t, path+"?limit=2"+query, key, 2)) == want })
		}
	}
	execute(t, writer, "UPDATE items SET name = 'Kettle' WHERE workspace_id = $1 AND name = 'Pot'", workspace)
	within(t, patience, "the change", func() bool {
		a := n.get(t, "/v1/items?limit=3", key)
		return strings.Contains(string(a.body), "Kettle") && strings.Contains(a.Header.Get("Cache-Status"), "hit")
	})
}

// docsGrants returns the SQL in docs/SECURITY.md for the role listedge_node.
func docsGrants(t *testing.T) string {
	t.Helper()
	const first = "-- What the role of the nodes needs."
	_, rest, _ := strings.Cut(contents(t, "docs/SECURITY.md"), "```sql\n"+first)
	sql, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("SECURITY.md has no SQL")
	}
	return first + sql
}

func TestDocsHaveTheGrants(t *testing.T) {
	t.Parallel()
	if printed := command(t, "migrate", "grants", "--role", "listedge_node"); printed != docsGrants(t) {
		t.Errorf("docs/SECURITY.md should have\n%s", printed)
	}
	for _, role := range []string{"", "public", "none", "two\nlines", strings.Repeat("x", 64)} {
		refused(t, exitUsage, "", "migrate", "grants", "--role", role)
	}
}

// A node needs only the rights that the documents name, even if PUBLIC has none, and with
// every setting of the role.
func TestANodeRunsOnTheRightsThatTheDocsName(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	execute(t, address, `REVOKE ALL ON DATABASE listedge FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC;
		REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC`)
	const odd = `an "odd" role's näme\`
	for role, sql := range map[string]string{
		"listedge_node": docsGrants(t),
		odd:             command(t, "migrate", "grants", "--role", odd),
	} {
		quoted := `"` + strings.ReplaceAll(role, `"`, `""`) + `"`
		execute(t, address, "CREATE ROLE "+quoted+" LOGIN PASSWORD 'p'")
		execute(t, address, sql)
		var read, written string
		must(connect(t, address).QueryRow(t.Context(), `SELECT
			string_agg(relname, ' ' ORDER BY relname) FILTER (WHERE has_any_column_privilege($1, oid, 'SELECT')),
			string_agg(relname, ' ' ORDER BY relname) FILTER (WHERE has_table_privilege($1, oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'))
			FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'`, role).Scan(&read, &written))
		if read != "api_keys contacts items listedge_key_forms listedge_key_last_used listedge_key_usage listedge_usage_writers workspaces" ||
			written != "listedge_key_last_used listedge_key_usage listedge_usage_writers" {
			t.Errorf("%s may read %s, and write %s", role, read, written)
		}
		for _, setting := range []string{"search_path = nowhere", "default_transaction_read_only = on", "row_security = on"} {
			execute(t, address, "ALTER ROLE "+quoted+" SET "+setting)
		}
		n := startNode(t, as(t, address, role))
		n.serves(t, address)
		allFine(t, "", "--database-url", as(t, address, role), "--node", n.admin)
		n.stop()
	}
}

// The owner of the tables of a managed Postgres is no superuser.
func TestANodeRunsAsAnOwnerWhoIsNoSuperuser(t *testing.T) {
	t.Parallel()
	p := sandboxtest.Postgres(t)
	execute(t, p.URL("postgres"), "CREATE ROLE owner LOGIN REPLICATION PASSWORD 'p'")
	execute(t, p.URL("postgres"), "CREATE DATABASE owned OWNER owner")
	address := as(t, p.URL("owned"), "owner")
	must(postgrestest.Make(t.Context(), p, "owned", admin.MigrateUp))
	command(t, "migrate", "up", "--database-url", address)
	startNode(t, address).serves(t, address)
	by := diagnose(t, exitFine, "--database-url", address)
	expect(t, by, "reading", doctor.OK, "")
	expect(t, by, "follower", doctor.OK, "")
	execute(t, p.URL("postgres"), "ALTER ROLE owner NOREPLICATION")
	expect(t, diagnose(t, exitFine, "--database-url", address), "follower", doctor.Warn, "the user may not replicate")
}

// If the role may not read a table, doctor and /readyz say so, with what to do. The node still
// reads the others.
func TestARightThatIsLackingIsNamed(t *testing.T) {
	t.Parallel()
	address := database(t)
	u := must1(url.Parse(address))
	role := "node_of_" + u.Path[1:]
	named := func(sql string) string { return strings.ReplaceAll(sql, "ROLENAME", role) }
	execute(t, address, named("CREATE ROLE ROLENAME LOGIN PASSWORD 'p'"))
	execute(t, address, command(t, "migrate", "grants", "--role", role))
	reader := as(t, address, role)
	workspace, key := workspaceWithKey(t, address)
	execute(t, address, "INSERT INTO contacts (workspace_id, name) VALUES ($1, 'Tea')", workspace)
	n := startNode(t, reader)
	n.first(t, "/v1/items?limit=1", key).page(t)
	limit := 1
	for name, c := range map[string]struct{ takes, text, do string }{
		"a table": {"REVOKE SELECT ON contacts FROM ROLENAME", "contacts cannot be read", "GRANT SELECT ON public.contacts TO ROLENAME"},
		"a column": {"REVOKE SELECT ON contacts FROM ROLENAME; GRANT SELECT (workspace_id, id, name) ON contacts TO ROLENAME", "contacts cannot be read",
			"GRANT SELECT ON public.contacts TO ROLENAME"},
		"keys":       {"REVOKE SELECT ON api_keys FROM ROLENAME", "API keys cannot be read", "GRANT SELECT ON public.api_keys TO ROLENAME"},
		"the schema": {"REVOKE USAGE ON SCHEMA public FROM ROLENAME, PUBLIC", "items cannot be read", "GRANT USAGE ON SCHEMA public TO ROLENAME"},
		"a function": {"REVOKE EXECUTE ON FUNCTION listedge_search_grams FROM ROLENAME, PUBLIC", "items cannot be read",
			"GRANT EXECUTE ON FUNCTION public.listedge_search_grams(tenant text, folded text) TO ROLENAME"},
		"a policy of rows": {"ALTER TABLE contacts ENABLE ROW LEVEL SECURITY; CREATE POLICY no_tea ON contacts USING (name <> 'Tea')", "contacts cannot be read",
			"ALTER ROLE ROLENAME BYPASSRLS"},
	} {
		t.Run(name, func(t *testing.T) {
			limit += 3
			page := func(list string, behind int) string { return fmt.Sprintf("/v1/%s?limit=%d", list, limit+behind) } // that no node has
			execute(t, address, named(c.takes))
			f := diagnose(t, exitFailed, "--database-url", reader)["reading"]
			if f.Level != doctor.Fail || !strings.Contains(f.Text, c.text) || f.Remedy != named(c.do) {
				t.Errorf("%+v", f)
			}
			nodes := map[int]*testNode{200: n}
			if name == "a table" || name == "keys" {
				nodes[503] = launchNode(t, reader) // which was never ready
			}
			for want, n := range nodes {
				within(t, patience, "the missing right is reported", func() bool {
					status, r := n.readiness(t)
					return status == want && strings.Contains(r.Checks["reading"], c.text) && strings.Contains(r.Checks["reading"], named(c.do))
				})
			}
			if strings.HasPrefix(c.text, "contacts") {
				within(t, patience, "the others are read", func() bool { return n.get(t, page("items", 0), key).StatusCode == http.StatusOK })
			}
			if !strings.HasPrefix(c.text, "API keys") && name != "a function" {
				a := n.get(t, page("contacts", 1), key)
				if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || p.Error.Code != "SERVICE_UNAVAILABLE" || a.Header.Get("Retry-After") == "" {
					t.Errorf("%s: %s", a.Status, a.body)
				}
			}
			execute(t, address, f.Remedy)
			expect(t, diagnose(t, exitFine, "--database-url", reader), "reading", doctor.OK, "")
			execute(t, address, named("DROP POLICY IF EXISTS no_tea ON contacts; ALTER TABLE contacts DISABLE ROW LEVEL SECURITY; ALTER ROLE ROLENAME NOBYPASSRLS"))
			for _, n := range nodes {
				within(t, patience, "rows that may be read again", func() bool {
					a := n.get(t, page("contacts", 2), key)
					return a.StatusCode == http.StatusOK && len(a.page(t).Data) == 1
				})
				n.awaitReady(t)
				within(t, patience, "it is well", func() bool { return n.check(t, "reading") == "ok" })
			}
		})
	}
	t.Run("to connect", func(t *testing.T) {
		t.Parallel()
		address := database(t)
		u := must1(url.Parse(address))
		role := "node_of_" + u.Path[1:]
		execute(t, address, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'p'; REVOKE CONNECT ON DATABASE %s FROM PUBLIC", role, u.Path[1:]))
		expect(t, diagnose(t, exitFailed, "--database-url", as(t, address, role)), "postgres", doctor.Fail, "GRANT CONNECT ON DATABASE")
		n := launchNode(t, as(t, address, role))
		within(t, patience, "it is reported", func() bool {
			_, r := n.readiness(t)
			return strings.Contains(r.Checks["postgres"], "permission denied for database")
		})
	})
}

// Pages and keys are read through a pooler in each of its modes, and changes are followed
// without it.
func TestANodeReadsThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			_, address := privateDatabase(t)
			execute(t, address, "CREATE ROLE listedge_node LOGIN PASSWORD 'p'")
			execute(t, address, docsGrants(t))
			direct := as(t, address, "listedge_node")
			_, pooled := sandboxtest.PgBouncer(t, direct, map[string]string{"pool_mode": mode})
			n := startNode(t, pooled, "--replication-url", direct)
			n.serves(t, address)

			by := allFine(t, "slot", "--database-url", pooled, "--replication-url", direct, "--node", n.admin)
			expect(t, by, "reading", doctor.OK, "")
			n.stop()

			_, writer := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": mode})
			for range 2 {
				workspaceWithKey(t, writer)
			}

			// Several times, because statements that one node prepares must not disturb the next.
			for range 3 {
				expect(t, diagnose(t, exitFine, "--database-url", pooled), "follower", doctor.Warn, "--replication-url")
			}
			n = startNode(t, pooled)
			within(t, patience, "pages live --cache-ttl", func() bool { _, r := n.readiness(t); return r.Mode == "ttl" })
			within(t, patience, "the log says why", func() bool { return strings.Contains(n.err.String(), "--replication-url") })
		})
	}
}

// If a node followed the changes of another database, its pages would never become stale. So
// it refuses such a --replication-url.
func TestAReplicationURLThatLeadsElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	address, other := database(t), database(t)
	expect(t, diagnose(t, exitFailed, "--database-url", address, "--replication-url", other), "reading", doctor.Fail, "another server or database")
	n := launchNode(t, address, "--replication-url", other)
	within(t, patience, "it is reported", func() bool {
		status, r := n.readiness(t)
		return status == http.StatusServiceUnavailable &&
			(strings.Contains(r.Checks["reading"], "another server or database") || strings.Contains(r.Checks["postgres"], "is database "))
	})
}
