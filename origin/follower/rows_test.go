package follower_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/admin"
	"listedge/origin/follower"
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

// extremes are values of a kind, in SQL.
func extremes(kind lists.Kind) []string {
	nines := strings.Repeat("9", 1000)
	switch kind {
	case lists.Text:
		return []string{"''", "'\"\\/'", "E'\\x01\\t\\n\\r\\x1f\\x7f'", "U&'\\2028\\2029\\feff'", "'😀 é茶 ß ΟΔΟΣ'", "'e\u0301'", "U&'\\+01fae8'",
			"repeat('x', 7000)", "repeat(chr(1), 2000)", "repeat('é', 32768)"}
	case lists.Decimal, lists.Number:
		return []string{"0", "-0.00", "0.000", "1", "10", "9999", "10000", "100000000", "12.50", "0.0001", "0.00010", "0.00001", "-1234567.8901", "1e20",
			"1e-1000", "-" + nines + "." + nines,
			"1e9000", "1e-9000", "'NaN'", "'Infinity'", "'-Infinity'"}
	case lists.Instant:
		return []string{"'0001-01-01Z'", "'9999-12-31 23:59:59.999Z'", "'1969-12-31 23:59:59.999Z'", "'2024-02-29 12:34:56.789Z'", "'10000-01-01Z'",
			"'4713-01-01Z BC'", "'294276-12-31Z'", "'infinity'", "'-infinity'"}
	case lists.UUID:
		return []string{"'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'0197A1B2-C3D4-7E5F-8A9B-0C1D2E3F4A5B'"}
	}
	return []string{"true", "false"}
}

// A row in the log is, byte by byte, the one that a statement reads; and it says what
// Postgres says.
func TestRowsOfTheLogAreThoseOfStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`DO $$ DECLARE c record; BEGIN FOR c IN SELECT conrelid::regclass r, conname FROM pg_constraint
		WHERE contype = 'c' AND conrelid IN ('items'::regclass, 'contacts'::regclass)
		LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.r, c.conname); END LOOP; END $$`)
	w.awaitFollowing(w.follow())
	for _, c := range lists.All {
		for _, column := range c.Listed() {
			values := extremes(column.Kind)
			if column.Nullable {
				values = append(values, "NULL")
			}
			for _, value := range values {
				t.Run(fmt.Sprintf("%s.%s = %.40s", c, column.Name, value), func(t *testing.T) {
					names, given := "workspace_id, id, name, "+column.Name, "$1, #1, 'a', "+value
					switch column.Name {
					case "id":
						names, given = "workspace_id, name, id", "$1, 'a', "+value
					case "name":
						names, given = "workspace_id, id, name", "$1, #1, "+value
					}
					w.exec(rowsSQL(fmt.Sprintf("BEGIN; DELETE FROM %[1]s; INSERT INTO %[1]s (%[2]s) VALUES (%[3]s); COMMIT", c, names, given)))
					change := w.newChange()
					logged := change.Lists[0].Rows
					read, says := w.read(c)
					if len(read.Text()) > 8<<10 {
						read.ForgetText()
					}
					if is := logged[len(logged)-1]; is != read {
						t.Errorf("%.300v, but a statement reads %.300v", is, read)
					}
					if read.Text() == "" {
						return
					}
					if is := decoded(t, read.Text()); !reflect.DeepEqual(is, decoded(t, says)) {
						t.Errorf("%.300v, but Postgres says %.300s", is, says)
					}
				})
			}
		}
	}
}

