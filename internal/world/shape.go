package world

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// Rows are how many rows a tenant may have.
const Rows = 6

// Shape is a list that a world is played on. Its rows have Values in some columns.
type Shape struct {
	List    *list.List
	Tenants []string     // one or two
	Queries []page.Query // of lists of the first tenant, without After and Limit
	columns func(v Values) []string
	name    []string // the column of the name, which an order and the search are by; nil = it is always sent
	note    []string // that of the note; nil = likewise
}

// Values are a version of a row.
type Values struct {
	Row     int
	At      int // the order by instants
	Name    string
	Version int // no other version of the world has it
	Note    string
	Marked  bool // a filter keeps the row
}

// Version is what a transaction leaves of a row. It is immutable, and no other is equal to it.
type Version struct {
	Values
	list.Row
	at   [list.MaxOrders]list.Position
	text string // that searches compare
}

func (s *Shape) version(v Values) *Version {
	made := &Version{Values: v, Row: s.row(v), text: list.Fold(v.Name)}
	for o := range s.List.Orders {
		made.at[o] = s.List.Position(&made.Row, o)
	}
	return made
}

// row makes a row. without are columns that a change left as they were.
func (s *Shape) row(v Values, without ...string) list.Row {
	columns := s.columns(v)
	for _, column := range without {
		columns = append(columns, column, listtest.Unsent)
	}
	return listtest.Row(s.List, columns...)
}

// described returns a version as the log has it.
func (s *Shape) described(v, before *Version, how says) list.Row {
	switch {
	case how == sayChanged && before != nil:
		var without []string
		if v.Note == before.Note {
			without = append(without, s.note...)
		}
		if v.Name == before.Name {
			without = append(without, s.name...)
		}
		return s.row(v.Values, without...)
	case how == sayNoText:
		row := v.Row
		row.ForgetText()
		return row
	case how == sayNoName:
		row := s.row(v.Values, s.name...)
		row.ForgetText()
		return row
	}
	return v.Row
}

// Number returns the number of the row that has a key.
func (s *Shape) Number(key string) int {
	for i := range Rows {
		row := s.row(Values{Row: i})
		if row.Key() == key {
			return i
		}
	}
	panic("no row has the key " + key)
}

// tenant returns the number of a tenant.
func (s *Shape) tenant(name string) int { return slices.Index(s.Tenants, name) }

// has reports whether a query's list has a version.
func has(q *page.Query, v *Version) bool {
	return v != nil && v.Match&q.Match == q.Match && (q.Search == "" || strings.Contains(v.text, list.Fold(q.Search)))
}

// In returns where a version stands in the query's order.
func (v *Version) In(q *page.Query) list.Position { return v.at[q.Order] }

// page returns the rows that a statement of the query returns of a state: those behind its position, at most limit.
func (s *Shape) page(q *page.Query, of *State, limit int) (rows []*Version, more bool) {
	for _, v := range of.Rows[s.tenant(q.Tenant)] {
		if has(q, v) && v.at[q.Order] > q.After {
			rows = append(rows, v)
		}
	}
	slices.SortFunc(rows, func(a, b *Version) int { return strings.Compare(string(a.at[q.Order]), string(b.at[q.Order])) })
	return rows[:min(limit, len(rows))], len(rows) > limit
}

// Shapes are lists with different keys, tenants, orders and filters.
var Shapes = []*Shape{ofItems(), ofProducts(), ofPeople(), ofEvents()}

// queriesOf names lists: by instants and by names, all rows and marked ones, and searches.
func queriesOf(l *list.List, tenant string, byInstant, byName int, marked uint64) (all []page.Query) {
	for _, q := range []page.Query{{Order: byInstant}, {Order: byName}, {Order: byInstant, Match: marked}, {Order: byName, Match: marked},
		{Order: byName, Search: "red"}, {Order: byInstant, Match: marked, Search: "Red"}} {
		q.List, q.Tenant = l, tenant
		all = append(all, q)
	}
	return all
}

