package list

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Condition says which rows are kept: those for which all its terms are true. As in SQL, a comparison with
// NULL is not. The zero Condition keeps all rows. It is immutable.
//
//	condition = term { "and" term }
//	term      = column | "not" column | column "is" [ "not" ] "null" | column operator ( column | literal )
//	operator  = "=" | "<>" | "<" | "<=" | ">" | ">="
//	literal   = "'" text "'" | integer | decimal | "true" | "false"
//	column    = its name as it is, or in double quotes
//
// Texts compare as bytes, numbers by their value, enums only with = and <>.
type Condition struct{ of []term }

// term is one comparison.
type term struct {
	operator string // one of SQL, or is, is not (NULL)
	left     operand
	right    operand
	kind     kind // what both mean: kindBool, kindText, kindEnum or kindNumeric
}

// operand is a column or a literal.
type operand struct {
	name    string // of the column; empty = it is a literal
	at      int    // the column's index
	column  Column
	literal []byte // its text, as Postgres prints it
	kind    kind   // its, or of the literal: kindBool, kindText or kindNumeric
}

// columns returns the names of the columns that the condition reads, each once.
func (c Condition) columns() (names []string) {
	for i := range c.of {
		for _, o := range [...]*operand{&c.of[i].left, &c.of[i].right} {
			if o.name != "" && !slices.Contains(names, o.name) {
				names = append(names, o.name)
			}
		}
	}
	return names
}

// bind returns the condition with its names found among the columns, which have them all. The error has every
// mistake, each on a line.
func (c Condition) bind(columns []Column) (Condition, error) {
	var mistakes []error
	of := slices.Clone(c.of)
	for i := range of {
		t := &of[i]
		for _, o := range [...]*operand{&t.left, &t.right} {
			if o.name != "" {
				o.at = slices.IndexFunc(columns, func(of Column) bool { return of.Name == o.name })
				o.column, o.kind = columns[o.at], columns[o.at].kind
			}
		}
		mistakes = append(mistakes, t.check())
	}
	return Condition{of}, errors.Join(mistakes...)
}

// class returns what a kind compares as; kindOther = it does not.
func class(k kind) kind {
	switch {
	case k >= kindText && k <= kindName:
		return kindText
	case k >= kindInt2 && k <= kindInt8, k == kindNumeric:
		return kindNumeric
	case k == kindBool, k == kindEnum:
		return k
	}
	return kindOther
}

// check sets the term's kind, or says why there is none.
func (t *term) check() error {
	left := &t.left.column
	if t.operator == "is" || t.operator == "is not" {
		return nil
	}
	t.kind = class(left.kind)
	if t.kind == kindOther {
		return fmt.Errorf("column %q is of type %s, which conditions do not compare; write is null or is not null, or compare another column", left.Name,
			left.Type.Name)
	}
	is, name := t.right.kind, t.right.kind.name()
	if t.right.name != "" {
		right := &t.right.column
		is, name = class(right.kind), fmt.Sprintf("column %q of type %s", right.Name, right.Type.Name)
		if t.kind == kindEnum && left.Type.Name != right.Type.Name {
			is = kindOther
		}
	}
	if t.kind == kindEnum && t.right.name == "" && is == kindText {
		is = kindEnum
		if !slices.Contains(left.Labels, string(t.right.literal)) {
			return fmt.Errorf("%q is no value of column %q, an enum; write one of '%s'", t.right.literal, left.Name, strings.Join(left.Labels, "', '"))
		}
	}
	if t.right.name == "" {
		t.right.literal = left.compared(t.right.literal) // Postgres compares 'a ' with char(n) as 'a'
	}
	switch {
	case is != t.kind:
		return fmt.Errorf("column %q is of type %s, and %s is not; write %s", left.Name, left.Type.Name, name, wanted(t.kind))
	case t.kind == kindEnum && t.operator != "=" && t.operator != "<>":
		return fmt.Errorf("column %q is an enum, and %s orders; write = or <>", left.Name, t.operator)
	}
	return nil
}

