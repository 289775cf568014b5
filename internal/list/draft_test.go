package list_test

import (
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
)

// draft returns the first description of a table, without the line on top.
func draft(t *testing.T, r list.Relation) string {
	t.Helper()
	text := list.Draft(&list.Catalogue{Relations: []list.Relation{r}})
	_, text, _ = strings.Cut(text, "\n")
	return text
}

func TestAFirstDescription(t *testing.T) {
	r := relation()
	for old, name := range map[string]string{"org": "account_id", "gone": "is_active", "code": "api_token", "note": "1 note", "ratio": "usage_30"} {
		column(&r, old).Name = name
	}
	r.Unique = [][]string{{"account_id", "id"}}
	const want = `lists:
  things:
    table: shop.things
    tenant: account_id # guessed: its name is that of a tenant, and it is never NULL; without it every workspace sees all rows
    key: id # guessed: a unique index has it with the tenant, and it is never NULL
    live: is_active # guessed from its name: the rows that clients see; without it all
    fields:
      id:
      name:
      unitPrice:
      madeAt:
      size:
      mail:
      mood:
      # api_token is left out: guessed to be a secret
      # tags has the type integer[]: an array has no form in JSON here
      # span has the type interval: the type has no form in JSON here
      usage30: {column: usage_30}
      meta:
      # 1 note has no name for JSON: give it one
      day:
      # total is generated, and not in the log of Postgres before 18
    orders:
      madeAt: {by: made_at, descending: true} # guessed from its name, and it is never NULL
      name: {by: name, fold: true} # guessed from its name, and it is never NULL
    # search: [name, mail] # an index that writers pay for
`
	is := draft(t, r)
	if is != want {
		t.Errorf("%s", is)
	}
}

func TestWhatAFirstDescriptionGuesses(t *testing.T) {
	text := func(oid uint32, base string) list.Type { return list.Type{OID: oid, Base: base, Name: base, Mod: -1} }
	types := map[string]list.Type{"i": text(23, "int4"), "t": text(25, "text"), "b": text(16, "bool"), "z": text(1184, "timestamptz"), "u": text(2950, "uuid")}
	for name, test := range map[string]struct {
		columns string // name type; ? = may be NULL
		unique  string // the columns of each
		want    string // lines of the description, without its comments
	}{
		"a primary key":                 {"id i, name t", "id", "key: id; fields:; id:; name:; orders:; name: {by: name, fold: true}"},
		"a reference to tenants":        {"who i, id u, at z", "who id", "tenant: who; key: id; fields:; id:; at:; orders:; at: {by: at}"},
		"a key that comes first":        {"who i, id u, at z", "id who", "tenant: who; key: id; fields:; id:; at:; orders:; at: {by: at}"},
		"no key, of a part of another":  {"order_id i, id i, at z", "order_id id", "key: id; fields:; orderId:; id:; at:; orders:; orderId: {by: order_id}"},
		"a tenant by name":              {"id u, org_id i, at z", "id", "tenant: org_id; key: id; fields:; id:; at:; orders:; at: {by: at}"},
		"a tenant that may be NULL":     {"id u, org_id i?, at z", "id", "tenant: org_id; key: id; fields:; id:; at:; orders:; at: {by: at}"},
		"a tenant that is never NULL":   {"id u, org_id i?, shop_id i, at z", "id", "tenant: shop_id; key: id; fields:; id:; orgId:; at:; orders:; at: {by: at}"},
		"the tenants themselves":        {"org_id i, at z", "org_id", "key: org_id; fields:; orgId:; at:; orders:; orgId: {by: org_id}"},
		"an account that is none":       {"id u, account_id i, at z", "id", "key: id; fields:; id:; accountId:; at:; orders:; accountId: {by: account_id}"},
		"a text as an order":            {"id u, code t", "id", "key: id; fields:; id:; code:; orders:; code: {by: code, fold: true}"},
		"no order":                      {"id u, code t?", "id", "key: id; fields:; id:; code:; orders:"},
		"a tenant in the key":           {"id i, org_id i", "org_id id", "tenant: org_id; key: id; fields:; id:; orders:; id: {by: id}"},
		"a key that may be NULL":        {"id i?, uuid u, n i", "id|uuid", "key: uuid; fields:; id:; uuid:; n:; orders:; n: {by: n}"},
		"no key":                        {"a i", "", "key: id; fields:; a:; orders:; a: {by: a}"},
		"rows that are deleted":         {"id i, deleted_at z?", "id", "key: id; live: deleted_at is null; fields:; id:; orders:; id: {by: id}"},
		"an instant that is never NULL": {"id i, deleted_at z", "id", "key: id; fields:; id:; deletedAt:; orders:; id: {by: id}"},
		"rows that are gone":            {"id i, archived b", "id", "key: id; live: not archived; fields:; id:; orders:; id: {by: id}"},
		"rows of which it is not said":  {"id i, archived b?", "id", "key: id; fields:; id:; archived:; orders:; id: {by: id}"},
		"a nullable order":              {"id i, created_at z?, title t?", "id", "key: id; fields:; id:; createdAt:; title:; orders:; id: {by: id}"},
		"names of all sorts": {"id i, It's t, true t, Foo Bar t, ß t, foo_bar t", "id",
			"key: id; fields:; id:; itS: {column: 'It''s'}; 'true':; fooBar: {column: 'Foo Bar'}; orders:; id: {by: id}"},
	} {
		t.Run(name, func(t *testing.T) {
			r := list.Relation{Name: list.Name{Schema: "public", Table: "1 of My-Things"}, Kind: "r", Persistence: "p",
				References: map[string]list.Name{"who": {Schema: "app", Table: "companies"}, "account_id": {Schema: "app", Table: "ledger_accounts"}}}
			for c := range strings.SplitSeq(test.columns, ", ") {
				c, nullable := strings.CutSuffix(c, "?")
				i := strings.LastIndex(c, " ")
				r.Columns = append(r.Columns, list.RelationColumn{Name: c[:i], Type: types[c[i+1:]], NotNull: !nullable})
			}
			for columns := range strings.SplitSeq(test.unique, "|") {
				r.Unique = append(r.Unique, strings.Fields(columns))
			}
			var lines []string
			text := draft(t, r)
			for line := range strings.Lines(text) {
				line, _, _ = strings.Cut(line, "#")
				line = strings.TrimSpace(line)
				if line != "" {
					lines = append(lines, line)
				}
			}
			want := append([]string{"lists:", "of-my-things:", "table: 'public.1 of My-Things'"}, strings.Split(test.want, "; ")...)
			if !slices.Equal(lines, want) {
				t.Errorf("%q\nwant %q", lines, want)
			}
			d, err := list.Parse("things.yaml", []byte("lists:\n"+strings.TrimPrefix(text, "lists:\n")))
			if err == nil {
				_, err = d.Resolve(&list.Catalogue{Relations: []list.Relation{r}})
			}
			if (err != nil) != strings.HasPrefix(name, "no ") {
				t.Error(err)
			}
		})
	}
}