func ofItems() *Shape {
	return &Shape{listtest.Items, []string{"1", "2"}, queriesOf(listtest.Items, "1", listtest.ByCreatedAt, listtest.ByName, listtest.Goods),
		func(v Values) []string {
			kind := "SERVICE"
			if v.Marked {
				kind = "GOODS"
			}
			return []string{"id", listtest.ID(v.Row), "created_at", listtest.Instant(-v.At), "name", v.Name, "sku", fmt.Sprint(v.Version),
				"description", v.Note, "type", kind}
		}, []string{"name"}, []string{"description"}}
}

func ofProducts() *Shape {
	l := listOf("products", "account_id id", "id int8, account_id int4, title text, code text?, price_cents int4, on_hand int4, kind text, "+
		"deleted_at timestamptz?, inserted_at timestamptz")
	return &Shape{l, []string{"7", "-8"}, queriesOf(l, "7", 0, 1, bitOf(l, "kind", "goods")), func(v Values) []string {
		return []string{"id", fmt.Sprint(v.Row - 2), "inserted_at", listtest.Instant(-v.At), "title", v.Name, "price_cents", fmt.Sprint(v.Version),
			"code", v.Note, "kind", map[bool]string{true: "goods", false: "service"}[v.Marked]}
	}, []string{"title"}, []string{"code"}}
}

// Keys of people have different lengths, and some begin with others.
func ofPeople() *Shape {
	l := listOf("people", "org_id id", "id text, org_id int4, full_name text, mail text?, tel text?, vat text?, is_vendor bool, created timestamptz")
	return &Shape{l, []string{"-1", "0"}, queriesOf(l, "-1", 1, 0, bitOf(l, "type", "vendor")), func(v Values) []string {
		return []string{"id", strings.Repeat("a", v.Row), "created", listtest.Instant(-v.At), "full_name", v.Name, "mail", fmt.Sprint(v.Version),
			"tel", v.Note, "is_vendor", fmt.Sprint(v.Marked)[:1]}
	}, []string{"full_name"}, []string{"tel"}}
}

// Events are everybody's, and ordered by texts as their bytes. A filter decides by the name, so that is always sent.
func ofEvents() *Shape {
	l := listOf("events", "id", "id int8, at timestamptz, topic text, body jsonb")
	return &Shape{l, []string{""}, queriesOf(l, "", 0, 1, 0), func(v Values) []string {
		return []string{"id", fmt.Sprint(v.Row), "at", listtest.Instant(-v.At), "topic", v.Name,
			"body", fmt.Sprintf(`{"version": %d, "note": %q}`, v.Version, v.Note)}
	}, nil, nil}
}

// listOf is a list in a shape of listtest, whose table has these columns, each a name and a type, which ends in ? if it
// may be NULL, and a unique index.
func listOf(shape, unique, columns string) *list.List {
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
	return set.Lists[0]
}

// bitOf returns the bit of a value of a filter.
func bitOf(l *list.List, filter, value string) uint64 {
	for _, f := range l.Filters {
		for _, v := range f.Values {
			if f.Name == filter && v.Name == value {
				return v.Bit
			}
		}
	}
	panic(filter + " " + value)
}

// Target is the target of a request for the query's page, as a client writes it.
func Target(q *page.Query) string {
	values := url.Values{"limit": {fmt.Sprint(q.Limit)}, "sort": {q.List.Orders[q.Order].Name}}
	for _, f := range q.List.Filters {
		for _, v := range f.Values {
			if q.Match&v.Bit != 0 {
				values.Set(f.Name, v.Name)
			}
		}
	}
	if q.Search != "" {
		values.Set("search", q.Search)
	}
	if q.After != "" {
		values.Set("cursor", string(q.AppendCursor(nil)))
	}
	return "/v1/" + q.List.Name + "?" + values.Encode()
}
