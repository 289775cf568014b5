// Package lists says what the lists of the API are: a description of each collection, from
// which statements, parameters, scopes, the publication and imports are made, the orders,
// and how texts compare: by their fold, which is the same in the database and in a node.
package lists

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Collection is a kind of rows: those of one list of the API, or those that say who may
// read lists.
type Collection uint8

// The collections. The log of changes names them by number, so a new one comes last.
const (
	Items Collection = iota
	Contacts
	Keys        // api_keys and workspaces, which no list shows
	Collections // their number
)

// All are the collections that have a list.
var All = []Collection{Items, Contacts}

// description is what differs between collections.
type description struct {
	name     string // of the table, also in paths
	columns  []Column
	orders   []Order  // the default first
	searched []string // the columns that a search compares
	filters  []Filter
}

var descriptions = resolved([Collections]description{
	Items: {
		name: "items",
		columns: []Column{
			{Field: "id", Name: "id", Kind: UUID},
			{Field: "name", Name: "name", Kind: Text},
			{Field: "type", Name: "type", Kind: Text},
			{Field: "sku", Name: "sku", Kind: Text, Nullable: true},
			{Field: "description", Name: "description", Kind: Text, Nullable: true},
			{Field: "unit", Name: "unit", Kind: Text, Nullable: true},
			{Field: "imagePath", Name: "image_path", Kind: Text, Nullable: true},
			{Field: "preferredContactId", Name: "preferred_contact_id", Kind: UUID, Nullable: true},
			{Field: "costPrice", Name: "cost_price", Kind: Decimal},
			{Field: "avgCost", Name: "avg_cost", Kind: Decimal},
			{Field: "sellingPrice", Name: "selling_price", Kind: Decimal},
			{Field: "taxable", Name: "taxable", Kind: Bool},
			{Field: "trackStock", Name: "track_stock", Kind: Bool},
			{Field: "stockOnHand", Name: "stock_on_hand", Kind: Decimal},
			{Field: "reorderPoint", Name: "reorder_point", Kind: Decimal, Nullable: true},
			{Field: "usage30", Name: "usage_30", Kind: Number},
			{Field: "createdAt", Name: "created_at", Kind: Instant},
			{Field: "active", Name: "active", Kind: Bool, Hidden: true},
		},
		orders:   []Order{ByCreatedAt, ByName},
		searched: []string{"name", "sku", "description"},
		filters: []Filter{
			{"stock", []Value{{"tracked", Tracked, []Condition{{Column: "track_stock"}}, ""},
				{"low", Low, []Condition{{Column: "track_stock"}, {Column: "stock_on_hand", AtMost: "reorder_point"}}, ActiveLow}}},
			{"type", []Value{{"goods", Goods, []Condition{{Column: "type", Is: "GOODS"}}, ""},
				{"services", Services, []Condition{{Column: "type", Is: "SERVICE"}}, activeFew}}},
		},
	},
	Contacts: {
		name: "contacts",
		columns: []Column{
			{Field: "id", Name: "id", Kind: UUID},
			{Field: "name", Name: "name", Kind: Text},
			{Field: "email", Name: "email", Kind: Text, Nullable: true},
			{Field: "phone", Name: "phone", Kind: Text, Nullable: true},
			{Field: "address", Name: "address", Kind: Text, Nullable: true},
			{Field: "tin", Name: "tin", Kind: Text, Nullable: true},
			{Field: "isCustomer", Name: "is_customer", Kind: Bool},
			{Field: "isSupplier", Name: "is_supplier", Kind: Bool},
			{Field: "createdAt", Name: "created_at", Kind: Instant},
			{Field: "active", Name: "active", Kind: Bool, Hidden: true},
		},
		orders:   []Order{ByCreatedAt, ByName},
		searched: []string{"name", "email", "phone", "tin"},
		filters: []Filter{{"type", []Value{{"customer", Customers, []Condition{{Column: "is_customer"}}, ""},
			{"supplier", Suppliers, []Condition{{Column: "is_supplier"}}, activeFew}}}},
	},
})

