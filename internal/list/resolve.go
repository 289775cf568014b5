package list

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Catalogue is what the database says of the tables of a description that are there.
type Catalogue struct{ Relations []Relation }

// Relation is a table, or what has a table's name.
type Relation struct {
	Name        Name
	Kind        string   // pg_class.relkind
	Persistence string   // pg_class.relpersistence
	Parent      string   // the table that it is a partition of, or inherits from; empty = none
	PartitionBy []string // the columns that say which partition a row is in, at any depth
	Columns     []RelationColumn
	References  map[string]Name // the tables that single columns reference
	Unique      [][]string      // the columns of its unique indexes that are valid, immediate, of plain columns and of all rows
}

// RelationColumn is a column of a relation.
type RelationColumn struct {
	Name               string
	Type               Type
	NotNull, Generated bool
}

// Resolve makes the lists of a description. The error is Mistakes.
func (d *Description) Resolve(c *Catalogue) (*Set, error) {
	m := &mistakes{file: d.file}
	set := &Set{Title: d.Title, About: d.About, BuiltIn: d == BuiltInDescription()}
	for i, l := range d.lists {
		r := resolver{mistakes: m, draft: l, list: &List{
			Name: l.text, One: l.one, Title: l.title, About: l.about, Number: i, Table: l.table, Tenant: -1}}
		at := slices.IndexFunc(c.Relations, func(r Relation) bool { return r.Name == l.table })
		if at < 0 {
			m.add(l.tableLine, "there is no table %s: write `table: schema.name`, with capitals as the database has them", l.table)
			continue
		}
		r.relation = &c.Relations[at]
		if r.hasRows() {
			r.resolve()
		}
		set.Lists = append(set.Lists, r.list)
	}
	err := m.err()
	if err != nil {
		return nil, err
	}
	return set, nil
}

// builtIn resolves the description of the program against the tables that its migrations make.
var builtIn = sync.OnceValue(func() *Set {
	set, err := BuiltInDescription().Resolve(builtInCatalogue())
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return set
})

func builtInCatalogue() *Catalogue {
	types := map[string]Type{
		"uuid":        {OID: 2950, Name: "uuid", Mod: -1},
		"text":        {OID: 25, Name: "text", Mod: -1},
		"numeric":     {OID: 1700, Name: "numeric", Mod: -1},
		"bool":        {OID: 16, Name: "boolean", Mod: -1},
		"timestamptz": {OID: 1184, Name: "timestamp with time zone", Mod: 3},
	}
	relation := func(table, columns string) Relation {
		r := Relation{Name: Name{"public", table}, Kind: "r", Persistence: "p", Unique: [][]string{{"workspace_id", "id"}}}
		for column := range strings.SplitSeq(columns, ", ") {
			name, base, _ := strings.Cut(column, " ")
			base, nullable := strings.CutSuffix(base, "?")
			t := types[base]
			t.Base = base
			r.Columns = append(r.Columns, RelationColumn{Name: name, Type: t, NotNull: !nullable})
		}
		return r
	}
	return &Catalogue{[]Relation{
		relation("items", "workspace_id uuid, id uuid, name text, type text, sku text?, description text?, unit text?, image_path text?, "+
			"preferred_contact_id uuid?, cost_price numeric, avg_cost numeric, selling_price numeric, taxable bool, track_stock bool, "+
			"stock_on_hand numeric, reorder_point numeric?, usage_30 numeric, active bool, created_at timestamptz"),
		relation("contacts", "workspace_id uuid, id uuid, name text, email text?, phone text?, address text?, tin text?, "+
			"is_customer bool, is_supplier bool, active bool, created_at timestamptz"),
	}}
}

// resolver makes one list.
type resolver struct {
	*mistakes
	draft    *draft
	relation *Relation
	list     *List
}

// hasRows reports whether changes of the relation's rows are in the log.
func (r *resolver) hasRows() bool {
	t, says := r.relation, ""
	switch {
	case t.Kind == "v", t.Kind == "m", t.Kind == "f":
		what := map[string]string{"v": "a view", "m": "a materialized view", "f": "a foreign table"}[t.Kind]
		says = what + ", and the log has none of its rows: write a table that triggers keep equal to it (docs/OWN_TABLES.md has the recipe)"
	case t.Kind != "r" && t.Kind != "p":
		says = "no table: write the name of a table"
	case t.Persistence == "u":
		says = "unlogged, and the log has none of its rows: ALTER TABLE " + t.Name.SQL() + " SET LOGGED"
	case t.Persistence == "t":
		says = "temporary: write the name of a table that stays"
	case t.Parent != "":
		says = "a part of the table " + t.Parent + ": write that"
	default:
		return true
	}
	r.add(r.draft.tableLine, "%s is %s", t.Name, says)
	return false
}

