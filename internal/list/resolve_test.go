package list_test

import (
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
)

// relation is shop.things, with a column of every type.
func relation() list.Relation {
	r := list.Relation{Name: list.Name{Schema: "shop", Table: "things"}, Kind: "r", Persistence: "p", Unique: [][]string{{"id"}, {"org", "id"}}}
	oids := map[string]uint32{"bool": 16, "int8": 20, "int2": 21, "int4": 23, "text": 25, "json": 114, "float4": 700, "float8": 701, "_int4": 1007, "bpchar": 1042,
		"varchar": 1043, "date": 1082, "timestamp": 1114, "timestamptz": 1184, "interval": 1186,
		"numeric": 1700, "uuid": 2950, "jsonb": 3802, "citext": 16400, "mood": 16500}
	for column := range strings.SplitSeq("org int4, id uuid, gone bool, name text, unit_price numeric, made_at timestamptz, size int4, "+
		"mail citext?, mood mood, code bpchar, tags _int4?, span interval, ratio float8, meta jsonb?, note text?, day date, total numeric", ", ") {
		name, base, _ := strings.Cut(column, " ")
		base, nullable := strings.CutSuffix(base, "?")
		c := list.RelationColumn{Name: name, NotNull: !nullable, Generated: name == "total", Type: list.Type{OID: oids[base], Base: base, Name: base, Mod: -1}}
		if base == "mood" {
			c.Type.Labels = []string{"good", "bad"}
		}
		if base == "_int4" {
			c.Type.Name = "integer[]"
		}
		r.Columns = append(r.Columns, c)
	}
	return r
}

