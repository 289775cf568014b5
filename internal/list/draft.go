package list

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ParseName reads the name of a table as descriptions have it: schema.table, or the table of the schema public.
func ParseName(text string) (n Name, ok bool) {
	parts := tableName.FindStringSubmatch(text)
	if parts == nil {
		return Name{}, false
	}
	n = Name{"public", unquote(parts[3])}
	if parts[1] != "" {
		n.Schema = unquote(parts[2])
	}
	return n, true
}

// Draft writes a first description of tables, to be read and changed by people. It guesses from names and indexes what is
// tenant, key, live and orders, and says so in a comment.
func Draft(c *Catalogue) string {
	var b strings.Builder
	b.WriteString("# Made from the tables. Read every line with \"guessed\" in it, and leave out what clients shall not see.\nlists:\n")
	for i := range c.Relations {
		d := drafter{Builder: &b, relation: &c.Relations[i], used: map[string]bool{}}
		d.list()
	}
	return b.String()
}

// drafter writes one list of a first description.
type drafter struct {
	*strings.Builder
	relation *Relation
	used     map[string]bool // columns that are no fields
}

// The names by which a column is guessed, the likelier first.
var (
	tenantNames = strings.Fields("tenant_id tenant workspace_id account_id organization_id organisation_id org_id company_id shop_id " +
		"store_id team_id project_id site_id")
	deletedNames = strings.Fields("deleted_at removed_at archived_at")
	activeNames  = strings.Fields("active is_active enabled is_enabled")
	goneNames    = strings.Fields("deleted is_deleted removed archived is_archived")
	madeNames    = strings.Fields("created_at created inserted_at create_date created_on creation_date date_joined made_at added_at")
	tenantTables = strings.Fields("tenants tenant workspaces workspace accounts account organizations organization organisations " +
		"organisation orgs org companies company shops shop stores store teams team")
	titleNames  = strings.Fields("name title full_name display_name label company_name last_name email")
	foundNames  = strings.Fields("name title full_name display_name label company_name first_name last_name email mail phone tel sku code number description")
	secretNames = strings.Fields("password passwd secret token hash salt pin api_key")
)

func (d *drafter) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// is reports whether a column of the name is there and good for something.
func (d *drafter) is(name string, good func(c *RelationColumn, t *Type) bool) bool {
	for i := range d.relation.Columns {
		c := &d.relation.Columns[i]
		t := c.Type.resolved()
		if c.Name == name && !c.Generated && good(c, &t) {
			return true
		}
	}
	return false
}

// guess returns the first name of a column that is good for something; empty = there is none.
func (d *drafter) guess(names []string, good func(c *RelationColumn, t *Type) bool) string {
	i := slices.IndexFunc(names, func(name string) bool { return d.is(name, good) })
	if i < 0 {
		return ""
	}
	return names[i]
}

func (d *drafter) list() {
	n := d.relation.Name
	name := strings.TrimLeft(plain(n.Table, '-'), "-0123456789")
	if name == "" || name == "docs" || name == "none" {
		name = "list-" + name
	}
	d.line("  %s:", strings.TrimRight(name[:min(len(name), 32)], "-"))
	d.line("    table: %s", scalar(n.String()))
	tenant := d.tenant()
	key, why := d.key(tenant)
	d.line("    key: %s # %s", scalar(cmp.Or(key, "id")), why)
	d.live()
	d.fields()
	d.orders()
	d.search()
}

// tenant writes whose row it is: a column that has the name of a tenant, or references a table of tenants, best one that is never
// NULL. A column that names one row each is the key of tenants, and one that references another table something else. Without a
// tenant each workspace sees everything, so one that may be NULL is guessed, too.
func (d *drafter) tenant() (found string) {
	isTenant := func(_ *RelationColumn, t *Type) bool { return t.canBeKey() }
	names := slices.Clone(tenantNames)
	for i := range d.relation.Columns {
		names = append(names, d.relation.Columns[i].Name)
	}
	why := ""
	for i, name := range names {
		references, isReference := d.relation.References[name]
		says := ""
		unique := slices.ContainsFunc(d.relation.Unique, func(index []string) bool { return slices.Equal(index, []string{name}) })
		switch {
		case !d.is(name, isTenant) || unique:
		case slices.Contains(tenantTables, references.Table):
			says = "it references " + references.String()
		case i < len(tenantNames) && !isReference:
			says = "its name is that of a tenant"
		}
		neverNull := d.is(name, func(c *RelationColumn, _ *Type) bool { return c.NotNull })
		if says != "" && (found == "" || neverNull) {
			found, why = name, says+", and it is never NULL"
			if neverNull {
				break
			}
			why = says + "; a row where it is NULL is nobody's"
		}
	}
	if found == "" {
		d.line("    # tenant: no column seems to say whose row it is; WITHOUT A TENANT EVERY WORKSPACE SEES ALL ROWS")
		return ""
	}
	d.used[found] = true
	d.line("    tenant: %s # guessed: %s; without it every workspace sees all rows", scalar(found), why)
	return found
}

