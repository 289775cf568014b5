package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// The schema refuses values above these bounds.
const (
	maxText   = 64 << 10 // bytes of a text
	maxDigits = 1000     // digits of a number before the decimal point, and as many after it: the limit of numeric(p, s)
)

// The schema takes texts and numbers up to their bounds, and no more.
func TestTheSchemaBoundsARow(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	put := func(c *list.List, column, value string) error {
		record := fmt.Sprintf(`{"workspace_id": %q, "name": "x", "active": true, "taxable": true, "track_stock": false, "type": "GOODS", "cost_price": 0, "avg_cost": 0,
			"selling_price": 0, "stock_on_hand": 0, "usage_30": 0, "is_customer": false, "is_supplier": false, "created_at": "2026-01-01Z", "id": %q}`,
			ourWorkspace, uuid.New())
		_, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO %[1]s SELECT * FROM json_populate_record(NULL::%[1]s, ($1::jsonb || jsonb_build_object($2::text, $3::text))::json)", c.Table.SQL()),
			record, column, value)
		return err
	}
	nines, text := strings.Repeat("9", maxDigits), strings.Repeat("é", maxText/2)
	for _, c := range list.BuiltIn().Lists {
		for i, field := range c.Fields {
			column := c.Columns[i]
			var most, beyond []string
			switch {
			case column.Name == "type":
			case column.Base == "text":
				most, beyond = []string{text}, []string{text + "x"}
			case field.Form == list.Number: // how large it may be is another bound's
				most, beyond = []string{"0." + nines}, []string{"0." + nines + "0"}
			case field.Form == list.Decimal:
				most = []string{nines + "." + nines, "-" + nines + "." + nines}
				beyond = []string{"1" + strings.Repeat("0", maxDigits), "-0." + nines + "0"}
			}
			for _, value := range most {
				if err := put(c, column.Name, value); err != nil {
					t.Errorf("%s.%s: %d bytes: %v", c.Name, column.Name, len(value), err)
				}
			}
			for _, value := range beyond {
				if err := put(c, column.Name, value); postgres.Code(err) != "23514" || !strings.Contains(err.Error(), column.Name+"_size") { // check_violation
					t.Errorf("%s.%s: %d bytes: %v", c.Name, column.Name, len(value), err)
				}
			}
		}
	}
	exec(t, conn, "INSERT INTO workspaces (name) VALUES ('x')")
	for _, key := range []string{"repeat('x', 65537), 'lk_', '{}'", "'', repeat('x', 65537), '{}'", "'', 'lk_', array_fill('items:read'::text, '{65}')"} {
		_, err := conn.Exec(t.Context(), "INSERT INTO api_keys (workspace_id, key_hash, name, key_prefix, scopes) SELECT id, sha256('1'), "+key+" FROM workspaces")
		if postgres.Code(err) != "23514" {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO workspaces (name) VALUES (repeat('x', 65537))"); postgres.Code(err) != "23514" {
		t.Error(err)
	}
}

// longRows takes the bounds away and puts in rows beyond them.
func longRows(t *testing.T, url, insertion string, args ...any) {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, "ALTER TABLE items DROP CONSTRAINT items_image_path_size")
	exec(t, conn, insertion, args...)
}

// sizeOf is how many bytes the rows have in JSON.
func sizeOf(rows []list.Row) (n int) {
	for i := range rows {
		n += len(rows[i].Text())
	}
	return n
}

// Even with the largest rows no statement keeps more than its bound and one row, and a walk
// sees each row once, in order.
func TestAPageEndsBeforeItIsTooLarge(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	// Rows of a few bytes, of 600 kB, and two of more than a page in JSON, the last by name; in a column that no index has.
	longRows(t, url, `INSERT INTO items (workspace_id, id, name, image_path, created_at)
		SELECT $1, gen_random_uuid(), 'Item ' || n, CASE WHEN n % 3 = 1 THEN 'small' WHEN n = 9 OR n = 14 THEN repeat(chr(1), 700000) ELSE repeat('x', 600000) END,
			'2026-01-01Z'::timestamptz + (n % 7) * interval '1 s' FROM generate_series(1, 21) n`, ourWorkspace)
	o := openOrigin(t, url)
	conn := connect(t, url)
	for sort, order := range map[int]string{listtest.ByCreatedAt: "created_at DESC, id DESC", listtest.ByName: `name COLLATE "und-x-icu", id`} {
		var want []string
		rows := must1(conn.Query(t.Context(), "SELECT id::text FROM items WHERE workspace_id = $1 ORDER BY "+order, ourWorkspace))
		for rows.Next() {
			var id string
			must(rows.Scan(&id))
			want = append(want, id)
		}
		for _, limit := range [][]int{listtest.ByCreatedAt: {100, 1}, listtest.ByName: {100, 7}}[sort] {
			q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Order: sort, Limit: limit}
			var got []string
			cut := 0
			for {
				read := must1(o.Fetch(within(t, patience), q, ""))
				rows := read.Rows[:min(limit, len(read.Rows))]
				if len(rows) == 0 {
					t.Fatalf("%s: no row", describe(q))
				}
				if bytes := sizeOf(read.Rows[:len(read.Rows)-1]); bytes > page.MaxBytes {
					t.Errorf("%s: %d bytes, and a row more", describe(q), bytes)
				}
				for _, row := range rows {
					got = append(got, q.List.KeyText(row.Key()))
				}
				if read.End && len(rows) == len(read.Rows) {
					break
				}
				if len(rows) < limit {
					cut++
				}
				q = q.Behind(&rows[len(rows)-1])
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d rows, want %d, or in another order", describe(q), len(got), len(want))
			}
			if limit == 100 && cut < 2 {
				t.Errorf("%s: only %d pages ended before their limit", describe(q), cut)
			}
		}
	}
}

