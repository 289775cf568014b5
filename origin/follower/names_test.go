package follower

import (
	"slices"
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/origin/postgres"
)

func TestRowsHaveTheKeysOfTheirNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z')"))
	w.newChange()
	row := func(sql string) (changefeed.Row, uint32) {
		t.Helper()
		w.exec(sql)
		c := w.newChange()
		rows := slices.Collect(c.RowsOf(0).All())
		if len(rows) != 1 {
			t.Fatalf("%s: %s", sql, named(c))
		}
		return rows[0], c.NameOrder
	}
	w.eventually("the order of names is known", func() bool {
		_, order := row("UPDATE items SET name = name || 'b'")
		return order != 0
	})
	order, err := postgres.ReadNameOrder(w.ctx(), w.db)
	must(err)
	for name, keyed := range map[string]bool{"x": true, "Chai 5, 'Masala'": true, strings.Repeat("Ab ", 40): true, strings.Repeat("a", 80) + "é": true,
		"Café": false, strings.Repeat("a", 79) + "é": false, "a\tb": false} {
		is, by := row("UPDATE items SET name = '" + strings.ReplaceAll(name, "'", "''") + "'")
		key, ok := order.Key(name)
		want := slices.Collect(changefeed.PackRows(changefeed.Row{NameKey: key}).All())[0].NameKey
		switch {
		case ok != keyed || is.NameKey != want:
			t.Errorf("%q: %x, want %x (%v)", name, is.NameKey, want, ok)
		case keyed && by != order.Digest || !keyed && by != 0:
			t.Errorf("%q: in order %d, and that of the database is %d", name, by, order.Digest)
		}
	}
	if is, by := row("UPDATE items SET active = false"); is.NameKey != "" || by != 0 {
		t.Errorf("a deleted row: %+v in order %d", is, by)
	}
	w.exec("ALTER COLLATION name_order RENAME TO before; CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2-ka-shifted', deterministic = false)")
	w.named("another collation", all)
	if is, by := row("UPDATE items SET active = true, name = 'x'"); is.NameKey != "" || by != 0 {
		t.Errorf("another collation: %+v in order %d", is, by)
	}
	w.eventually("it is logged", func() bool { return w.logged.has("the order of names cannot be read") })
	w.exec("DROP COLLATION name_order; ALTER COLLATION before RENAME TO name_order")
	w.named("the one before", all)
	w.eventually("the order of names is known again", func() bool {
		is, by := row("UPDATE items SET name = name || 'b'")
		return by == order.Digest && is.NameKey != ""
	})
}