// key returns the column that is unique within the tenant, or alone, and never NULL, and how that is known.
func (d *drafter) key(tenant string) (key, why string) {
	isKey := func(c *RelationColumn, t *Type) bool { return c.NotNull && t.canBeKey() }
	indexes := slices.Clone(d.relation.Unique)
	slices.SortStableFunc(indexes, func(a, b []string) int { return len(a) - len(b) })
	for _, index := range indexes {
		rest := slices.DeleteFunc(slices.Clone(index), func(c string) bool { return c == tenant })
		within := len(rest) < len(index)
		whole := len(rest)
		rest = slices.DeleteFunc(rest, func(c string) bool { return whole > 1 && slices.Contains(d.relation.PartitionBy, c) })
		switch {
		case len(rest) != 1 || !d.is(rest[0], isKey):
			continue
		case len(rest) < whole:
			return rest[0], "guessed: a unique index has it with the columns of the partitions; `listedge lists check` names keys that are there twice"
		case within:
			return rest[0], "guessed: a unique index has it with the tenant, and it is never NULL"
		}
		return rest[0], "guessed: a unique index has it, and it is never NULL"
	}
	return "", "no unique index of one column that is never NULL says which it is: write it, and make the index"
}

func (d *drafter) live() {
	isInstant := func(_ *RelationColumn, t *Type) bool { return t.IsInstant() }
	isBool := func(_ *RelationColumn, t *Type) bool { return t.kind == kindBool }
	for _, guess := range []struct {
		names    []string
		good     func(*RelationColumn, *Type) bool
		nullable bool // as it must be
		format   string
	}{{deletedNames, isInstant, true, "%s is null"}, {activeNames, isBool, false, "%s"}, {goneNames, isBool, false, "not %s"}} {
		fits := func(c *RelationColumn, t *Type) bool { return c.NotNull != guess.nullable && guess.good(c, t) }
		column, doubtful := d.guess(guess.names, fits), d.guess(guess.names, guess.good)
		switch {
		case column != "":
			d.used[column] = true
			d.line("    live: "+guess.format+" # guessed from its name: the rows that clients see; without it all", column)
			return
		case doubtful != "" && !guess.nullable:
			d.line("    # live: "+guess.format+" # guessed, and left out: it would hide the rows where it is NULL", doubtful)
		}
	}
}

func (d *drafter) fields() {
	d.line("    fields:")
	names := map[string]bool{}
	for _, c := range d.relation.Columns {
		t := c.Type.resolved()
		name := d.fieldOf(c.Name)
		says := ""
		switch {
		case d.used[c.Name]:
			continue
		case c.Generated:
			says = "is generated, and not in the log of Postgres before 18"
		case t.unsupported() != "":
			says = "has the type " + t.Name + ": " + t.unsupported()
		case slices.ContainsFunc(secretNames, func(secret string) bool { return strings.Contains(strings.ToLower(c.Name), secret) }):
			says = "is left out: guessed to be a secret"
		case names[name] || !fieldName.MatchString(name):
			says = "has no name for JSON: give it one"
		}
		if says != "" {
			d.line("      # %s %s", c.Name, says)
			continue
		}
		names[name] = true
		if snake(name) == c.Name {
			d.line("      %s:", scalar(name))
		} else {
			d.line("      %s: {column: %s}", scalar(name), scalar(c.Name))
		}
	}
}

// fieldOf returns the name of a column's field: fooBar of foo_bar.
func (d *drafter) fieldOf(column string) string {
	var b strings.Builder
	for i, word := range strings.FieldsFunc(column, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') }) {
		first := strings.ToUpper(word[:1])
		if i == 0 {
			first = strings.ToLower(word[:1])
		}
		b.WriteString(first + word[1:])
	}
	return b.String()
}

func (d *drafter) orders() {
	isInstant := func(_ *RelationColumn, t *Type) bool { return t.IsInstant() }
	isText := func(_ *RelationColumn, t *Type) bool { return t.isText() }
	d.line("    orders:")
	found := false
	for _, guess := range []struct {
		names []string
		good  func(*RelationColumn, *Type) bool
		says  string
	}{{madeNames, isInstant, "descending: true"}, {titleNames, isText, "fold: true"}} {
		notNull := func(c *RelationColumn, t *Type) bool { return c.NotNull && guess.good(c, t) }
		column := d.guess(guess.names, notNull)
		nullable := d.guess(guess.names, guess.good)
		switch {
		case column != "":
			d.line("      %s: {by: %s, %s} # guessed from its name, and it is never NULL", d.fieldOf(column), column, guess.says)
			found = true
		case nullable != "":
			d.line("      # %s: {by: %s, %s} # guessed: the column may be NULL, and no order's may", d.fieldOf(nullable), nullable, guess.says)
		}
	}
	for i := range d.relation.Columns {
		c := &d.relation.Columns[i]
		t := c.Type.resolved()
		if !found && c.NotNull && t.canOrder() && !c.Generated && !d.used[c.Name] && parameterName.MatchString(d.fieldOf(c.Name)) {
			fold := ""
			if t.isText() { // an index holds no long text
				fold = ", fold: true"
			}
			d.line("      %s: {by: %s%s} # guessed: the first column that is never NULL and that an index can order", d.fieldOf(c.Name), scalar(c.Name), fold)
			found = true
		}
	}
	if !found {
		d.line("      # no column that is never NULL can order the rows: make one so, and write it")
	}
}

func (d *drafter) search() {
	isText := func(_ *RelationColumn, t *Type) bool { return t.isText() }
	var found []string
	for _, name := range foundNames {
		if d.is(name, isText) && len(found) < MaxSearch {
			found = append(found, d.fieldOf(name))
		}
	}
	if len(found) > 0 {
		d.line("    # search: [%s] # an index that writers pay for", strings.Join(found, ", "))
	}
}

// scalar returns a text as YAML has it.
func scalar(text string) string {
	plain := text != "" && strings.IndexFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '-')
	}) < 0
	if plain && !slices.Contains(strings.Fields("yes no on off true false null"), strings.ToLower(text)) && (text[0] > '9' || text[0] == '_') {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
