package follower

import (
	"slices"
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

func TestRowsHaveTheKeysOfTheirNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z')"))
	w.newChange()
	for _, name := range []string{"x", "Chai 5, 'Masala'", strings.Repeat("Ab ", 40), "CAFÉ MUG", "Чай", "東京 抹茶", "참기름 바라 한국어", "a\tb", "\u0301"} {
		t.Run(name, func(t *testing.T) {
			w.exec("UPDATE items SET name = '" + strings.ReplaceAll(name, "'", "''") + "'")
			change := w.newChange()
			rows := slices.Collect(change.RowsOf(0).All())
			want := slices.Collect(changefeed.PackRows(changefeed.Row{NameKey: lists.NameKey(name)}).All())
			if len(rows) != 1 || rows[0].NameKey != want[0].NameKey {
				t.Errorf("%+v, want the key %q", rows, want[0].NameKey)
			}
		})
	}
}