// resolve makes the lists of a description of shop.things, as it is after change.
func resolve(t testing.TB, text string, change func(*list.Relation)) (*list.Set, error) {
	t.Helper()
	d, err := list.Parse("things.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r := relation()
	if change != nil {
		change(&r)
	}
	return d.Resolve(&list.Catalogue{Relations: []list.Relation{r}})
}

func column(r *list.Relation, name string) *list.RelationColumn {
	return &r.Columns[slices.IndexFunc(r.Columns, func(c list.RelationColumn) bool { return c.Name == name })]
}

func TestWhatTheCatalogueRefuses(t *testing.T) {
	field := func(line string) string {
		return strings.Replace(things, "      id:\n", "      id:\n      "+line+"\n", 1)
	}
	replace := func(old, with string) string { return strings.Replace(things, old, with, 1) }
	const columns = "org, id, gone, name, unit_price, made_at, size, mail, mood, code, tags, span, ratio, meta, note, day, total"
	kind := func(k string) func(*list.Relation) { return func(r *list.Relation) { r.Kind = k } }
	for name, test := range map[string]struct {
		text   string
		change func(*list.Relation)
		want   string
	}{
		"nothing": {things, nil, ""},
		"no table": {things, func(r *list.Relation) { r.Name.Table = "Things" },
			"3: there is no table shop.things: write `table: schema.name`, with capitals as the database has them"},
		"a view": {things, kind("v"),
			"3: shop.things is a view, and the log has none of its rows: write a table that triggers keep equal to it (docs/OWN_TABLES.md has the recipe)"},
		"a materialized view": {things, kind("m"),
			"3: shop.things is a materialized view, and the log has none of its rows: write a table that triggers keep equal to it (docs/OWN_TABLES.md has the recipe)"},
		"a foreign table": {things, kind("f"),
			"3: shop.things is a foreign table, and the log has none of its rows: write a table that triggers keep equal to it (docs/OWN_TABLES.md has the recipe)"},
		"a sequence": {things, kind("S"),
			"3: shop.things is no table: write the name of a table"},
		"unlogged": {things, func(r *list.Relation) { r.Persistence = "u" },
			`3: shop.things is unlogged, and the log has none of its rows: ALTER TABLE "shop"."things" SET LOGGED`},
		"temporary": {things, func(r *list.Relation) { r.Persistence = "t" },
			"3: shop.things is temporary: write the name of a table that stays"},
		"a partition": {things, func(r *list.Relation) { r.Parent = "shop.all_things" },
			"3: shop.things is a part of the table shop.all_things: write that"},
		"a partitioned table": {things, kind("p"), ""},
		"no such column of a field": {field("unitCost:"), nil,
			"9: there is no column unit_cost in shop.things for the field unitCost: write one of " + columns},
		"no such column": {replace("unitPrice: {as: decimal}", "unitPrice: {column: price}"), nil,
			"10: there is no column price in shop.things for the field unitPrice: write one of " + columns},
		"no such key": {replace("key: id", "key: uuid"), nil,
			"5: there is no column uuid in shop.things for the key: write one of " + columns},
		"no such tenant": {replace("tenant: org", "tenant: owner"), nil,
			"4: there is no column owner in shop.things for the tenant: write one of " + columns},
		"no such column of an order": {replace("{fold: true}", "{by: title}"), nil,
			"14: there is no column title in shop.things for the order name: write one of " + columns},
		"no such column of live": {replace("not gone", "not lost and size > weight"), nil,
			"6: there is no column lost in shop.things for live: write one of " + columns + "\n" +
				"6: there is no column weight in shop.things for live: write one of " + columns},
		"no such column of a value": {replace("size > 3", "weight > 3"), nil,
			"16: there is no column weight in shop.things for the value big: write one of " + columns},
		"no such field to search": {replace("[name]", "[title]"), nil,
			"17: there is no field title to search: write names of fields"},
		"a generated column": {field("total:"), nil,
			"9: the column total of shop.things is generated, and the log of Postgres before 18 has no such column: leave it out, or have a trigger fill a plain one"},
		"a generated column of live": {replace("not gone", "total > 0"), nil,
			"6: the column total of shop.things is generated, and the log of Postgres before 18 has no such column: leave it out, or have a trigger fill a plain one"},
		"a column twice": {field("title: {column: name}"), nil,
			"10: the field name has the column of the field title: write each column once"},
		"an array": {field("tags:"), nil,
			"9: the field tags has the column tags of the type integer[]: an array has no form in JSON here; " +
				"leave it out, or have a trigger fill a column of text or jsonb"},
		"an interval": {field("span:"), nil,
			"9: the field span has the column span of the type interval: the type has no form in JSON here; " +
				"leave it out, or have a trigger fill a column of text or jsonb"},
		"a form that does not fit": {replace("as: decimal", "as: instant"), nil,
			`10: the field unitPrice cannot be "instant", since its column has the type numeric: write decimal or number`},
		"a form that is none": {field("note: {as: text}"), nil,
			`9: the field note cannot be "text", since its column has the type text: write string`},
		"an enum of an enum": {field("mood: {enum: [good]}"), nil,
			"9: the field mood has an enum, and so has its type mood: leave `enum` out"},
		"an enum of numbers": {field("size: {enum: [\"1\", \"2\"]}"), nil,
			"9: the field size has an enum and is no string: leave `enum` out"},
		"a bound of a truth value": {field("gone: {min: 0}"), nil,
			"9: the field gone has `min` and is neither a number nor a string: leave it out"},
		"a length that is none": {replace("min: 1", "min: 1.5"), nil,
			"9: the field name has `min: 1.5`, which is no length: write a whole number"},
		"an example that is no number": {field("size: {example: two}"), nil,
			`9: the example of the field size is "two": write a number in digits`},
		"an example that is no bool": {field("gone: {example: 1}"), nil,
			`9: the example of the field gone is "1": write true or false`},
		"an example that is no JSON": {field("meta: {example: \"{a}\"}"), nil,
			`9: the example of the field meta is "{a}": write JSON, in quotes`},
		"an example that is null": {field("code: {example: null}"), nil,
			"9: the example of the field code is null, and the field never is: write a value"},
		"a key that may be NULL": {things, func(r *list.Relation) { column(r, "id").NotNull = false },
			`5: the key id may be NULL: ALTER TABLE "shop"."things" ALTER COLUMN "id" SET NOT NULL`},
		"a key of a bad type": {replace("key: id", "key: mail"), nil,
			"5: the key mail has the type citext: write a column of type uuid, smallint, integer, bigint, text or varchar"},
		"a tenant of a bad type": {replace("tenant: org", "tenant: day"), nil,
			"4: the tenant day has the type date: write a column of type uuid, smallint, integer, bigint or text"},
		"a key that is not unique": {things, func(r *list.Relation) { r.Unique = [][]string{{"id", "name"}, {"org"}} },
			`5: no index of shop.things says that the key id within the tenant org is unique: ` +
				`CREATE UNIQUE INDEX CONCURRENTLY ON "shop"."things" ("org", "id"), of all rows and not deferrable`},
		"without tenant, a key that is not unique": {replace("    tenant: org\n", ""), func(r *list.Relation) { r.Unique = r.Unique[1:] },
			`4: no index of shop.things says that the key id is unique: CREATE UNIQUE INDEX CONCURRENTLY ON "shop"."things" ("id"), of all rows and not deferrable`},
		"a key of tenants": {things, func(r *list.Relation) { r.Unique = r.Unique[1:] }, ""},
		"a key and another column": {things, func(r *list.Relation) { r.Unique = [][]string{{"id", "made_at"}} },
			`5: no index of shop.things says that the key id within the tenant org is unique: ` +
				`CREATE UNIQUE INDEX CONCURRENTLY ON "shop"."things" ("org", "id"), of all rows and not deferrable`},
		"a key and its partition": {things, func(r *list.Relation) {
			r.Kind, r.Unique, r.PartitionBy = "p", [][]string{{"id", "made_at"}}, []string{"made_at"}
		}, ""},
		"an order that may be NULL": {things, func(r *list.Relation) { column(r, "name").NotNull = false },
			`14: the order name is by name, which may be NULL: ALTER TABLE "shop"."things" ALTER COLUMN "name" SET NOT NULL, or order by another column`},
		"an order of a bad type": {replace("{fold: true}", "{by: gone}"), nil,
			"14: the order name is by gone, which has the type bool: order by an instant, an integer, a numeric or a text"},
		"an order by an enum": {replace("{fold: true}", "{by: mood}"), nil,
			"14: the order name is by mood, which has the type mood: order by an instant, an integer, a numeric or a text"},
		"a fold of no text": {replace("{descending: true}", "{fold: true}"), nil,
			"13: the order madeAt folds made_at, which has the type timestamptz: leave `fold` out"},
		"a search of no text": {replace("[name]", "[madeAt]"), nil,
			"17: the field madeAt has the type timestamptz, which no search compares: write fields of text"},
		"a condition of types": {replace("size > 3", "size > '3'"), nil,
			`16: the value big: column "size" is of type int4, and a text is not; write a number without quotes or a column of integers or numerics`},
		"a label that is none": {replace("size > 3", "mood = 'fine'"), nil,
			`16: the value big: "fine" is no value of column "mood", an enum; write one of 'good', 'bad'`},
		"all at once": {strings.NewReplacer("as: decimal", "as: number, column: price", "key: id", "key: ratio", "not gone", "size", "{fold: true}", "{by: note}",
			"[name]", "[size]").Replace(things), nil,
			"5: the key ratio has the type float8: write a column of type uuid, smallint, integer, bigint, text or varchar\n" +
				"6: live: column \"size\" is of type int4, and a truth value is not; write a number without quotes or a column of integers or numerics\n" +
				"10: there is no column price in shop.things for the field unitPrice: write one of " + columns + "\n" +
				"14: the order name is by note, which may be NULL: ALTER TABLE \"shop\".\"things\" ALTER COLUMN \"note\" SET NOT NULL, or order by another column\n" +
				"17: there is no field size to search: write names of fields"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := resolve(t, test.text, test.change)
			if (set == nil) != (err != nil) {
				t.Errorf("%v, %v", set, err)
			}
			expectMistakes(t, err, test.want)
		})
	}
}