func (k kind) name() string {
	switch k {
	case kindBool:
		return "a truth value"
	case kindText:
		return "a text"
	}
	return "a number"
}

// wanted says what may stand on the right of a column of the kind.
func wanted(k kind) string {
	switch k {
	case kindBool:
		return "true, false or a boolean column"
	case kindText:
		return "a text in single quotes or a column of texts"
	case kindEnum:
		return "one of its values in single quotes or a column of the same enum"
	}
	return "a number without quotes or a column of integers or numerics"
}

// String returns the condition in SQL, in words that AND may join and a partial index may have. It is empty
// for the zero Condition.
func (c Condition) String() string {
	var terms []string
	for i := range c.of {
		t := &c.of[i]
		left := t.left.sql()
		switch {
		case t.operator == "is":
			left = Quote(t.left.name) + " IS NULL"
		case t.operator == "is not":
			left = Quote(t.left.name) + " IS NOT NULL"
		case t.right.is("t") && t.operator == "=":
		case t.right.is("f") && t.operator == "=":
			left = "NOT " + left
		default:
			left += " " + t.operator + " " + t.right.sql()
		}
		terms = append(terms, left)
	}
	return strings.Join(terms, " AND ")
}

// is reports whether the operand is the truth value.
func (o *operand) is(value string) bool {
	return o.name == "" && o.kind == kindBool && string(o.literal) == value
}

// sql returns the operand as it is compared.
func (o *operand) sql() string {
	switch {
	case o.kind == kindEnum: // Postgres compares no domains of one
		return Quote(o.name) + "::" + o.column.Type.Name
	case o.name != "":
		return o.column.sql()
	case o.kind == kindText:
		return "'" + strings.ReplaceAll(string(o.literal), "'", "''") + "'"
	case o.is("t"):
		return "true"
	case o.is("f"):
		return "false"
	}
	return string(o.literal)
}

// Holds reports whether a row with these values of the columns is kept; nil is NULL.
func (c Condition) Holds(values [][]byte) bool {
	for i := range c.of {
		if !c.of[i].holds(values) {
			return false
		}
	}
	return true
}

// decides is Holds where values may be unsent (nil = none is). known is false if one of them decides.
func (c Condition) decides(values [][]byte, unsent []bool) (holds, known bool) {
	if unsent == nil {
		return c.Holds(values), true
	}
	known = true
	for i := range c.of {
		t := &c.of[i]
		switch {
		case unsent[t.left.at], t.right.name != "" && unsent[t.right.at]:
			known = false
		case !t.holds(values):
			return false, true
		}
	}
	return known, known
}

// holds reports whether the term is true.
func (t *term) holds(values [][]byte) bool {
	left, right := values[t.left.at], t.right.literal
	switch t.operator {
	case "is":
		return left == nil
	case "is not":
		return left != nil
	}
	if t.right.name != "" {
		right = values[t.right.at]
	}
	if left == nil || right == nil {
		return false
	}
	by := 0
	switch t.kind {
	case kindNumeric:
		by = compareNumbers(left, right)
	case kindText:
		by = bytes.Compare(t.left.column.compared(left), t.right.column.compared(right))
	default: // f < t, and enums do not order
		by = bytes.Compare(left, right)
	}
	switch t.operator {
	case "=":
		return by == 0
	case "<>":
		return by != 0
	case "<":
		return by < 0
	case "<=":
		return by <= 0
	case ">":
		return by > 0
	}
	return by >= 0
}

// compareNumbers orders integers and numerics as Postgres does, and as an order by them would.
func compareNumbers(a, b []byte) int {
	var space, other [64]byte // most are shorter
	left, _ := appendNumericPlace(space[:0], a)
	right, _ := appendNumericPlace(other[:0], b)
	return bytes.Compare(left, right)
}

// Lives says whether a row with these values of Columns is shown. known is false if a value that decides it
// is unsent (nil = none is).
func (l *List) Lives(values [][]byte, unsent []bool) (live, known bool) {
	return l.Live.decides(values, unsent)
}
