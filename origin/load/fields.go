package load

import (
	"math/bits"

	"listedge/origin"
)

// fields finds columns by their names in files. A set of columns is a bit mask, by
// the column's place in its collection.
type fields struct {
	columns []origin.Column
	byName  map[string]int
}

func newFields(c origin.Collection) *fields {
	f := &fields{columns: c.Columns(), byName: map[string]int{}}
	for i, column := range f.columns {
		f.byName[column.Field] = i
	}
	return f
}

// find returns the column of that name, or why there can be none here.
func (f *fields) find(name []byte, given uint32) (column int, reason string) {
	column, there := f.byName[string(name)]
	switch {
	case !there:
		return 0, "there is no such column"
	case given&(1<<column) != 0:
		return 0, "given twice"
	}
	return column, ""
}

// missing returns a required column that is not given; empty = there is none.
func (f *fields) missing(given uint32) string {
	for i, column := range f.columns {
		if (column.Name == "id" || column.Name == "name") && given&(1<<i) == 0 {
			return column.Field
		}
	}
	return ""
}

// columnsOf returns the columns of a set, in order.
func columnsOf(c origin.Collection, given uint32) (list []origin.Column) {
	for set := given; set != 0; set &= set - 1 {
		list = append(list, c.Columns()[bits.TrailingZeros32(set)])
	}
	return list
}
