package load

import (
	"slices"

	"listedge/origin"
)

// row has a cell for each of the collection's columns.
type row []cell

// cell is the value of one column in a row.
type cell struct {
	given, null  bool // given: the row has the column
	text         string
	line, column int
}

// rowReader reads the rows of one format; io.EOF ends them. A row is valid until the next call.
type rowReader interface{ next() (row, error) }

// find returns the index of the column of that name in files, or the reason why it is not
// allowed.
func (r row) find(columns []origin.Column, name string) (i int, reason string) {
	i = slices.IndexFunc(columns, func(c origin.Column) bool { return c.Field == name })
	switch {
	case i < 0:
		reason = "there is no such column"
	case r[i].given:
		reason = "given twice"
	}
	return i, reason
}

// missing returns the name of a required column that is not given; empty = none.
func (r row) missing(columns []origin.Column) string {
	for i, c := range columns {
		if (c.Name == "id" || c.Name == "name") && !r[i].given {
			return c.Field
		}
	}
	return ""
}