// resolved returns the descriptions with what is made from them: where conditions find their columns, and
// what precedes values in JSON.
func resolved(all [Collections]description) [Collections]description {
	for _, d := range all {
		place := func(name string) int {
			return slices.IndexFunc(d.columns, func(c Column) bool { return c.Name == name })
		}
		for i := range d.columns {
			d.columns[i].json = `,"` + d.columns[i].Field + `":`
		}
		for _, f := range d.filters {
			for _, v := range f.Values {
				for i := range v.Where {
					w := &v.Where[i]
					w.column, w.atMost = place(w.Column), place(w.AtMost)
				}
			}
		}
	}
	return all
}

// Flags are the values of filters that a row has, or that all rows of a list have.
type Flags uint8

// The flags of items, and of contacts. Cursors have them: their bits stay as they are.
const (
	Tracked Flags = 4 << iota
	Low           // tracked, has a reorder point, and is at or below it
	Goods
	Services
	Customers
	Suppliers
)

// Filter is a parameter that keeps some rows of a list.
type Filter struct {
	Parameter string
	Values    []Value // besides "all", which keeps all rows
}

// Value is a value of a filter: it keeps the rows for which all conditions hold.
type Value struct {
	Name  string
	Flag  Flags
	Where []Condition
	// active is the condition that a row is active, in the words of the index of the rows that the value
	// keeps. Empty = it keeps most rows, and has no index.
	active string
}

// The words in which indexes of few rows say that a row is active: the planner uses no index whose
// words a statement does not have. activeFew implies ActiveLow, and not the other way round.
const (
	ActiveLow = "active > false" // items_low_…, and the indexes of grams
	activeFew = "active >= true" // items_services_…, contacts_suppliers_…
)

// Condition compares a column: it is the text Is, at most the column AtMost, or else true.
// It does not hold for NULL. The partial indexes of the schema repeat conditions word by word.
type Condition struct {
	Column, Is, AtMost string
	column, atMost     int // their places among the columns; AtMost may have none
}

// holds says whether the condition holds, as Postgres decides it.
func (w *Condition) holds(values [][]byte) bool {
	switch v := values[w.column]; {
	case v == nil:
		return false
	case w.Is != "":
		return string(v) == w.Is
	case w.AtMost != "":
		a, ok := parseNumeric(v)
		b, set := parseNumeric(values[w.atMost])
		return ok && set && a.compare(&b) <= 0
	default:
		return len(v) == 1 && v[0] != 0
	}
}

// String returns the name of the table, which paths have, too.
func (c Collection) String() string { return descriptions[c].name }

// Scope returns the scope of keys that may read the list.
func (c Collection) Scope() string { return descriptions[c].name + ":read" }

// Columns returns the columns in the order of the API, the hidden one last.
func (c Collection) Columns() []Column { return descriptions[c].columns }

// Listed returns the columns that the API shows.
func (c Collection) Listed() []Column {
	return descriptions[c].columns[:len(descriptions[c].columns)-1]
}

// Orders returns the orders, the default first.
func (c Collection) Orders() []Order { return descriptions[c].orders }

// Searched returns the columns that a search compares.
func (c Collection) Searched() []string { return descriptions[c].searched }

func (c Collection) Filters() []Filter { return descriptions[c].filters }

// Where returns the conditions of the flags in SQL, each after AND.
func (c Collection) Where(flags Flags) (sql string) {
	for _, f := range c.Filters() {
		for _, v := range f.Values {
			for _, w := range v.Where {
				switch {
				case flags&v.Flag == 0:
				case w.Is != "":
					sql += " AND " + w.Column + " = '" + w.Is + "'"
				case w.AtMost != "":
					sql += " AND " + w.Column + " <= " + w.AtMost
				default:
					sql += " AND " + w.Column
				}
			}
		}
	}
	return sql
}

