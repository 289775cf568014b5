package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// described is a file that describes lists of other tables.
func described(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "lists.yaml")
	const text = `lists:
  products:
    table: '"My shop".products'
    key: id
    fields: {id: , title: }
    orders: {title: {by: title}}
  stock-moves:
    table: shop.moves
    key: id
    fields: {id: , at: }
    orders: {at: {by: at}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The scopes of a key, and what a role is granted, are those of the lists in force. No database is needed to say so.
func TestCommandsKnowTheListsInForce(t *testing.T) {
	t.Setenv("LISTEDGE_DATABASE_URL", "postgres://127.0.0.1:1/none")
	lists := described(t)
	const create = "keys create --workspace 00000000-0000-0000-0000-000000000001"
	for _, c := range []struct {
		name, line string
		code       int
		want       string
	}{
		{"a scope of no list", create + " --scopes items:read,items:write", exitUsage,
			`--scopes: no list has the scope "items:write"; known are items:read,contacts:read`},
		{"a scope of the contract", create + " --scopes contacts:read", exitFailed, "check that --database-url names Postgres"},
		{"a scope of another description", create + " --scopes items:read --lists " + lists, exitUsage, "known are products:read,stock-moves:read"},
		{"a scope of the description", create + " --scopes stock-moves:read --lists " + lists, exitFailed, "check that --database-url names Postgres"},
		{"all scopes", create + " --lists " + lists, exitFailed, "check that --database-url names Postgres"},
		{"no such description", create + " --lists " + lists + ".none", exitUsage, "--lists: "},
		{"no scopes", create + " --scopes=", exitUsage, "--scopes must not be empty"},
		{"grants", "migrate grants --role node", exitFine, `GRANT SELECT ON "public"."items", "public"."contacts", ` +
			`"public"."api_keys", "public"."workspaces", "public"."listedge_key_forms" TO "node"`},
		{"grants of a description", "migrate grants --role node --lists " + lists, exitFine,
			"GRANT USAGE ON SCHEMA \"public\", \"My shop\", \"shop\" TO \"node\";\n" +
				"GRANT SELECT ON \"My shop\".\"products\", \"shop\".\"moves\", \"public\".\"api_keys\""},
		{"an empty tenant", "workspaces create --name Shop --tenant=", exitUsage, "--tenant must be text of 1 to 255 bytes"},
		{"a long tenant", "workspaces create --name Shop --tenant " + strings.Repeat("t", 256), exitUsage, "--tenant must be text of 1 to 255 bytes"},
		{"a tenant", "workspaces create --name Shop --tenant 42", exitFailed, "check that --database-url names Postgres"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, strings.Fields(c.line)...)
			if said := p.out.String() + p.err.String(); p.code != c.code || !strings.Contains(said, c.want) {
				t.Errorf("exit %d: %s", p.code, said)
			}
		})
	}
}
