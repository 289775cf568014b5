package origin

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// Rows with a unit never change; the others come and go, and no row moves. Names and moments are
// few, so that most neighbours are ties and only their ids order them.
func TestAWalkUnderChangesSeesWhatStayedExactlyOnce(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, created_at, track_stock, reorder_point, unit)
		SELECT $1, md5(n::text)::uuid, 'Row ' || chr(97 + n % 26), '2026-01-01Z'::timestamptz + n % 40 * interval '1 s', true, 1, CASE WHEN n % 3 = 0 THEN 'stays' END
		FROM generate_series(0, 299) n`, ourWorkspace)
	rows, _ := conn.Query(t.Context(), "SELECT id::text FROM items WHERE unit = 'stays'") // the rows have the error
	stayed := must1(pgx.CollectRows(rows, pgx.RowTo[string]))

	writer, ended, changes := connect(t, url), make(chan error, 1), atomic.Int64{}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			_, err = writer.Exec(context.Background(), []string{
				"UPDATE items SET active = NOT active, stock_on_hand = 2 - stock_on_hand WHERE unit IS NULL AND random() < 0.03",
				"UPDATE items SET cost_price = cost_price + 1 WHERE unit IS NULL AND random() < 0.03",
				"DELETE FROM items WHERE unit IS NULL AND random() < 0.01",
				`INSERT INTO items (workspace_id, name, track_stock, reorder_point, created_at) SELECT 'aaaaaaaa-0000-4000-8000-000000000001',
					'Row ' || chr(65 + (random() * 25)::int), true, 1, '2026-01-01Z'::timestamptz + random() * interval '40 s' FROM generate_series(1, 2)`,
			}[changes.Add(1)%4], pgx.QueryExecModeExec)
		}
		ended <- err
	}()
	o := openOrigin(t, url)
	for _, q := range []page.Query{
		{}, {Match: listtest.Low}, {Search: "row"}, {Search: "w"},
		{Order: listtest.ByName}, {Order: listtest.ByName, Match: listtest.Low}, {Order: listtest.ByName, Search: "ROW"},
		{Order: listtest.ByName, Search: "o", Match: listtest.Goods},
	} {
		q.List, q.Tenant = listtest.Items, ourWorkspace
		for _, q.Limit = range []int{1, 7, 50} {
			before, seen := changes.Load(), map[string]int{}
			for _, id := range walk(t, o, q, nil) {
				seen[id]++
			}
			for id, n := range seen {
				if n > 1 {
					t.Errorf("%s: row %s seen twice", describe(q), id)
				}
			}
			for _, id := range stayed {
				if seen[id] == 0 {
					t.Errorf("%s: row %s was there throughout and was not seen", describe(q), id)
				}
			}
			eventually(t, "a change", func() bool { return changes.Load() > before || len(ended) > 0 })
		}
	}
	stop()
	must(<-ended)
}

// The row of a cursor is deleted, renamed or made another's before
// the cursor is used: the walk goes on behind its old position.
func TestACursorOutlivesItsRow(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	o := openOrigin(t, url)
	for _, change := range []string{
		`DELETE FROM items WHERE id = ANY($1)`,
		`UPDATE items SET active = false WHERE id = ANY($1)`,
		`UPDATE items SET name = 'aaa first of all', created_at = '9999-01-01Z' WHERE id = ANY($1)`,
		`UPDATE items SET workspace_id = '` + otherWorkspace + `' WHERE id = ANY($1)`,
	} {
		for _, q := range []page.Query{
			{Limit: 1}, {Limit: 7, Order: listtest.ByName}, {Limit: 1, Order: listtest.ByName, Search: "same"}, {Limit: 7, Search: "name"},
		} {
			exec(t, conn, "DELETE FROM items")
			q.List, q.Tenant = listtest.Items, ourWorkspace
			insertNamed(t, conn, ourWorkspace, slices.Repeat([]string{"Same name"}, 40)...) // all alike but for their ids
			want := walk(t, o, q, nil)
			got := walk(t, o, q, func(ids []string) { exec(t, conn, change, ids) })
			if len(want) != 40 || !slices.Equal(got, want) {
				t.Errorf("%s: after %.30s… %d rows instead of %d", describe(q), change, len(got), len(want))
			}
		}
	}
}