// Active returns the condition that a row is active, in the words of the index that has the
// list; of two filters with an index of few rows, of that of the first.
func (c Collection) Active(flags Flags) string {
	for _, f := range c.Filters() {
		for _, v := range f.Values {
			if flags&v.Flag != 0 && v.active != "" {
				return v.active
			}
		}
	}
	return "active"
}

// IsFilteredBy reports whether a filter compares the column.
func (c Collection) IsFilteredBy(column string) bool {
	for _, f := range c.Filters() {
		for _, v := range f.Values {
			if slices.ContainsFunc(v.Where, func(w Condition) bool { return w.Column == column || w.AtMost == column }) {
				return true
			}
		}
	}
	return false
}

// Errors of Row.
var (
	ErrMalformed = errors.New("a malformed row")
	ErrBounds    = errors.New("a number that is not finite, or an instant outside of the years 0001 to 9999")
)

// Row makes a row of the values of Listed(), as Postgres sends them in binary; nil is NULL.
// unsent has the bits of values that it has not sent, because a change left them as they were. Filters
// must not compare them, and the row is partial.
// Errors: ErrMalformed; ErrBounds: the row lacks only its text.
func (c Collection) Row(values [][]byte, unsent uint64) (r Row, err error) {
	const name = 1
	last, named := len(c.Listed())-1, unsent&(1<<name) == 0
	if len(values) != last+1 || len(values[0]) != len(r.ID) || values[name] == nil && named || len(values[last]) != 8 {
		return r, ErrMalformed
	}
	copy(r.ID[:], values[0])
	r.CreatedAt, r.Flags = instant(values[last]), c.flags(values)
	var space [1 << 10]byte // most rows are shorter
	key := space[:0]
	switch {
	case !named:
		r.State = PlaceUnknown
	case unsent != 0:
		r.State = TextUnknown
	}
	if named {
		key = appendNameKey(key, values[name])
	}
	texts, err := c.appendText(key, values, unsent)
	if err != nil && !errors.Is(err, ErrBounds) {
		return Row{}, err
	}
	r.texts, r.key = string(texts), uint16(len(key))
	if err != nil {
		r.ForgetText()
	}
	return r, err
}

// appendText appends the JSON object of a row, or a partial text if values are unsent.
func (c Collection) appendText(dst []byte, values [][]byte, unsent uint64) (_ []byte, err error) {
	from, columns := len(dst), c.Listed()
	for i := range columns {
		dst = append(dst, columns[i].json...)
		if unsent&(1<<i) != 0 {
			continue
		}
		if values[i] == nil {
			dst = append(dst, "null"...)
			continue
		}
		dst, err = appendValue(dst, columns[i].Kind, values[i])
		if err != nil {
			return dst, err
		}
	}
	if unsent == 0 {
		dst[from] = '{' // not a comma
	}
	return append(dst, '}'), nil
}

// flags returns the values of filters that a row has.
func (c Collection) flags(values [][]byte) (flags Flags) {
	for _, filter := range c.Filters() {
		for _, v := range filter.Values {
			if !slices.ContainsFunc(v.Where, func(w Condition) bool { return !w.holds(values) }) {
				flags |= v.Flag
			}
		}
	}
	return flags
}

// SearchText returns the folds of the searched columns of the row, with zero bytes in
// between, which neither a column nor a term contains.
func (c Collection) SearchText(r *Row) (text string, known bool) {
	var b strings.Builder
	for _, column := range c.Searched() { // the fields have the names of the columns
		_, rest, found := strings.Cut(r.Text(), `"`+column+`":`) // values have their quotes escaped, so this is in none
		var value string                                         // also of null
		if !found || json.NewDecoder(strings.NewReader(rest)).Decode(&value) != nil {
			return "", false
		}
		b.WriteString(Fold(value))
		b.WriteByte(0)
	}
	return b.String(), true
}

// Names returns the names of the lists.
func Names() (names []string) {
	for _, c := range All {
		names = append(names, c.String())
	}
	return names
}