// read reads the only row of a table as statements do, and as Postgres shows it.
func (w *world) read(c lists.Collection) (row lists.Row, says string) {
	w.Helper()
	var columns, fields []string
	for _, column := range c.Listed() {
		shown := column.Name
		switch column.Kind {
		case lists.Decimal:
			shown += "::text"
		case lists.Instant:
			shown = "to_char(" + shown + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`
		}
		columns, fields = append(columns, column.Name), append(fields, "'"+column.Field+"', "+shown)
	}
	result := w.db.PgConn().ExecParams(w.ctx(), fmt.Sprintf("SELECT %s FROM %s", strings.Join(columns, ", "), c), nil, nil, nil, []int16{1}).Read()
	must(result.Err)
	row, err := c.Row(result.Rows[0], 0)
	if err != nil && !errors.Is(err, lists.ErrBounds) || (row.Text() == "") != (err != nil) {
		w.Fatalf("%v: %.300v", err, row)
	}
	return row, w.text(fmt.Sprintf("SELECT json_build_object(%s)::text FROM %s", strings.Join(fields, ", "), c))
}

// decoded keeps each digit of numbers.
func decoded(t *testing.T, text string) (fields map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	return fields
}

func (w *world) migrate() {
	w.Helper()
	must2(admin.MigrateUp(w.ctx(), w.url))
}

// Lists of columns lack what rows show, until `migrate up` publishes whole rows.
func TestListsOfColumnsAreMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER PUBLICATION listedge SET TABLE items (workspace_id, id), contacts (workspace_id, id), api_keys (id, workspace_id), workspaces (id)")
	f := w.follow()
	w.incapable(f, "lacks contacts, items, or some")
	writer := w.begin(rowsSQL("INSERT INTO items (workspace_id, id, name) VALUES ($2, #2, 'b')"))
	w.migrate() // does not wait for writers
	must2(writer.Exec(w.ctx(), "COMMIT"))
	w.awaitFollowing(f)
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z')"))
	w.named("after", "items:1[1 goods @0s]")
	if is := w.text("SELECT count(prattrs)::text FROM pg_publication_rel"); is != "0" {
		t.Errorf("%s tables have a list of columns", is)
	}
	epoch := w.epoch
	w.migrate() // has nothing to do
	w.exec(rowsSQL("UPDATE items SET track_stock = true WHERE id = #1"))
	w.named("and again", "items:1[1 tracked goods @0s]")
	if w.epoch != epoch {
		t.Error("a new epoch")
	}
}

// Postgres refuses no update or delete of a table whose replica identity is the whole row:
// keys can be revoked.
func TestReplicaIdentityFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER TABLE items REPLICA IDENTITY FULL; ALTER TABLE workspaces REPLICA IDENTITY FULL; ALTER TABLE api_keys REPLICA IDENTITY FULL")
	w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO workspaces (id, name) VALUES ($1, 'a')"))
	w.exec(rowsSQL("INSERT INTO api_keys (workspace_id, id, key_hash, key_prefix, scopes) VALUES ($1, $2, sha256('a'), '', '{}')"))
	f := w.follow()
	w.awaitFollowing(f)
	for _, c := range []struct{ sql, want string }{
		{"UPDATE workspaces SET name = 'b'", "keys:1[any]"},
		{"UPDATE api_keys SET revoked_at = now()", "keys:2[any]"},
		{"DELETE FROM api_keys", "keys:2[any]"},
		{"UPDATE items SET track_stock = true", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET unit = 'kg'", "items:1[1 tracked goods @0s]"},
		{"UPDATE items SET workspace_id = $2, active = false", "items:1[1 gone] items:2[1 gone]"},
		{"UPDATE items SET workspace_id = $1, active = true", "items:1[1 tracked goods @0s] items:2[1 gone]"},
		{"UPDATE items SET id = #2", "items:1[1 gone, 2 tracked goods @0s]"},
		{"DELETE FROM items", "items:1[2 gone]"},
		{"ALTER TABLE contacts REPLICA IDENTITY FULL", all},
		{"INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #3, 'c', '2020-01-01Z')", "contacts:1[3 @0s]"},
		{"UPDATE contacts SET is_customer = true", "contacts:1[3 customer @0s]"},
	} {
		w.exec(rowsSQL(c.sql))
		w.named(c.sql, c.want)
	}
}

// Rows are named only where the workspace and the id name one.
func TestRowsThatTheirIDDoesNotName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, unnamed string }{
		"a key that has more columns": {"ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (workspace_id, id, name)", "items"},
		"no key":                      {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"a key of some rows": {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; " +
			"CREATE UNIQUE INDEX ON contacts (workspace_id, id) WHERE active; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"a key that waits for the commit": {"ALTER TABLE contacts DROP CONSTRAINT contacts_pkey; " +
			"ALTER TABLE contacts ADD UNIQUE (workspace_id, id) DEFERRABLE; ALTER TABLE contacts REPLICA IDENTITY FULL", "contacts"},
		"an identity without the id": {"CREATE UNIQUE INDEX one ON items (workspace_id, name); ALTER TABLE items REPLICA IDENTITY USING INDEX one", "items"},
		"partitions of any time": {`ALTER TABLE items RENAME TO items_old;
			CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id, created_at)) PARTITION BY RANGE (created_at);
			CREATE TABLE items_0 PARTITION OF items DEFAULT; ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`, "items"},
		"a key of the id alone, beside the primary key": {"CREATE UNIQUE INDEX one ON items (id)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.exec(c.sql)
			p := must2(follower.ReadPublication(w.ctx(), w.db))
			if defect, _ := p.Defect(); defect != "" {
				t.Fatal(defect)
			}
			is, _ := p.RowsUnnamed()
			if c.unnamed == "" && is != "" || c.unnamed != "" && !strings.Contains(is, "which row of "+c.unnamed+" was") {
				t.Errorf("%q, want %q", is, c.unnamed)
			}
			w.awaitFollowing(w.follow())
			items, contacts := "1 goods @0s", "2 @0s"
			switch c.unnamed {
			case "items":
				items = "any"
			case "contacts":
				contacts = "any"
			}
			w.exec(rowsSQL(item + "($1, #1, 'a', '2020-01-01Z'); INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ($1, #2, 'c', '2020-01-01Z')"))
			w.named("insert", "contacts:1["+contacts+"] items:1["+items+"]")
		})
	}
}

// The rows of a foreign partition are in no WAL of this server, whatever its replica identity.
func TestAForeignPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`ALTER TABLE items RENAME TO items_old; CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS) PARTITION BY HASH (workspace_id);
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
		CREATE FOREIGN TABLE far PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0) SERVER s;
		ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`)
	p := must2(follower.ReadPublication(w.ctx(), w.db))
	if defect, remedy := p.Defect(); !strings.Contains(defect, "lacks the rows of far, which") || remedy != "ALTER TABLE items DETACH PARTITION far" {
		t.Errorf("%s: %s", defect, remedy)
	}
}

// Postgres stores large values apart. An update that does not change one does not send it.
func TestRowsWithLargeValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec("ALTER TABLE items ALTER name SET STORAGE EXTERNAL, ALTER description SET STORAGE EXTERNAL, ALTER image_path SET STORAGE EXTERNAL")
	w.awaitFollowing(w.follow())
	for _, c := range []struct{ name, sql, want string }{
		{"insert", item + "($1, #1, 'a', '2020-01-01Z')", "items:1[1 goods @0s]"},
		{"too large a value", "UPDATE items SET image_path = repeat('x', 8192)", "items:1[1 goods @0s text unknown]"},
		{"stock, and the value is not sent", "UPDATE items SET stock_on_hand = 1", "items:1[1 goods @0s partial]"},
		{"a large value", "UPDATE items SET image_path = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"stock, and this value is not sent", "UPDATE items SET stock_on_hand = 2", "items:1[1 goods @0s partial]"},
		{"another one, and then stock", "BEGIN; UPDATE items SET image_path = repeat('y', 5000); UPDATE items SET stock_on_hand = 3; COMMIT",
			"items:1[1 goods @0s]"},
		{"a small one", "UPDATE items SET image_path = 'x'", "items:1[1 goods @0s]"},
		{"stock", "UPDATE items SET stock_on_hand = 4", "items:1[1 goods @0s]"},
		{"a large name", "UPDATE items SET name = repeat('x', 5000)", "items:1[1 goods @0s]"},
		{"stock, and the name is not sent", "UPDATE items SET stock_on_hand = 5", "items:1[1 unnamed goods @0s partial]"},
		{"twice, and the name is not sent", "BEGIN; UPDATE items SET stock_on_hand = 6; UPDATE items SET stock_on_hand = 7; COMMIT", "items:1[1 unnamed goods @0s partial]"},
		{"another name, and then stock", "BEGIN; UPDATE items SET name = repeat('y', 5000); UPDATE items SET stock_on_hand = 8; COMMIT", "items:1[1 goods @0s]"},
		{"too large a name, and then stock", "BEGIN; UPDATE items SET name = repeat('z', 9000); UPDATE items SET stock_on_hand = 9; COMMIT",
			"items:1[1 goods @0s text unknown]"},
		{"another name while it is inactive", "BEGIN; UPDATE items SET name = repeat('y', 5000), active = false; UPDATE items SET active = true; COMMIT",
			"items:1[1 unnamed goods @0s text unknown]"},
		{"to another workspace", "UPDATE items SET workspace_id = $2", "items:1[1 gone] items:2[1 unnamed goods @0s text unknown]"},
		{"there and back", "BEGIN; UPDATE items SET workspace_id = $1; UPDATE items SET workspace_id = $2; COMMIT",
			"items:1[1 gone] items:2[1 unnamed goods @0s text unknown]"},
	} {
		w.exec(rowsSQL(c.sql))
		w.named(c.name, c.want)
	}
	w.exec("ALTER TABLE items ALTER stock_on_hand SET STORAGE EXTERNAL")
	w.named("a change of the schema", all)
	huge := "9" + strings.Repeat("1234567890", 800)
	w.exec("ALTER TABLE items DROP CONSTRAINT items_stock_on_hand_size")
	w.named("a change of the schema", all)
	w.exec("UPDATE items SET name = 'a', track_stock = true, reorder_point = 5, stock_on_hand = " + huge)
	w.named("a large number", "items:2[1 tracked goods @0s text unknown]")
	w.exec("UPDATE items SET reorder_point = 6")
	w.named("the number is not sent", "items:2[any]")
}
