// Package listtest has what tests of other packages need of lists: the two lists of the contract, with names for their
// orders and filters, and rows of them.
package listtest

import (
	"fmt"
	"slices"
	"time"

	"listedge/internal/list"
)

// The lists of the contract.
var (
	Items    = list.BuiltIn().ByName("items")
	Contacts = list.BuiltIn().ByName("contacts")
)

// The orders of both.
const (
	ByCreatedAt = iota // newest first
	ByName             // by the fold
)

// The values of filters, of Items and of Contacts.
const (
	Tracked uint64 = 1 << iota
	Low
	Goods
	Services

	Customers uint64 = 1 << 0
	Suppliers uint64 = 1 << 1
)

// ID returns the id of row n, as Postgres prints it. Ids sort as their numbers do.
func ID(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012x", n) }

// Key returns the key of the row with an id, in the lists of the contract.
func Key(id string) string {
	key, ok := Items.ParseKey([]byte(id))
	if !ok {
		panic("no id: " + id)
	}
	return key
}

// Instant returns when row n was made, as Postgres prints it: n seconds before 2026.
func Instant(n int) string {
	return time.Date(2026, 1, 1, 0, 0, -n, 0, time.UTC).Format("2006-01-02 15:04:05-07")
}

// Item returns row n of Items, with the values of columns: name, value, name, value … as Postgres prints them.
// In both orders it stands before row n+1. n may be negative.
func Item(n int, values ...string) list.Row { return numbered(Items, n, values) }

// Contact returns row n of Contacts: see Item.
func Contact(n int, values ...string) list.Row { return numbered(Contacts, n, values) }

func numbered(l *list.List, n int, values []string) list.Row {
	const middle = 500_000
	return Row(l, append([]string{"id", ID(max(n, 0)), "created_at", Instant(n), "name", fmt.Sprintf("Row %06d", middle+n)}, values...)...)
}

// Null is the value NULL of Row, and Unsent one that a change left as it was.
const (
	Null   = "\x00null"
	Unsent = "\x00unsent"
)

// Row returns a row of any list with the values of columns: name, value, name, value …; of two the last. The others are
// NULL, and where they may not be: 0, false, an empty text.
func Row(l *list.List, values ...string) list.Row {
	row, err := TryRow(l, values...)
	if err != nil {
		panic(fmt.Sprintf("%s %q: %s", l.Name, values, err))
	}
	return row
}

// TryRow is Row, with its error.
func TryRow(l *list.List, values ...string) (list.Row, error) {
	texts, unsent := textsOf(l, values)
	return l.Row(texts, unsent)
}

// Texts returns the values of a row, as Postgres sends those that a page shows; nil = NULL.
func Texts(l *list.List, values ...string) [][]byte {
	texts, _ := textsOf(l, values)
	return texts
}

func textsOf(l *list.List, values []string) (texts [][]byte, unsent []bool) {
	columns := l.Columns[:l.Selected]
	texts, unsent = make([][]byte, len(columns)), make([]bool, len(columns))
	for i, c := range columns {
		if c.NotNull {
			texts[i] = []byte(zero(c))
		}
	}
	for pair := range slices.Chunk(values, 2) {
		i := slices.IndexFunc(columns, func(c list.Column) bool { return c.Name == pair[0] })
		if i < 0 {
			panic(l.Name + " has no column " + pair[0])
		}
		texts[i], unsent[i] = []byte(pair[1]), pair[1] == Unsent
		if pair[1] == Null || pair[1] == Unsent {
			texts[i] = nil
		}
	}
	return texts, unsent
}

// zero returns a value of the column's type.
func zero(c list.Column) string {
	switch c.Base {
	case "uuid":
		return ID(0)
	case "bool":
		return "f"
	case "timestamptz":
		return Instant(0)
	case "timestamp":
		return "2026-01-01 00:00:00"
	case "date":
		return "2026-01-01"
	case "json", "jsonb":
		return "{}"
	case "int2", "int4", "int8", "float4", "float8", "numeric":
		return "0"
	}
	if len(c.Labels) > 0 {
		return c.Labels[0]
	}
	return ""
}