func (r *resolver) resolve() {
	r.fields()
	r.list.Key = r.place(r.draft.key, "the key")
	for _, o := range r.draft.orders {
		r.order(o)
	}
	for _, f := range r.draft.filters {
		for _, v := range f.values {
			r.places(v.keep, "the value "+v.text)
		}
	}
	r.list.Selected = len(r.list.Columns)
	if r.draft.tenant.text != "" {
		r.list.Tenant = r.place(r.draft.tenant, "the tenant")
	}
	r.places(r.draft.live, "live")
	r.list.Live = r.bind(r.draft.live, "live")
	r.filters()
	r.search()
	r.identity()
	r.list.TableID = DigestOf(fmt.Appendf(nil, "%q", r.list.Table))
	r.list.Digest = DigestOf(r.list.definition())
	r.scopes()
}

// place returns where in List.Columns the column is, which it adds if it is not there.
func (r *resolver) place(column word, what string) int {
	if column.text == "" {
		return -1
	}
	i := slices.IndexFunc(r.list.Columns, func(c Column) bool { return c.Name == column.text })
	if i >= 0 {
		return i
	}
	c, ok := r.column(column, what)
	if !ok {
		return -1
	}
	r.list.Columns = append(r.list.Columns, c)
	return len(r.list.Columns) - 1
}

// column returns the column of the relation, unless nodes cannot read it.
func (r *resolver) column(column word, what string) (Column, bool) {
	t := r.relation
	i := slices.IndexFunc(t.Columns, func(c RelationColumn) bool { return c.Name == column.text })
	if i < 0 {
		var names []string
		for _, c := range t.Columns {
			names = append(names, c.Name)
		}
		r.add(column.line, "there is no column %s in %s for %s: write one of %s", column.text, t.Name, what, strings.Join(names, ", "))
		return Column{}, false
	}
	c := t.Columns[i]
	if c.Generated {
		r.add(column.line, "the column %s of %s is generated, and the log of Postgres before 18 has no such column: leave it out, or have a trigger fill a plain one",
			c.Name, t.Name)
		return Column{}, false
	}
	return Column{c.Name, c.Type.resolved(), c.NotNull}, true
}

// places adds the columns that a condition reads.
func (r *resolver) places(c draftCondition, what string) {
	for _, name := range c.columns() {
		r.place(word{text: name, line: c.line}, what)
	}
}

// bind gives a condition the places of its columns.
func (r *resolver) bind(c draftCondition, what string) Condition {
	for _, name := range c.columns() {
		if !slices.ContainsFunc(r.list.Columns, func(c Column) bool { return c.Name == name }) {
			return c.Condition // a mistake already
		}
	}
	bound, err := c.bind(r.list.Columns)
	if err != nil {
		for says := range strings.SplitSeq(err.Error(), "\n") {
			r.add(c.line, "%s: %s", what, says)
		}
	}
	return bound
}

func (r *resolver) fields() {
	of := map[string]string{}
	for _, d := range r.draft.fields {
		c, ok := r.column(d.column, "the field "+d.text)
		if of[d.column.text] != "" {
			r.add(d.column.line, "the field %s has the column of the field %s: write each column once", d.text, of[d.column.text])
		}
		of[d.column.text] = d.text
		f := Field{Name: d.text, Nullable: !c.NotNull, About: d.about, Enum: c.Labels, json: `,"` + d.text + `":`}
		if ok {
			r.field(&f, d, c)
		}
		r.list.Fields, r.list.Columns = append(r.list.Fields, f), append(r.list.Columns, c)
	}
}