// A row that is too long to be read fails the page that begins with it, by name,
// and nothing else: not the server, and not the page before it.
func TestARowThatIsTooLongIsNotRead(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	longRows(t, url, `INSERT INTO items (workspace_id, id, name, image_path) SELECT $1, $2, 'Long', repeat('x', 10000000)`, ourWorkspace, number(5))
	exec(t, connect(t, url), `INSERT INTO items (workspace_id, id, name) VALUES ($1, $2, 'Beside')`, ourWorkspace, number(4))
	o := openOrigin(t, url)
	for _, limit := range []int{1, 50} {
		q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Order: listtest.ByName, Limit: limit}
		ids, before := fetch(t, o, q)
		if len(ids) != 1 || before.End {
			t.Fatalf("the page before it: %d rows", len(ids))
		}
		q = q.Behind(&before.Rows[0])
		for range 5 {
			_, err := o.Fetch(context.Background(), q, "")
			if !errors.Is(err, postgres.ErrRow) || errors.Is(err, page.ErrUnavailable) {
				t.Fatal(err)
			}
			for _, named := range []string{"public.items of tenant " + ourWorkspace, "the row after the key " + number(4), "10000"} {
				if !strings.Contains(err.Error(), named) {
					t.Errorf("%v does not name %s", err, named)
				}
			}
		}
	}
	if s := o.Stats(); s.BreakerOpen || s.Fetches["failed"] != 10 {
		t.Errorf("%+v", s)
	}
}

// A row around the constraints fails the page that would show it, by name, and is not taken
// for a failure of the server. The pages before it are read without it.
func TestARowThatCannotBeShown(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, `ALTER TABLE items DROP CONSTRAINT items_created_at_check, DROP CONSTRAINT items_usage_30_check, DROP CONSTRAINT items_usage_30_bound,
		DROP CONSTRAINT items_cost_price_check, DROP CONSTRAINT items_cost_price_size, ALTER created_at DROP NOT NULL`)
	o := openOrigin(t, url)
	for n, set := range []string{"created_at = 'infinity'", "created_at = '10000-01-01Z'", "usage_30 = 'NaN'", "cost_price = 'NaN'", "created_at = NULL"} {
		t.Run(set, func(t *testing.T) {
			workspace, id := number(900+n), number(n+1)
			exec(t, conn, "INSERT INTO items (workspace_id, id, name) VALUES ($1, $2, 'x'), ($1, gen_random_uuid(), 'a'), ($1, gen_random_uuid(), 'b'), "+
				"($1, gen_random_uuid(), 'c'), ($1, gen_random_uuid(), 'y')", workspace, id)
			exec(t, conn, "UPDATE items SET "+set+" WHERE id = $1", id)
			q := page.Query{List: listtest.Items, Tenant: workspace, Order: listtest.ByName, Limit: 3}
			first, err := o.Fetch(within(t, patience), q, "")
			if err != nil || len(first.Rows) != 3 || first.End {
				t.Fatalf("the page before it: %+v, %v", first, err)
			}
			ahead := q.Behind(&first.Rows[0])
			ahead.Limit = 1
			if rows, err := o.Fetch(within(t, patience), ahead, ""); err != nil || len(rows.Rows) != 2 || rows.End {
				t.Errorf("it is behind the page: %+v, %v", rows, err)
			}
			whole, behind := q, q.Behind(&first.Rows[2])
			whole.Limit, behind.Limit = 4, 1
			for _, q := range []page.Query{whole, behind} {
				_, err = o.Fetch(within(t, patience), q, "")
				if !errors.Is(err, postgres.ErrRow) || errors.Is(err, page.ErrUnavailable) || !strings.Contains(err.Error(), id) {
					t.Errorf("%s: %v", describe(q), err)
				}
			}
		})
	}
}

// No writer's name or description is too long for an index, whatever is in it.
func TestIndexesRefuseNoWriter(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, `INSERT INTO items (workspace_id, name, sku, description)
		SELECT $1, t, t, t FROM (SELECT string_agg(chr(65536 + (n * 7919) % 65536), '') t FROM generate_series(1, 16384) n) long`, ourWorkspace)
	exec(t, conn, `INSERT INTO contacts (workspace_id, name, email, phone, tin)
		SELECT $1, t, t, t, t FROM (SELECT string_agg(md5(n::text), '') t FROM generate_series(1, 2048) n) long`, ourWorkspace)
	o := openOrigin(t, url)
	for _, q := range []page.Query{
		{List: listtest.Items}, {List: listtest.Items, Order: listtest.ByName}, {List: listtest.Contacts, Order: listtest.ByName, Search: "c4ca4238a0b9"},
	} {
		q.Tenant, q.Limit = ourWorkspace, 1
		if ids, _ := fetch(t, o, q); len(ids) != 1 {
			t.Errorf("%s", describe(q))
		}
	}
}
