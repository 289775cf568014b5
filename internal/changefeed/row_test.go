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

// A node of the version before reads a change that names rows as one that does not.
func TestRowsAreIgnoredByTheVersionBefore(t *testing.T) {
	type before struct {
		XID         uint64 `json:"x"`
		LSN         uint64 `json:"l"`
		CommittedAt int64  `json:"a,omitempty"`
		Lists       []List `json:"p,omitempty"`
		Whole       uint8  `json:"w,omitempty"`
	}
	lists := []List{{Workspace: uuid.Max, Collection: Contacts}, {Workspace: uuid.Max, Collection: Keys}}
	for name, rows := range map[string][]Rows{
		"named":     {{{ID: uuid.Max, Flags: RowCustomer, CreatedAt: 5, NameKey: "\x01"}, {ID: uuid.Nil, Flags: RowGone}}, nil},
		"none":      {{}, nil},
		"not named": {nil, {{ID: uuid.Max, Flags: RowSame}}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(Entry{Change: &Change{XID: 7, LSN: 8, CommittedAt: 9, Lists: lists, Rows: rows, NameOrder: 5, Whole: 2}})
			if err != nil {
				t.Fatal(err)
			}
			var is struct {
				Change *before `json:"c,omitempty"`
			}
			want := before{XID: 7, LSN: 8, CommittedAt: 9, Lists: lists, Whole: 2}
			if err := json.Unmarshal(text, &is); err != nil || !reflect.DeepEqual(*is.Change, want) {
				t.Errorf("%+v of %s (%v), want %+v", is.Change, text, err, want)
			}
		})
	}
	old, err := json.Marshal(before{XID: 7, Lists: lists})
	if err != nil {
		t.Fatal(err)
	}
	var c Change
	if err := json.Unmarshal(old, &c); err != nil || c.RowsOf(0) != nil || c.RowsOf(1) != nil {
		t.Errorf("of %s: %+v (%v)", old, c, err)
	}
}
