package replica_test

import (
	"fmt"
	"strings"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// shapes are the lists that the model is run on: the contract's, and lists with other keys, tenants, orders and filters.
var shapes = map[string]shape{"items": ofItems, "products": ofProducts, "people": ofPeople, "events": ofEvents}

var (
	products = tableOf("products", "7", "account_id id", "id int8, account_id int4, title text, code text?, price_cents int4, on_hand int4, kind text, "+
		"deleted_at timestamptz?, inserted_at timestamptz")
	people = tableOf("people", "-1", "org_id id", "id text, org_id int4, full_name text, mail text?, tel text?, vat text?, is_vendor bool, created timestamptz")
	events = tableOf("events", "", "id", "id int8, at timestamptz, topic text, body jsonb")
)

var ofProducts = shape{products, keysOf(products, 0, 1, bitOf(products, "kind", "goods")), func(v modelValues) []string {
	return []string{"id", fmt.Sprint(v.row - 2), "inserted_at", listtest.Instant(-v.at), "title", v.name, "price_cents", fmt.Sprint(v.version),
		"code", v.note, "kind", map[bool]string{true: "goods", false: "service"}[v.marked]}
}, []string{"title"}, []string{"code"}}

// Keys of people have different lengths, and some begin with others.
var ofPeople = shape{people, keysOf(people, 1, 0, bitOf(people, "type", "vendor")), func(v modelValues) []string {
	return []string{"id", strings.Repeat("a", v.row), "created", listtest.Instant(-v.at), "full_name", v.name, "mail", fmt.Sprint(v.version),
		"tel", v.note, "is_vendor", fmt.Sprint(v.marked)[:1]}
}, []string{"full_name"}, []string{"tel"}}

// Events are everybody's, and ordered by texts as their bytes. A filter decides by the name, so that is always sent.
var ofEvents = shape{events, keysOf(events, 0, 1, 0), func(v modelValues) []string {
	return []string{"id", fmt.Sprint(v.row), "at", listtest.Instant(-v.at), "topic", v.name, "body", fmt.Sprintf(`{"version": %d, "note": %q}`, v.version, v.note)}
}, nil, nil}

// tableOf is the rows of a tenant in a shape of listtest, whose table has these columns, each a name and a type, which
// ends in ? if it may be NULL, and a unique index.
func tableOf(shape, tenant, unique, columns string) changefeed.Table {
	d := listtest.Description(listtest.ShapeOf(shape))
	r := list.Relation{Name: d.Tables()[0], Kind: "r", Persistence: "p", Unique: [][]string{strings.Fields(unique)}}
	for column := range strings.SplitSeq(columns, ", ") {
		name, base, _ := strings.Cut(column, " ")
		base, nullable := strings.CutSuffix(base, "?")
		r.Columns = append(r.Columns, list.RelationColumn{Name: name, NotNull: !nullable, Type: list.Type{Base: base, Name: base, Mod: -1}})
	}
	set, err := d.Resolve(&list.Catalogue{Relations: []list.Relation{r}})
	if err != nil {
		panic(err)
	}
	return changefeed.Table{List: set.Lists[0], Tenant: tenant}
}

// bitOf returns the bit of a value of a filter.
func bitOf(t changefeed.Table, filter, value string) uint64 {
	for _, f := range t.List.Filters {
		for _, v := range f.Values {
			if f.Name == filter && v.Name == value {
				return v.Bit
			}
		}
	}
	panic(filter + " " + value)
}
