// Package list says what a list is: which rows of which table of Postgres it has, of whom, in which
// orders, with which filters and what of them clients see. A list is a value. It is read from a
// description (a file, or the one that the program carries) and resolved against the catalogue of the
// database, and everything that is particular to a list is made from it: statements, what the follower
// reads from the log, parameters, scopes, cursors, metrics and documents.
//
//	description ──► Parse ──► Resolve(catalogue) ──► List ──► PageSQL, Indexes: what Postgres is asked
//	                                                   │
//	values as text ──► Row (key, places, text, filters) ◄┘
//
// The package imports nothing of ours, and has no I/O.
package list

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
)

// Bounds of a description.
const (
	MaxLists  = 64
	MaxFields = 100
	MaxOrders = 8
	MaxValues = 64 // of all filters of a list
	MaxSearch = 8
)

// Name names a table, as the catalogue does: without quotes.
type Name struct{ Schema, Table string }

// String returns the name for people, and as descriptions have it.
func (n Name) String() string { return dotless(n.Schema) + "." + dotless(n.Table) }

// dotless returns a name in quotes if a dot or quotes are in it.
func dotless(name string) string {
	if strings.ContainsAny(name, `."`) {
		return Quote(name)
	}
	return name
}

// SQL returns the name with quotes.
func (n Name) SQL() string { return Quote(n.Schema) + "." + Quote(n.Table) }

// Quoted returns identifiers of SQL with commas between them.
func Quoted(names ...string) string {
	var quoted []string
	for _, name := range names {
		quoted = append(quoted, Quote(name))
	}
	return strings.Join(quoted, ", ")
}

// Quote returns an identifier of SQL.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Digest identifies a value by its content.
type Digest [8]byte

// DigestOf returns the digest of a text.
func DigestOf(text []byte) Digest {
	sum := sha256.Sum256(text)
	return Digest(sum[:len(Digest{})])
}

func (d Digest) String() string { return base64.RawURLEncoding.EncodeToString(d[:]) }

// Set is the lists that a program serves: a description that has been resolved. It is immutable.
type Set struct {
	Title, About string
	Lists        []*List // by List.Number
	BuiltIn      bool    // these are the two lists of the contract, whose tables migrations make
}

// ByName returns the list of a name; nil = there is none.
func (s *Set) ByName(name string) *List {
	if i := slices.IndexFunc(s.Lists, func(l *List) bool { return l.Name == name }); i >= 0 {
		return s.Lists[i]
	}
	return nil
}

// Names returns the names of the lists.
func (s *Set) Names() (names []string) {
	for _, l := range s.Lists {
		names = append(names, l.Name)
	}
	return names
}

// Scopes returns the scopes of the lists.
func (s *Set) Scopes() (scopes []string) {
	for _, l := range s.Lists {
		scopes = append(scopes, l.Scope())
	}
	return scopes
}

// Tables returns the tables of the lists, each once, in the order of the lists.
func (s *Set) Tables() (tables []Name) {
	for _, l := range s.Lists {
		if !slices.Contains(tables, l.Table) {
			tables = append(tables, l.Table)
		}
	}
	return tables
}

// KeyTables are the tables that say who may read lists.
var KeyTables = []Name{{"public", "api_keys"}, {"public", "workspaces"}}

// List is one list. It is immutable, and compared by its pointer.
type List struct {
	Name         string // GET /v1/<Name>
	One          string // what one row is, such as item; for the API reference, as Title and About; may be empty
	Title, About string
	Number       int // its place in the Set
	Table        Name
	TableID      Digest // of the table's name
	Digest       Digest // of the resolved description, without titles and labels of enums; see also AppendScope

	// Columns are what is read of a row: first those of Fields, in their order, then those that only the
	// key, orders and filters need, and behind Selected those that only the log is asked for, since a
	// statement's condition decides about them: of the tenant and of Live.
	Columns  []Column
	Selected int
	Fields   []Field
	Key      int  // index in Columns
	Repeats  bool // no index keeps a partitioned table from having a key twice
	Tenant   int  // index in Columns; -1 = every workspace sees all rows
	Live     Condition
	Orders   []Order // the default first
	Filters  []Filter
	Search   []int // indexes in Fields
}

// Column is a column of the table.
type Column struct {
	Name string
	Type
	NotNull bool
}

// Field is what clients see of a row: a member of its JSON object.
type Field struct {
	Name     string
	Form     Form
	Nullable bool
	About    string
	Example  string   // as in the response, JSON; may be empty
	Enum     []string // all values that it has; nil = any
	Min, Max string   // bounds of a number, or of a text's length; empty = none is promised

	json string // what precedes its value: ,"name":
}

// Form is how a field's values are shown in JSON.
type Form uint8

// The forms.
const (
	String  Form = iota // JSON string
	Decimal             // JSON string, digits as stored
	Number              // JSON number, digits as stored
	Bool                // JSON bool
	Instant             // JSON string, UTC, with Z; three decimals, or six where the column is finer
	JSON                // as stored
	Forms               // their number
)

func (f Form) String() string {
	return [...]string{"string", "decimal", "number", "bool", "instant", "json"}[f]
}

// Order is an order of a list. Ties are ordered by key in the same direction.
type Order struct {
	Name       string // the value of the parameter sort
	About      string // for the API reference; may be empty
	Column     int
	Descending bool
	Fold       bool // by the first FoldKeyLength characters of the fold, else as the type orders; texts as bytes

	scope Digest // of what a position in the order depends on
}

// Filter is a parameter that keeps some rows of a list.
type Filter struct {
	Name   string
	About  string  // for the API reference; may be empty
	Values []Value // besides "all", which keeps all rows
}

// Value is a value of a filter.
type Value struct {
	Name string
	Bit  uint64 // in Row.Match and page.Query.Match
	Keep Condition
	Few  bool // it keeps few rows: they have an index of their own

	scope Digest // of its name and of Keep
}

// Scope returns the scope of keys that may read the list.
func (l *List) Scope() string { return l.Name + ":read" }

// AppendScope appends what a position belongs to: the list, an order and values of filters. It is the same in two
// descriptions of the list if these are, so that a cursor holds when fields, other orders or other filters change.
func (l *List) AppendScope(dst []byte, order int, match uint64) []byte {
	dst = append(dst, l.Orders[order].scope[:]...)
	for i := range l.Filters {
		for j := range l.Filters[i].Values {
			v := &l.Filters[i].Values[j]
			if match&v.Bit != 0 {
				dst = append(dst, v.scope[:]...)
			}
		}
	}
	return append(dst, 0)
}

// Identity returns the names of the columns that say which row it is: of the tenant, if there is one, and of the key.
func (l *List) Identity() (columns []string) {
	if l.Tenant >= 0 {
		columns = append(columns, l.Columns[l.Tenant].Name)
	}
	return append(columns, l.Columns[l.Key].Name)
}

// Owner returns whose rows a caller of the tenant sees: those of the tenant, or "" where every workspace
// sees all rows.
func (l *List) Owner(tenant string) string {
	if l.Tenant < 0 {
		return ""
	}
	return tenant
}

// Tracks reports whether clients may ask what has changed in the list: its default order is by an instant, newest
// first, and its rows show their keys.
func (l *List) Tracks() bool {
	o := &l.Orders[0]
	return l.Columns[o.Column].IsInstant() && o.Descending && l.Key < len(l.Fields)
}

// BuiltIn returns the two lists of the contract, resolved against the tables that the migrations make. It
// is always the same value.
func BuiltIn() *Set { return builtIn() }