// digests returns the digest of things after a change of its description and its table.
func digests(t *testing.T, text string, change func(*list.Relation)) (d, table list.Digest) {
	t.Helper()
	set, err := resolve(t, text, change)
	if err != nil {
		t.Fatal(err)
	}
	return set.Lists[0].Digest, set.Lists[0].TableID
}

func TestTheDigestIsOfAllThatDecides(t *testing.T) {
	was, table := digests(t, things, nil)
	replaced := func(pairs ...string) string {
		text := strings.NewReplacer(pairs...).Replace(things)
		if text == things {
			panic(pairs)
		}
		return text
	}
	for name, test := range map[string]struct {
		text   string
		change func(*list.Relation)
		same   bool
	}{
		"nothing":           {things, nil, true},
		"a title":           {"title: Shop\nabout: All.\n" + replaced("    table", "    title: Things\n    row: thing\n    about: Some.\n    table"), nil, true},
		"texts of a field":  {replaced("{min: 1}", "{min: 2, max: 9, enum: [a], about: A name., example: a}"), nil, true},
		"texts of an order": {replaced("{fold: true}", "{fold: true, about: By name.}"), nil, true},
		"few rows":          {replaced(", few: true", ""), nil, true},
		"an unused column":  {things, func(r *list.Relation) { column(r, "note").NotNull = true }, true},
		"labels":            {things, func(r *list.Relation) { column(r, "mood").Type.Labels = []string{"fine"} }, true},
		"spaces":            {replaced("not gone", "NOT  \"gone\""), nil, true},
		"name":              {replaced("  things:\n", "  all-things:\n"), nil, false},
		"no tenant":         {replaced("    tenant: org\n", ""), nil, false},
		"tenant":            {replaced("tenant: org", "tenant: size"), func(r *list.Relation) { r.Unique[1] = []string{"id"} }, false},
		"key": {replaced("key: id", "key: code"), func(r *list.Relation) {
			column(r,
				"code").Type.Base = "text"
			r.Unique[0] = []string{"code"}
		}, false},
		"live":              {replaced("not gone", "gone"), nil, false},
		"no live":           {replaced("    live: not gone\n", ""), nil, false},
		"a field":           {replaced("      madeAt:\n    orders", "      madeAt:\n      note:\n    orders"), nil, false},
		"name of a field":   {replaced("unitPrice: {", "price: {column: unit_price, "), nil, false},
		"order of fields":   {replaced("      id:\n      name: {min: 1}\n", "      name: {min: 1}\n      id:\n"), nil, false},
		"form":              {replaced("as: decimal", "as: number"), nil, false},
		"column of a field": {replaced("unitPrice: {", "unitPrice: {column: size, "), nil, false},
		"name of an order":  {replaced("name: {fold", "title: {by: name, fold"), nil, false},
		"an order":          {replaced("{fold: true}", "{fold: true}\n      size:"), nil, false},
		"the default order": {replaced("{fold: true}", "{fold: true}\n      madeAt: {descending: true}", "      madeAt: {descending: true}\n      name",
			"      name"), nil, false},
		"direction":            {replaced("descending: true", "descending: false"), nil, false},
		"fold":                 {replaced("fold: true", "fold: false"), nil, false},
		"name of a filter":     {replaced("kind:", "type:"), nil, false},
		"name of a value":      {replaced("big:", "large:"), nil, false},
		"a value":              {replaced("big: size > 3, ", ""), nil, false},
		"condition":            {replaced("size > 3", "size > 4"), nil, false},
		"no search":            {replaced("    search: [name]\n", ""), nil, false},
		"search":               {replaced("[name]", "[note]", "      madeAt:\n    orders", "      madeAt:\n      note:\n    orders"), nil, false},
		"type of a column":     {things, func(r *list.Relation) { column(r, "size").Type = column(r, "unit_price").Type }, false},
		"decimals of instants": {things, func(r *list.Relation) { column(r, "made_at").Type.Mod = 3 }, false},
		"a column may be NULL": {things, func(r *list.Relation) { column(r, "unit_price").NotNull = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			is, also := digests(t, test.text, test.change)
			if (is == was) != test.same || also != table {
				t.Errorf("%s of table %s, was %s of %s", is, also, was, table)
			}
		})
	}
}

