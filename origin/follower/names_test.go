package follower

import (
	"strings"
	"testing"

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
			if rows := change.RowsOf(0); len(rows) != 1 || rows[0].NameKey != lists.NameKey(name) {
				t.Errorf("%+v, want the key %q", rows, lists.NameKey(name))
			}
		})
	}
}
