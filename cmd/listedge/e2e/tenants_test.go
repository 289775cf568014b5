package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"listedge/internal/sandbox/postgrestest"
)

// The keys of a workspace read the rows of its tenant: of another one as soon as it has that, and those of no other workspace.
func TestTenantsOfDescribedLists(t *testing.T) {
	t.Parallel()
	url, description := products(t)
	file := describe(t, description)
	postgrestest.Exec(t, url, `INSERT INTO shop.products (id, account_id, title, price_cents, kind, inserted_at) OVERRIDING SYSTEM VALUE
		SELECT account, account, 'of ' || account, 1, 'goods', now() FROM unnest(ARRAY[1, 2]) account`)
	n := startFollowed(t, url, "--lists", file)
	n.document = documentOf(resolved(t, url, description))
	titles := func(key string) (all string) {
		var body struct{ Data []struct{ Title string } }
		must(json.Unmarshal(n.first(t, "/v1/products", key).body, &body))
		for _, row := range body.Data {
			all += row.Title + "; "
		}
		return all
	}
	workspace := func(t *testing.T, flags ...string) (id, key, said string) {
		t.Helper()
		p := start(t, append([]string{"workspaces", "create", "--name", "W", "--lists", file, "--database-url", url}, flags...)...)
		<-p.ended
		id = strings.TrimSpace(p.out.String())
		return id, newKeyFor(t, url, id, "--lists", file), p.err.String()
	}
	one, first, quiet := workspace(t, "--tenant", "1")
	_, second, _ := workspace(t, "--tenant", "2")
	t.Run("each sees its own rows", func(t *testing.T) {
		if titles(first) != "of 1; " || titles(second) != "of 2; " || quiet != "" {
			t.Errorf("%s, %s, %s", titles(first), titles(second), quiet)
		}
	})
	t.Run("a change", func(t *testing.T) {
		command(t, "workspaces", "update", one, "--tenant", "3", "--lists", file, "--database-url", url)
		within(t, patience, "a page of another tenant", func() bool { return titles(first) == "" })
		postgrestest.Exec(t, url, `UPDATE workspaces SET tenant = '4' WHERE tenant = '2'`)
		postgrestest.Exec(t, url, "UPDATE workspaces SET tenant = '2' WHERE id = $1", one)
		within(t, patience, "a page of the tenant that was another's", func() bool { return titles(first) == "of 2; " && titles(second) == "" })
	})
	t.Run("a purge", func(t *testing.T) {
		command(t, "purge", "--workspace", one, "--database-url", url)
		if titles(first) != "of 2; " {
			t.Error(titles(first))
		}
	})
	t.Run("a tenant that no row can have", func(t *testing.T) {
		_, key, said := workspace(t)
		if titles(key) != "" || !strings.Contains(said, "no list has rows of the tenant") || !strings.Contains(said, "account_id of shop.products") {
			t.Errorf("%s, %s", titles(key), said)
		}
		for tenant, args := range map[string][]string{"two": {"create", "--name", "W"}, "+03": {"update", one}} {
			args = append([]string{"workspaces"}, append(args, "--tenant", tenant, "--database-url", url)...)
			refused(t, exitUsage, "account_id of shop.products is of type integer", append(args, "--lists", file)...)
			refused(t, exitUsage, "name your own lists with --lists FILE", args...)
		}
	})
}