// field reads what a field says of its form and its values.
func (r *resolver) field(f *Field, d draftField, c Column) {
	says := c.unsupported()
	if says != "" {
		r.add(d.column.line, "the field %s has the column %s of the type %s: %s; leave it out, or have a trigger fill a column of text or jsonb",
			f.Name, c.Name, c.Type.Name, says)
		return
	}
	f.Form = c.defaultForm()
	var names []string
	for form := range Forms {
		if c.fits(form) {
			names = append(names, form.String())
		}
		if form.String() == d.as.text {
			f.Form = form
		}
	}
	if d.as.text != "" && !slices.Contains(names, d.as.text) {
		r.add(d.as.line, "the field %s cannot be %q, since its column has the type %s: write %s", f.Name, d.as.text, c.Type.Name, strings.Join(names, " or "))
		return
	}
	r.values(f, d, c)
}

// values reads what a field says of its values.
func (r *resolver) values(f *Field, d draftField, c Column) {
	counts := f.Form == Number || f.Form == Decimal
	switch {
	case d.enum == nil:
	case c.Labels != nil:
		r.add(d.enum[0].line, "the field %s has an enum, and so has its type %s: leave `enum` out", f.Name, c.Type.Name)
	case f.Form != String:
		r.add(d.enum[0].line, "the field %s has an enum and is no string: leave `enum` out", f.Name)
	}
	for _, w := range d.enum {
		f.Enum = append(f.Enum, w.text)
	}
	f.Min, f.Max = d.min.text, d.max.text
	for key, w := range map[string]word{"min": d.min, "max": d.max} {
		_, err := strconv.ParseUint(w.text, 10, 31)
		switch {
		case w.text == "" || counts:
		case f.Form != String:
			r.add(w.line, "the field %s has `%s` and is neither a number nor a string: leave it out", f.Name, key)
		case err != nil:
			r.add(w.line, "the field %s has `%s: %s`, which is no length: write a whole number", f.Name, key, w.text)
		}
	}
	if d.example != nil {
		says := ""
		f.Example, says = example(*d.example, f)
		if says != "" {
			r.add(d.example.line, "the example of the field %s %s", f.Name, says)
		}
	}
}

// example returns an example in JSON, or what is wrong with it.
func example(w word, f *Field) (text, says string) {
	switch {
	case w.null && f.Nullable:
		return "null", ""
	case w.null:
		return "", "is null, and the field never is: write a value"
	case f.Form == Bool && w.text != "true" && w.text != "false":
		return "", fmt.Sprintf("is %q: write true or false", w.text)
	case f.Form == Number && !jsonNumber.MatchString(w.text):
		return "", fmt.Sprintf("is %q: write a number in digits", w.text)
	case f.Form == JSON && !json.Valid([]byte(w.text)):
		return "", fmt.Sprintf("is %q: write JSON, in quotes", w.text)
	case f.Form == Bool, f.Form == Number, f.Form == JSON:
		return w.text, ""
	}
	quoted, _ := json.Marshal(w.text) // a text has no mistakes
	return string(quoted), ""
}

func (r *resolver) order(d draftOrder) {
	o := Order{Name: d.text, About: d.about, Descending: d.descending, Fold: d.fold}
	i := slices.IndexFunc(r.draft.fields, func(f draftField) bool { return f.text == d.by.text })
	if i >= 0 {
		o.Column = i
	} else {
		o.Column = r.place(d.by, "the order "+d.text)
	}
	if o.Column >= 0 && r.list.Columns[o.Column].Name != "" {
		c := r.list.Columns[o.Column]
		switch {
		case !c.canOrder():
			r.add(d.by.line, "the order %s is by %s, which has the type %s: order by an instant, an integer, a numeric or a text", d.text, c.Name, c.Type.Name)
		case d.fold && !c.isText():
			r.add(d.by.line, "the order %s folds %s, which has the type %s: leave `fold` out", d.text, c.Name, c.Type.Name)
		case !c.NotNull:
			r.add(d.by.line, "the order %s is by %s, which may be NULL: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL, or order by another column",
				d.text, c.Name, r.relation.Name.SQL(), Quote(c.Name))
		}
	}
	r.list.Orders = append(r.list.Orders, o)
}

func (r *resolver) filters() {
	bit := uint64(1)
	for _, d := range r.draft.filters {
		f := Filter{Name: d.text, About: d.about}
		for _, v := range d.values {
			f.Values = append(f.Values, Value{Name: v.text, Bit: bit, Keep: r.bind(v.keep, "the value "+v.text), Few: v.few})
			bit <<= 1
		}
		r.list.Filters = append(r.list.Filters, f)
	}
}