func TestListsOfOneTableHaveItsID(t *testing.T) {
	one, id := digests(t, things, nil)
	d, err := list.Parse("things.yaml", []byte(strings.Replace(things, "shop.things", "other", 1)))
	if err != nil {
		t.Fatal(err)
	}
	r := relation()
	r.Name = list.Name{Schema: "public", Table: "other"}
	set, err := d.Resolve(&list.Catalogue{Relations: []list.Relation{relation(), r}})
	if err != nil {
		t.Fatal(err)
	}
	l := set.Lists[0]
	if l.Digest == one || l.TableID == id || l.TableID == (list.Digest{}) {
		t.Errorf("%s of table %s, and %s of %s", l.Digest, l.TableID, one, id)
	}
}

func TestNamesOfTables(t *testing.T) {
	for written, want := range map[string]list.Name{
		"":                       {Schema: "public", Table: "all_things"},
		"things":                 {Schema: "public", Table: "things"},
		"shop.things":            {Schema: "shop", Table: "things"},
		"My Shop.Things":         {Schema: "My Shop", Table: "Things"},
		`"a.b"."c""d"`:           {Schema: "a.b", Table: `c"d`},
		`shop."Order.Lines"`:     {Schema: "shop", Table: "Order.Lines"},
		`"things.of.the public"`: {Schema: "public", Table: "things.of.the public"},
	} {
		t.Run(written, func(t *testing.T) {
			text := "lists: {all-things: {key: id, fields: {id: }, orders: {id: }}}"
			if written != "" {
				text = "lists: {all-things: {table: '" + written + "', key: id, fields: {id: }, orders: {id: }}}"
			}
			d, err := list.Parse("things.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			is := d.Tables()
			if len(is) != 1 || is[0] != want {
				t.Errorf("%q, want %q", is, want)
			}
		})
	}
}

func TestFieldsHaveTheirColumns(t *testing.T) {
	for field, want := range map[string]string{"unitPrice": "unit_price", "usage30": "usage30", "isX": "is_x", "ID": "i_d", "_x": "_x", "Name": "name"} {
		t.Run(field, func(t *testing.T) {
			_, err := resolve(t, strings.Replace(things, "      unitPrice: {as: decimal}\n", "      "+field+": {as: number}\n", 1), func(r *list.Relation) {
				for i := range r.Columns {
					r.Columns[i].Type = list.Type{OID: 23, Base: "int4", Name: "integer", Mod: -1}
				}
				column(r, "unit_price").Name = want
			})
			for _, m := range mistakesOf(t, err) {
				if strings.Contains(m, "there is no column") {
					t.Error(m)
				}
			}
		})
	}
}

// What the built-in lists are, the contract says; here is what other programs have made of them.
func TestTheBuiltInListsStayWhatTheyAre(t *testing.T) {
	set := list.BuiltIn()
	if set != list.BuiltIn() || !set.BuiltIn {
		t.Error("there are several")
	}
	is := strings.Join(set.Names(), " ")
	if is != "items contacts" || set.ByName("contacts").Number != 1 || set.ByName("none") != nil {
		t.Error(is)
	}
	for _, l := range set.Lists {
		if l.Scope() != l.Name+":read" || l.Owner("x") != "x" {
			t.Error(l.Scope())
		}
	}
}
