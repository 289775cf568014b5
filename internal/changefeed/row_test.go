package changefeed

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	for name, rows := range map[string][]Row{
		"any row":  nil,
		"gone":     {{ID: id, Flags: RowGone}},
		"the same": {{ID: id, Flags: RowSame}},
		"two rows": {
			{ID: id, Flags: lists.Tracked | lists.Low | lists.Goods, CreatedAt: -1, NameKey: "\x01\x02"},
			{ID: uuid.Max, Flags: lists.Suppliers, CreatedAt: 1 << 60},
		},
	} {
		t.Run(name, func(t *testing.T) {
			packed := PackRows(rows...)
			if is := slices.Collect(packed.All()); !reflect.DeepEqual(is, rows) || packed.Len() != len(rows) {
				t.Errorf("%d rows, %+v, want %+v", packed.Len(), is, rows)
			}
			want := []Rows{"", packed, PackRows(Row{ID: id, Flags: RowGone})}
			rows, ok := parseRows(string(appendRows(nil, want)))
			if !ok || !slices.Equal(rows, want) {
				t.Errorf("%q, want %q", rows, want)
			}
			is := Change{Rows: rows}
			if is.RowsOf(1) != packed || is.RowsOf(3) != "" {
				t.Error("a list has the rows of another one")
			}
		})
	}
}

// The key of a long name is cut, and marked as cut.
func TestKeysOfLongNamesAreCut(t *testing.T) {
	for length, cut := range map[int]bool{0: false, maxNameKey - 1: false, maxNameKey: true, maxNameKey + 1: true, 80: true} {
		key := strings.Repeat("x", length)
		for r := range PackRows(Row{NameKey: key}).All() {
			if r.NameKey != key[:min(length, maxNameKey)] || r.NameKeyIsCut() != cut {
				t.Errorf("%d bytes: %d, cut %t", length, len(r.NameKey), r.NameKeyIsCut())
			}
		}
	}
}

// Rows are read whole, or not at all.
func TestDamagedRows(t *testing.T) {
	rows := PackRows(Row{ID: uuid.Max, Flags: lists.Goods, CreatedAt: 5, NameKey: "abc"}, Row{Flags: RowGone})
	for n := range len(rows) {
		whole := n == 0 || n == len(rows)-rowSize
		if _, ok := parseRows(string(appendRows(nil, []Rows{rows[:n]}))); ok != whole {
			t.Errorf("%d of %d bytes of the rows: %t", n, len(rows), ok)
		}
	}
	text := string(appendRows(nil, []Rows{rows}))
	for n := 1; n < len(text); n++ {
		if is, ok := parseRows(text[:n]); ok {
			t.Errorf("%d of %d bytes are %q", n, len(text), is)
		}
	}
}
