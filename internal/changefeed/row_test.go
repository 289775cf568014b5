package changefeed

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/uuid"
)

func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	for name, rows := range map[string]Rows{
		"any row":  nil,
		"no row":   {},
		"gone":     {{ID: id, Flags: RowGone}},
		"the same": {{ID: id, Flags: RowSame}},
		"two rows": {
			{ID: id, Flags: RowTracked | RowLow | RowGoods, CreatedAt: -1, NameKey: "\x01\x02"},
			{ID: uuid.Max, Flags: RowSupplier, CreatedAt: 1 << 60},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(Change{Rows: []Rows{rows}})
			if err != nil {
				t.Fatal(err)
			}
			var c Change
			if err := json.Unmarshal(text, &c); err != nil || !reflect.DeepEqual(c.RowsOf(0), rows) {
				t.Errorf("read %#v of %s (%v), want %#v", c.RowsOf(0), text, err, rows)
			}
			if c.RowsOf(1) != nil {
				t.Error("rows of a list that has none are not nil")
			}
		})
	}
}

func TestRowsThatCannotBeReadAreAnyRow(t *testing.T) {
	whole, err := Rows{{ID: uuid.Max, Flags: RowGoods, CreatedAt: 5, NameKey: "abc"}}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		rows := Rows{{ID: uuid.Max}}
		if err := rows.UnmarshalText(whole[:n]); err != nil {
			t.Fatal(err)
		}
		if len(rows) != 0 {
			t.Errorf("%d of %d characters are read as %v", n, len(whole), rows)
		}
	}
	var rows Rows
	if err := rows.UnmarshalText([]byte("AgAA")); err != nil || rows != nil {
		t.Errorf("another version is read as %v (%v)", rows, err)
	}
}
