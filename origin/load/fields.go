package load

import (
	"math/bits"

	"listedge/origin"
)

// fields finds columns by their names in files. A set of columns is a bit mask: bit i
// is the collection's column i.
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

// find returns the index of the column of that name, or the reason why it is not
// allowed. given are the columns that the row has already.
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

// missing returns the name of a required column that is not in given; empty = none.
func (f *fields) missing(given uint32) string {
	for i, column := range f.columns {
		if (column.Name == "id" || column.Name == "name") && given&(1<<i) == 0 {
			return column.Field
		}
	}
	return ""
}

// columnsOf returns the columns of a set, in the collection's order.
func columnsOf(c origin.Collection, given uint32) (list []origin.Column) {
	for set := given; set != 0; set &= set - 1 {
		list = append(list, c.Columns()[bits.TrailingZeros32(set)])
	}
	return list
}