func (r *resolver) search() {
	for _, w := range r.draft.search {
		i := slices.IndexFunc(r.list.Fields, func(f Field) bool { return f.Name == w.text })
		switch {
		case i < 0:
			r.add(w.line, "there is no field %s to search: write names of fields", w.text)
		case r.list.Columns[i].Name != "" && !r.list.Columns[i].isText():
			r.add(w.line, "the field %s has the type %s, which no search compares: write fields of text", w.text, r.list.Columns[i].Type.Name)
		}
		r.list.Search = append(r.list.Search, i)
	}
}

// identity judges key and tenant: together, or the key alone, they name one row.
func (r *resolver) identity() {
	l, t := r.list, r.relation
	if l.Tenant >= 0 && !l.Columns[l.Tenant].canBeKey() {
		c := l.Columns[l.Tenant]
		r.add(r.draft.tenant.line, "the tenant %s has the type %s: write a column of type uuid, smallint, integer, bigint or text", c.Name, c.Type.Name)
	}
	if l.Key < 0 {
		return
	}
	key := l.Columns[l.Key]
	l.Repeats = !slices.ContainsFunc(t.Unique, func(index []string) bool { return r.names(index, nil) })
	switch {
	case !key.canBeKey():
		r.add(r.draft.key.line, "the key %s has the type %s: write a column of type uuid, smallint, integer, bigint, text or varchar", key.Name, key.Type.Name)
	case !key.NotNull:
		r.add(r.draft.key.line, "the key %s may be NULL: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", key.Name, t.Name.SQL(), Quote(key.Name))
	case !slices.ContainsFunc(t.Unique, func(index []string) bool { return r.names(index, t.PartitionBy) }):
		says := "the key " + key.Name
		if l.Tenant >= 0 {
			says += " within the tenant " + l.Columns[l.Tenant].Name
		}
		r.add(r.draft.key.line, "no index of %s says that %s is unique: CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s), of all rows and not deferrable",
			t.Name, says, t.Name.SQL(), Quoted(l.Identity()...))
	}
}

// names reports whether the columns of a unique index name a row of the list, besides others. In a partitioned table an index
// has the columns of the partitions, too: then keys are unique as far as the table can say.
func (r *resolver) names(index, besides []string) bool {
	identity := r.list.Identity()
	return slices.Contains(index, r.list.Columns[r.list.Key].Name) && !slices.ContainsFunc(index, func(column string) bool {
		return !slices.Contains(identity, column) && !slices.Contains(besides, column)
	})
}

// scopes makes what AppendScope appends.
func (r *resolver) scopes() {
	l := r.list
	for i := range l.Orders {
		o := &l.Orders[i]
		if l.Key < 0 || o.Column < 0 {
			return // a mistake already
		}
		key, by := l.Columns[l.Key], l.Columns[o.Column]
		o.scope = DigestOf(fmt.Appendf(nil, "%q %q %q %q %q %q %t %t", l.Name, l.Table, key.Name, key.Base, by.Name, by.Base, o.Descending, o.Fold))
	}
	for _, f := range l.Filters {
		for i := range f.Values {
			v := &f.Values[i]
			v.scope = DigestOf(fmt.Appendf(nil, "%q %q %q", f.Name, v.Name, v.Keep))
		}
	}
}

// definition is all that decides which rows the list has, where they stand and what they look like.
func (l *List) definition() []byte {
	b := fmt.Appendf(nil, "%q %q %d %d %d %q", l.Name, l.Table, l.Key, l.Tenant, l.Selected, l.Live)
	for _, c := range l.Columns {
		b = fmt.Appendf(b, "\ncolumn %q %q %d %t", c.Name, c.Type.Name, c.Mod, c.NotNull)
	}
	for _, f := range l.Fields {
		b = fmt.Appendf(b, "\nfield %q %s %t", f.Name, f.Form, f.Nullable)
	}
	for _, o := range l.Orders {
		b = fmt.Appendf(b, "\norder %q %d %t %t", o.Name, o.Column, o.Descending, o.Fold)
	}
	for _, f := range l.Filters {
		b = fmt.Appendf(b, "\nfilter %q", f.Name)
		for _, v := range f.Values {
			b = fmt.Appendf(b, " %q %q", v.Name, v.Keep)
		}
	}
	return fmt.Appendf(b, "\nsearch %d", l.Search)
}
