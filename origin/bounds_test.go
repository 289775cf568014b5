package origin

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

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

// A row around the constraints, or too long to be read, fails the page that would begin with it, by name, and is not taken for a failure of the
// server. Pages, rows of keys and verifications end before it, and where a filter hides it, it fails nothing.
func TestARowThatCannotBeShown(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, `ALTER TABLE items DROP CONSTRAINT items_created_at_check, DROP CONSTRAINT items_usage_30_check, DROP CONSTRAINT items_usage_30_bound,
		DROP CONSTRAINT items_cost_price_check, DROP CONSTRAINT items_cost_price_size, DROP CONSTRAINT items_image_path_size, ALTER created_at DROP NOT NULL`)
	o := openOrigin(t, url)
	for n, set := range []string{"created_at = 'infinity'", "created_at = '10000-01-01Z'", "usage_30 = 'NaN'", "cost_price = 'NaN'", "created_at = NULL",
		"image_path = repeat('x', 10000000)"} {
		t.Run(set, func(t *testing.T) {
			workspace, id := number(900+n), func(name rune) string { return number(100*n + int(name)) }
			says, ofKeys, long := id('x'), "key "+id('x'), strings.Contains(set, "image_path")
			if long {
				says, ofKeys = "public.items of tenant "+workspace+", the row after the key "+id('c'), "from "+id('x')+" on"
			}
			for _, name := range "abcxy" {
				exec(t, conn, "INSERT INTO items (workspace_id, id, name, type) VALUES ($1, $2, $3, $4)", workspace, id(name), string(name),
					map[bool]string{true: "SERVICE", false: "GOODS"}[name == 'y'])
			}
			exec(t, conn, "UPDATE items SET "+set+" WHERE id = $1", id('x'))
			fails := func(what, says string, rows page.Read, err error) {
				t.Helper()
				if !errors.Is(err, page.ErrRow) || errors.Is(err, page.ErrUnavailable) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %d rows, %v, want %s", what, len(rows.Rows), err, says)
				}
			}
			ends := func(what string, rows page.Read, err error, n int, end bool) {
				t.Helper()
				if err != nil || len(rows.Rows) != n || rows.End != end {
					t.Errorf("%s: %d rows, the end %t, %v, want %d", what, len(rows.Rows), rows.End, err, n)
				}
			}
			ctx, q := within(t, patience), page.Query{List: listtest.Items, Tenant: workspace, Order: listtest.ByName, Limit: 3}
			before, err := o.Fetch(ctx, q, "")
			ends("the page before it", before, err, 3, false)
			if t.Failed() {
				return
			}
			behind, ahead, whole := q.Behind(&before.Rows[2]), q.Behind(&before.Rows[0]), q
			ahead.Limit, behind.Limit, whole.Limit = 1, 1, 4
			rows, err := o.Fetch(ctx, ahead, "")
			ends("it is behind the page", rows, err, 2, false)
			rows, err = o.Fetch(ctx, whole, "")
			if long { // which is not read
				ends("a page that has it", rows, err, 3, false)
			} else {
				fails("a page that has it", says, rows, err)
			}
			rows, err = o.Verify(ctx, whole, "")
			ends("a verification", rows, err, 3, false)
			rows, err = o.Verify(ctx, behind, "")
			fails("a verification that begins with it", "", rows, err)
			for range 5 { // the breaker stays closed
				rows, err = o.Fetch(ctx, behind, "")
				fails("a page that begins with it", says, rows, err)
			}
			ask := func(q page.Query, names string) (page.Read, error) {
				var keys []string
				for _, name := range names {
					keys = append(keys, id(name))
				}
				return o.FetchRows(ctx, q, keysOf(q.List, keys...), "")
			}
			rows, err = ask(q, "a9xb")
			ends("rows of keys", rows, err, 1, false)
			rows, err = ask(q, "xb")
			fails("rows of keys that begin with it", ofKeys, rows, err)
			q.Match = listtest.Services
			rows, err = ask(q, "xy")
			ends("rows of keys where a filter hides it", rows, err, 1, true)
		})
	}
	if s := o.Stats(); s.BreakerOpen {
		t.Errorf("%+v", s)
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
