package origin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/internal/page"
)

// churn changes a list during walks. It inserts, activates, deactivates and deletes rows, and
// updates columns that neither order rows nor are searched. So it never moves a row. It never
// changes the rows that the test protects.
type churn struct {
	conn    *pgx.Conn
	random  *rand.Rand
	next    int // the number of the next row to insert
	touched []int
	changes atomic.Int64
}

func (c *churn) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.change(); err != nil {
			return err
		}
		c.changes.Add(1)
	}
	return nil
}

func (c *churn) change() error {
	sql, args := []string{
		`DELETE FROM items WHERE workspace_id = $1 AND id = $2`, `UPDATE items SET active = NOT active WHERE workspace_id = $1 AND id = $2`,
		`UPDATE items SET stock_on_hand = 2 - stock_on_hand WHERE workspace_id = $1 AND id = $2`,
		`UPDATE items SET cost_price = cost_price + 1, unit = 'edited' WHERE workspace_id = $1 AND id = $2`,
	}[c.random.IntN(4)], []any{ourWorkspace, awkwardID(c.touched[c.random.IntN(len(c.touched))])}
	if c.random.IntN(5) == 0 {
		c.next++
		c.touched = append(c.touched, c.next)
		sql = `INSERT INTO items (workspace_id, id, name, track_stock, reorder_point, created_at)
			VALUES ($1, $2, $3, true, 1, '2026-01-01Z'::timestamptz + $4 * interval '1 second')`
		args = []any{ourWorkspace, awkwardID(c.next), fmt.Sprintf("Row %c", 'A'+c.random.IntN(26)), c.random.IntN(40)}
	}
	_, err := c.conn.Exec(context.Background(), sql, args...)
	return err
}

// Every third row never changes; the others come and go. Names and moments are
// few, so that most neighbours are ties and only their ids order them.
func TestAWalkUnderChangesSeesWhatStayedExactlyOnce(t *testing.T) {
	t.Parallel()
	const rows = 300
	url := newDatabase(t)
	conn := connect(t, url)
	c := &churn{conn: connect(t, url), random: rand.New(rand.NewPCG(5, 6)), next: rows}
	var all []*row
	stayed := map[string]bool{}
	for n := range rows {
		r := newItem(ourWorkspace, awkwardID(n), fmt.Sprintf("Row %c", 'a'+n%26))
		r.set("createdAt", fmt.Sprintf("2026-01-01T00:00:%02d.000Z", n%40)).set("trackStock", true).set("reorderPoint", "1")
		all = append(all, r)
		if n%3 == 0 {
			stayed[r.id()] = true
		} else {
			c.touched = append(c.touched, n)
		}
	}
	insert(t, conn, lists.Items, all...)

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	o := openOrigin(t, url)
	for _, q := range []page.Query{
		{}, {Filter: lists.Low}, {Search: "row"}, {Search: "w"},
		{Sort: lists.ByName}, {Sort: lists.ByName, Filter: lists.Low}, {Sort: lists.ByName, Search: "ROW"}, {Sort: lists.ByName, Search: "o", Filter: lists.Goods},
	} {
		q.Workspace = ourWorkspace
		for _, q.Limit = range []int{1, 7, 50} {
			before, seen := c.changes.Load(), map[string]int{}
			for _, id := range walk(t, o, q, nil) {
				if seen[id]++; seen[id] > 1 {
					t.Errorf("%s: row %s seen twice", describe(q), id)
				}
			}
			for id := range stayed {
				if seen[id] != 1 {
					t.Errorf("%s: row %s was there throughout and was seen %d times", describe(q), id, seen[id])
				}
			}
			eventually(t, "a change", func() bool { return c.changes.Load() > before || len(ended) > 0 })
		}
	}
	stop()
	must(<-ended)
	t.Logf("%d changes", c.changes.Load())
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
		`UPDATE items SET workspace_id = '` + otherWorkspace.String() + `' WHERE id = ANY($1)`,
	} {
		for _, q := range []page.Query{{Limit: 1}, {Limit: 7, Sort: lists.ByName}, {Limit: 1, Sort: lists.ByName, Search: "same"}, {Limit: 7, Search: "name"}} {
			exec(t, conn, "DELETE FROM items")
			var rows []*row
			for n := range 40 { // all alike but for their ids
				rows = append(rows, newItem(ourWorkspace, awkwardID(n), "Same name"))
			}
			insert(t, conn, lists.Items, rows...)
			q.Workspace = ourWorkspace
			want := walk(t, o, q, nil)
			got := walk(t, o, q, func(ids []string) { exec(t, conn, change, ids) })
			if len(want) != 40 || !slices.Equal(got, want) {
				t.Errorf("%s: after %.30s… %d rows instead of %d", describe(q), change, len(got), len(want))
			}
		}
	}
}
