package load

import (
	"fmt"
	"strconv"
	"strings"
)

// RowError says where a file cannot be imported, and why.
type RowError struct {
	File   string
	Line   int    // from 1
	Column int    // in bytes, from 1, as compilers count
	Field  string // empty when the place is not a field
	Reason string
}

func (e *RowError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Reason)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Field, e.Reason)
}

// quote returns a value in quotes, for a reason. It cuts a long value.
func quote(text string) string {
	const shown = 60
	if len(text) > shown {
		return strconv.Quote(strings.ToValidUTF8(text[:shown], "")) + "…"
	}
	return strconv.Quote(text)
}

// printable returns a name from a file for a message: as it is, or quoted if it is long
// or has characters that must be escaped.
func printable(name string) string {
	if quoted := quote(name); name == "" || quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
