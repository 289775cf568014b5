package follower

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"listedge/internal/lists"
)

// What Postgres may have in a numeric: a row is low, or not, or it cannot be decided.
func TestStockIsComparedExactly(t *testing.T) {
	long := strings.Repeat("9", 1000)
	for _, c := range []struct {
		stock, reorder string
		low, unknown   bool
	}{
		{"0", "-0", true, false}, {"0.10", "0.1", true, false}, {"0.11", "0.1", false, false}, {"-10", "-9.99", true, false}, {"9", "10", true, false}, {"1.5", "1.05", false, false},
		{long + ".1", long + ".2", true, false}, {long + ".2", long + ".1", false, false}, {"0." + strings.Repeat("0", 1000) + "1", "0", false, false},
		{"NaN", "1", false, true}, {"1", "Infinity", false, true}, {"-Infinity", "1", false, true}, {strings.Repeat("9", maxDecimal+1), "1", false, true},
	} {
		column := func(text string) *pglogrepl.TupleDataColumn {
			return &pglogrepl.TupleDataColumn{DataType: pglogrepl.TupleDataTypeText, Data: []byte(text)}
		}
		f := fields{columns: []*pglogrepl.TupleDataColumn{column(c.stock), column(c.reorder)}, at: map[string]int{"stock_on_hand": 0, "reorder_point": 1}}
		if low := f.holds(&lists.Condition{Column: "stock_on_hand", AtMost: "reorder_point"}); low != c.low || f.unknown != c.unknown {
			t.Errorf("%.20s and %.20s: low %t, unknown %t", c.stock, c.reorder, low, f.unknown)
		}
	}
}
