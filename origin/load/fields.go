package load

import (
	"math/bits"
	"slices"

	"listedge/origin"
)

// A set of columns is a bit mask: bit i is the collection's column i.

// findColumn returns the index of the column of that name in files, or the reason why it
// is not allowed. given are the columns that the row has already.
func findColumn(columns []origin.Column, name []byte, given uint32) (i int, reason string) {
	i = slices.IndexFunc(columns, func(c origin.Column) bool { return c.Field == string(name) })
	switch {
	case i < 0:
		return 0, "there is no such column"
	case given&(1<<i) != 0:
		return 0, "given twice"
	}
	return i, ""
}

// missingColumn returns the name of a required column that is not in given; empty = none.
func missingColumn(columns []origin.Column, given uint32) string {
	for i, c := range columns {
		if (c.Name == "id" || c.Name == "name") && given&(1<<i) == 0 {
			return c.Field
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
