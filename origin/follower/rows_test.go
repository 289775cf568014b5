package follower_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// rowsSQL replaces $1, $2, … by workspaces, and #1, #2, … by ids of rows.
func rowsSQL(sql string) string {
	sql = ids(sql)
	for n := 99; n > 0; n-- {
		sql = strings.ReplaceAll(sql, fmt.Sprintf("#%d", n), "'"+number(n).String()+"'")
	}
	return sql
}

// named awaits as many changes as are wanted, and compares their rows.
func (w *world) named(sql, want string) {
	w.Helper()
	for want := range strings.SplitSeq(want, "; ") {
		c := w.newChange()
		if is := named(c); is != want {
			w.Errorf("%.200s:\n is %.300s\nnot %s", sql, is, want)
		}
	}
}

const item = "INSERT INTO items (workspace_id, id, name, created_at) VALUES "

func TestWhatRowsAChangeNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER DATABASE " + w.name + " SET datestyle = 'SQL, DMY'; ALTER DATABASE " + w.name + " SET timezone = 'Asia/Kolkata'; " +
		"ALTER DATABASE " + w.name + " SET client_encoding = 'LATIN1'")
	w.awaitFollowing(w.follow())
	long := strings.Repeat("9", 999)
	for _, c := range []struct{ name, sql, want string }{
		{"insert", item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"a service", "INSERT INTO items (workspace_id, id, name, type, created_at) VALUES ($1, #2, 'b', 'SERVICE', '2020-01-01 00:00:01.5Z')",
			"items:1[2 service @1.5s]"},
		{"a contact", "INSERT INTO contacts (workspace_id, id, name, created_at, is_customer) VALUES ($1, #3, 'c', '2020-01-01Z', true)",
			"contacts:1[3 customer @0s]"},
		{"a contact, both", "UPDATE contacts SET is_supplier = true", "contacts:1[3 customer supplier @0s]"},
		{"inserted inactive", "INSERT INTO items (workspace_id, id, name, active) VALUES ($1, #4, 'x', false)", "items:1[4 gone]"},
		{"activated", "UPDATE items SET active = true, created_at = '2020-01-02Z' WHERE id = #4", "items:1[4 goods @24h0m0s]"},
		{"deactivated", "UPDATE items SET active = false WHERE id = #4", "items:1[4 gone]"},
		{"delete", "DELETE FROM items WHERE id = #4", "items:1[4 gone]"},
		{"tracked, without a reorder point", "UPDATE items SET track_stock = true WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"as low as can be", "UPDATE items SET reorder_point = 0 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"just above", "UPDATE items SET stock_on_hand = 0." + strings.Repeat("0", 999) + "1 WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"equal, with more zeros", "UPDATE items SET stock_on_hand = 5.50, reorder_point = 5.5000 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"of many digits", "UPDATE items SET stock_on_hand = " + long + ".1, reorder_point = " + long + ".2 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"of many digits, and above", "UPDATE items SET reorder_point = " + long + " WHERE id = #1", "items:1[1 tracked goods @0s]"},
		{"below zero", "UPDATE items SET stock_on_hand = -10, reorder_point = -9.99 WHERE id = #1", "items:1[1 tracked low goods @0s]"},
		{"not tracked", "UPDATE items SET track_stock = false WHERE id = #1", "items:1[1 goods @0s]"},
		{"a move to another workspace", "UPDATE items SET workspace_id = $2 WHERE id = #1", "items:1[1 gone] items:2[1 goods @0s]"},
		{"another id", "UPDATE items SET id = #5 WHERE id = #1", "items:2[1 gone, 5 goods @0s]"},
		{"a move of an inactive row", "UPDATE items SET active = false, workspace_id = $1 WHERE id = #5", "items:1[5 gone] items:2[5 gone]"},
		{"the last version", "BEGIN; UPDATE items SET active = true WHERE id = #5; UPDATE items SET created_at = '2020-01-01 00:00:02Z' WHERE id = #5; " +
			"UPDATE items SET created_at = '2020-01-01 00:00:03Z' WHERE id = #5; COMMIT", "items:1[5 goods @3s]"},
		{"deleted and inserted again", "BEGIN; DELETE FROM items WHERE id = #5; " + item + "($1, #5, 'a', '2020-01-01 00:00:04Z'); COMMIT", "items:1[5 goods @4s]"},
		{"inserted and deleted", "BEGIN; " + item + "($1, #6, 'a', '2020-01-01Z'); DELETE FROM items WHERE id = #6; COMMIT", "items:1[6 gone]"},
		{"away and back", "BEGIN; UPDATE items SET workspace_id = $2 WHERE id = #5; UPDATE items SET workspace_id = $1 WHERE id = #5; COMMIT",
			"items:1[5 goods @4s] items:2[5 gone]"},
		{"a savepoint that is rolled back", "BEGIN; UPDATE items SET track_stock = true WHERE id = #5; SAVEPOINT s; DELETE FROM items WHERE id = #5; " +
			"UPDATE items SET type = 'GOODS' WHERE id = #2; ROLLBACK TO s; COMMIT", "items:1[5 tracked goods @4s]"},
		{"two collections", "BEGIN; DELETE FROM contacts; UPDATE items SET track_stock = false WHERE id = #5; COMMIT", "contacts:1[3 gone] items:1[5 goods @4s]"},
		{"prepared", "BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #5; PREPARE TRANSACTION '" + w.name + "'", ""},
		{"and committed", "COMMIT PREPARED '" + w.name + "'", "items:1[5 service @4s]"},
		{"upsert", item + "($1, #5, 'z', now()) ON CONFLICT (workspace_id, id) DO UPDATE SET type = 'GOODS'", "items:1[5 goods @4s]"},
		{"the same row number in two workspaces", item + "($3, #5, 'z', '2020-01-01Z')", "items:3[5 goods @0s]"},
		{"any time", "ALTER TABLE items DROP CONSTRAINT items_created_at_check", all},
		{"the least time that is read", item + "($4, #1, 'a', '0001-01-01Z')", "items:4[1 goods @-2562047h47m16.854775808s]"},
		{"before Christ", item + "($4, #2, 'a', '0001-12-31Z BC')", "items:4[2 goods @-2562047h47m16.854775808s text unknown]"},
		{"year 9999", item + "($4, #3, 'a', '9999-12-31 23:59:59.999Z')", "items:4[3 goods @2562047h47m16.854775807s]"},
		{"year 10000", item + "($4, #4, 'a', '10000-01-01Z')", "items:4[4 goods @2562047h47m16.854775807s text unknown]"},
		{"infinity", item + "($4, #5, 'a', 'infinity')", "items:4[5 goods @2562047h47m16.854775807s text unknown]"},
		{"-infinity", item + "($4, #6, 'a', '-infinity')", "items:4[6 goods @-2562047h47m16.854775808s text unknown]"},
		{"inactive since ever", "UPDATE items SET active = false WHERE id = #6", "items:4[6 gone]"},
		{"1000 rows", "INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000)", "1000 rows"},
		{"1001 rows", "INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1001)", "items:5[any]"},
		{"many bytes", "INSERT INTO items (workspace_id, name, sku) SELECT $5, 'x', repeat('x', 7000) FROM generate_series(1, 80)", "items:5[any]"},
		{"few rows of one list, and many of another",
			"BEGIN; " + item + "($6, #1, 'x', '2020-01-01Z'); INSERT INTO items (workspace_id, name) SELECT $5, 'x' FROM generate_series(1, 1000); COMMIT",
			"items:5[any] items:6[1 goods @0s]"},
		{"one row 1001 times", "DO $$ BEGIN FOR n IN 1..1001 LOOP UPDATE items SET stock_on_hand = n, sku = repeat('x', 1000) " +
			"WHERE id = #1 AND workspace_id = $6; END LOOP; END $$", "items:6[1 goods @0s]"},
		{"a purge", "SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6)", "contacts:6[any] items:6[any] keys:6[any]"},
		{"a purge of a list with a row", "BEGIN; UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6; " +
			"SELECT pg_logical_emit_message(true, 'listedge', 'purge ' || $6); UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6; COMMIT",
			"contacts:6[any] items:6[any] keys:6[any]"},
		{"a key", "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", "keys:1[any]"},
		{"a new column", "ALTER TABLE items ADD extra int DEFAULT random()", all},
		{"after it", "UPDATE items SET type = 'SERVICE' WHERE id = #1 AND workspace_id = $6", "items:6[1 service @0s]"},
		{"of another type", "ALTER TABLE items ALTER sku TYPE varchar", all},
		{"a row of another type", "UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[any]"},
		{"a contact beside it", "INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #3, 'c', '2020-01-01Z')", "contacts:1[3 @0s]"},
		{"of its type again", "ALTER TABLE items ALTER sku TYPE text", all},
		{"a row of its type", "UPDATE items SET type = 'GOODS' WHERE id = #1 AND workspace_id = $6", "items:6[1 goods @0s]"},
		{"truncate", "TRUNCATE contacts", "whole:contacts; " + all},
	} {
		w.exec(rowsSQL(c.sql))
		if c.want == "" {
			w.quiet()
			continue
		}
		for want := range strings.SplitSeq(c.want, "; ") {
			got := w.newChange()
			switch is := named(got); {
			case want == "*" || want == "1000 rows" && len(got.Lists) == 1 && len(got.Lists[0].Rows) == 1000:
			case is != want:
				t.Errorf("%s:\n is %.300s\nnot %s", c.name, is, want)
			}
		}
	}
	if _, err := w.db.CopyFrom(w.ctx(), pgx.Identifier{"items"}, []string{"workspace_id", "id", "name", "created_at"},
		pgx.CopyFromRows([][]any{{number(1), number(1), "x", since}, {number(2), number(2), "y", since}})); err != nil {
		t.Fatal(err)
	}
	w.named("COPY", "items:1[1 goods @0s] items:2[2 goods @0s]")
}
