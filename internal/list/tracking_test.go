package list_test

import (
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

func TestAListTracksWhereTheNewestIsFirstAndKeysAreShown(t *testing.T) {
	for _, c := range []struct {
		*list.List
		want bool
	}{{listtest.Items, true}, {listtest.Contacts, true}, {byName(listtest.Items), false}, {keyless(listtest.Items), false}} {
		if c.Tracks() != c.want {
			t.Errorf("%s by %s: %t", c.Name, c.Orders[0].Name, c.Tracks())
		}
	}
}

func byName(l *list.List) *list.List {
	other := *l
	other.Orders = []list.Order{l.Orders[listtest.ByName]}
	return &other
}

// keyless is the list without the field of its key.
func keyless(l *list.List) *list.List {
	other := *l
	other.Key = len(l.Fields)
	return &other
}

// A place reads as the page shows its row, or else as Postgres has it.
func TestAPlaceIsToldAsItsRowIsShown(t *testing.T) {
	for at, want := range map[string]string{
		"2026-01-02 03:04:05.678+00": "2026-01-02T03:04:05.678Z", "2026-01-02 03:04:05+00": "2026-01-02T03:04:05.000Z",
		"0001-01-01 00:00:00+00": "0001-01-01T00:00:00.000Z", "infinity": "infinity",
	} {
		row, _ := listtest.TryRow(listtest.Items, "id", listtest.ID(7), "created_at", at) // an infinity cannot be shown
		if got := listtest.Items.TrackingText(listtest.Items.Position(&row, listtest.ByCreatedAt)); got != want+" "+listtest.ID(7) {
			t.Errorf("%s: %s", at, got)
		}
	}
}
