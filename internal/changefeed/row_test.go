package changefeed

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	for name, rows := range map[string][]Row{
		"any row":  nil,
		"gone":     {{ID: id, Flags: RowGone}},
		"the same": {{ID: id, Flags: RowSame}},
		"two rows": {
			{ID: id, Flags: RowTracked | RowLow | RowGoods, CreatedAt: -1, NameKey: "\x01\x02"},
			{ID: uuid.Max, Flags: RowSupplier, CreatedAt: 1 << 60},
		},
	} {
		t.Run(name, func(t *testing.T) {
			packed := PackRows(rows...)
			if is := slices.Collect(packed.All()); !reflect.DeepEqual(is, rows) || packed.Len() != len(rows) {
				t.Errorf("%d rows, %+v, want %+v", packed.Len(), is, rows)
			}
			want := Change{CommittedAt: -5, NameOrder: 7, Rows: []Rows{"", packed, PackRows(Row{ID: id, Flags: RowGone})}}
			var is Change
			if is.parseDetails(string(want.appendDetails(nil))); !reflect.DeepEqual(is, want) {
				t.Errorf("%+v, want %+v", is, want)
			}
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

// Of rows that cannot be read, any may have changed.
func TestDamagedRowsAreAnyRow(t *testing.T) {
	of := Change{CommittedAt: 5, Rows: []Rows{PackRows(Row{ID: uuid.Max, Flags: RowGoods, CreatedAt: 5, NameKey: "abc"}, Row{Flags: RowGone})}}
	whole := string(of.appendDetails(nil))
	for n := range len(whole) {
		var c Change
		if c.parseDetails(whole[:n]); c.RowsOf(0) != "" {
			t.Errorf("%d of %d bytes are read as %+v", n, len(whole), c)
		}
	}
	rows := string(of.Rows[0])
	for n := 1; n < len(rows); n++ {
		var c Change
		c.parseDetails(string((&Change{Rows: []Rows{Rows(rows[:n])}}).appendDetails(nil)))
		if is := c.RowsOf(0); is != "" && n != len(rows)-rowSize {
			t.Errorf("%d of %d bytes are %+v", n, len(rows), slices.Collect(is.All()))
		}
	}
}

// A node of version 0.1.0 reads a change that names rows as one of any row.
func TestNodesOf010ReadChanges(t *testing.T) {
	type list struct {
		Workspace  uuid.UUID
		Collection Collection
	}
	type old struct {
		XID         uint64 `json:"x"`
		LSN         uint64 `json:"l"`
		CommittedAt int64  `json:"a,omitempty"`
		Lists       []list `json:"p,omitempty"`
		Whole       uint8  `json:"w,omitempty"`
	}
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	text, err := json.Marshal(Entry{Change: &Change{XID: 7, LSN: 8, CommittedAt: 9, Whole: 2, NameOrder: 5,
		Lists: []List{{Workspace: id}, {Workspace: uuid.Max, Collection: Contacts}, {Workspace: id, Collection: Keys}}, Rows: []Rows{PackRows(Row{ID: id})}}})
	if err != nil {
		t.Fatal(err)
	}
	var is struct {
		Change *old `json:"c,omitempty"`
	}
	want := &old{XID: 7, LSN: 8, Lists: []list{{id, Items}, {uuid.Max, Contacts}, {id, Keys}}, Whole: 2}
	if err := json.Unmarshal(text, &is); err != nil || !reflect.DeepEqual(is.Change, want) {
		t.Errorf("%+v of %s (%v), want %+v", is.Change, text, err, want)
	}

	text, err = json.Marshal(struct {
		Change *old `json:"c,omitempty"`
	}{&old{XID: 7, CommittedAt: 9, Lists: want.Lists}})
	if err != nil {
		t.Fatal(err)
	}
	e := decode(Position{1, 1}, map[string]any{entryField: string(text)})
	if e.Undecodable() || e.Change.XID != 7 || e.Change.RowsOf(0) != "" || e.Change.Lists[1] != (List{uuid.Max, Contacts}) {
		t.Errorf("%s is read as %+v", text, e.Change)
	}
}