// Tables returns the tables that nodes read and follow.
func Tables() []string { return append(Names(), "api_keys", "workspaces") }

// TablesSQL is Tables as a literal of SQL, of the type text[].
var TablesSQL = "'{" + strings.Join(Tables(), ",") + "}'::text[]"

// Of returns the collection of a table's rows: Keys for any table that is no list.
func Of(table string) Collection {
	for _, c := range All {
		if c.String() == table {
			return c
		}
	}
	return Keys
}

// Column is one field of a row.
type Column struct {
	Field    string // its name in the API
	Name     string // its name in the table
	Kind     Kind
	Nullable bool
	Hidden   bool   // read, and never shown
	json     string // what precedes its value in JSON
}

// Kind is a column's type. It decides the column's type in Postgres and the form of
// its values in JSON.
type Kind uint8

// The kinds, and their form in JSON.
const (
	Text    Kind = iota // JSON string
	UUID                // JSON string
	Decimal             // JSON string, digits as stored
	Number              // JSON number, digits as stored
	Bool                // JSON bool
	Instant             // JSON string, UTC, three decimals
)

// OID returns the OID of the kind's type in Postgres.
func (k Kind) OID() uint32 {
	return [...]uint32{Text: pgtype.TextOID, UUID: pgtype.UUIDOID, Decimal: pgtype.NumericOID,
		Number: pgtype.NumericOID, Bool: pgtype.BoolOID, Instant: pgtype.TimestamptzOID}[k]
}

// String returns the name of the kind's type in Postgres.
func (k Kind) String() string {
	return [...]string{Text: "text", UUID: "uuid", Decimal: "numeric", Number: "numeric", Bool: "bool", Instant: "timestamptz"}[k]
}

// Order is the order of a list. Ties are ordered by id in the same direction.
type Order uint8

const (
	ByCreatedAt Order = iota // newest first
	ByName                   // by NameKey
	Orders                   // their number
)

var orders = [Orders]struct {
	parameter string
	key       string // the expression that orders
	direction string
	compare   string // the operator: a row behind a position <compare> the position
	kind      Kind   // of the key
}{
	ByCreatedAt: {"createdAt", "created_at", " DESC", "<", Instant},
	ByName:      {"name", `name_key(name) COLLATE "C"`, "", ">", Text},
}

// String returns the value of the parameter sort.
func (o Order) String() string { return orders[o].parameter }

// Kind returns the kind of the key that precedes the id.
func (o Order) Kind() Kind { return orders[o].kind }

// SQL returns what follows ORDER BY.
func (o Order) SQL() string {
	return fmt.Sprintf("%s%[2]s, id%[2]s", orders[o].key, orders[o].direction)
}

// After returns the condition for the rows behind the position of a key and an id.
func (o Order) After(key, id string) string {
	return fmt.Sprintf("(%s, id) %s (%s::%s, %s::uuid)", orders[o].key, orders[o].compare, key, orders[o].kind, id)
}

// Parse reads a position in a list of the order: its key as Postgres takes it in binary,
// which is appended to dst, and its id. ok is false if no row can have the position.
func (o Order) Parse(dst []byte, p Position) (key []byte, id uuid.UUID, ok bool) {
	size := len(p) - len(id)
	if size < 1 {
		return nil, id, false
	}
	copy(id[:], p[size:])
	if o == ByName {
		name, end := string(p[:size-1]), p[size-1]
		return append(dst, name...), id, end == 0 && utf8.ValidString(name) && strings.IndexByte(name, 0) < 0 && utf8.RuneCountInString(name) <= NameKeyLength
	}
	if size != 8 {
		return nil, id, false
	}
	for i := range id {
		id[i] = ^id[i]
	}
	at := int64(^binary.BigEndian.Uint64([]byte(p[:size])) ^ 1<<63)
	return binary.BigEndian.AppendUint64(dst, uint64(at-PostgresEpoch)), id, at >= MinInstant && at < EndInstant
}
