package follower

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// listing has the values that order and filter a row in its list, as the database has them.
type listing struct {
	createdAt int64
	flags     lists.Flags
	texts     string
}

type listedRow struct {
	list changefeed.List
	id   uuid.UUID
}

// listings reads all rows of all lists.
func (w *world) listings() map[listedRow]listing {
	w.Helper()
	rows, err := w.db.Query(w.ctx(), `
		SELECT 0, workspace_id, id, (extract(epoch FROM created_at) * 1000000)::int8, ARRAY[track_stock, track_stock AND stock_on_hand <= reorder_point, type = 'GOODS', type = 'SERVICE', false, false],
			(name, sku, description)::text FROM items WHERE active
		UNION ALL SELECT 1, workspace_id, id, (extract(epoch FROM created_at) * 1000000)::int8, ARRAY[false, false, false, false, is_customer, is_supplier],
			(name, email, phone, tin)::text FROM contacts WHERE active`)
	must(err)
	all := map[listedRow]listing{}
	var collection int
	var workspace, id uuid.UUID
	var is listing
	var flags []*bool
	_, err = pgx.ForEachRow(rows, []any{&collection, &workspace, &id, &is.createdAt, &flags, &is.texts}, func() error {
		is.flags = 0
		for n, f := range flags {
			if f != nil && *f {
				is.flags |= lists.Tracked << n
			}
		}
		all[listedRow{changefeed.List{Workspace: workspace, Collection: lists.Collection(collection)}, id}] = is
		return nil
	})
	must(err)
	return all
}

// randomWrite is a statement that changes some rows.
func randomWrite(r *rand.Rand) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	workspace := func() string { return "'" + number(1+r.IntN(2)).String() + "'" }
	id := func() string { return "'" + number(1+r.IntN(5)).String() + "'" }
	decimal := func() string { return one("0", "1", "1.0", "-1", "-1.5", "2.25", "1e30", "1.0000000000000000000001") }
	text := func() string {
		return one("NULL", "''", "'a'", "'b'", "'é'", "repeat('x', 5000)", "repeat('y', 5000)")
	}
	at := func() string { return one("'2020-01-01Z'", "'2020-01-02Z'", "'1969-12-31 23:59:59.999Z'") }
	if r.IntN(3) == 0 {
		return one(
			"INSERT INTO contacts (workspace_id, id, name, created_at) VALUES ("+workspace()+", "+id()+", 'c', "+at()+") ON CONFLICT DO NOTHING",
			"UPDATE contacts SET is_customer = "+one("true", "false")+", is_supplier = "+one("true", "false")+", "+one("email", "phone", "tin", "address")+" = "+text()+" WHERE id = "+id(),
			"UPDATE contacts SET active = NOT active WHERE id = "+id(),
			"DELETE FROM contacts WHERE id = "+id())
	}
	where := " WHERE id = " + id()
	if r.IntN(8) == 0 {
		where = ""
	}
	return one(
		"INSERT INTO items (workspace_id, id, name, created_at, active) VALUES ("+workspace()+", "+id()+", 'x', "+at()+", "+one("true", "true", "false")+") ON CONFLICT DO NOTHING",
		"INSERT INTO items (workspace_id, id, name, created_at) VALUES ("+workspace()+", "+id()+", 'x', "+at()+") ON CONFLICT (workspace_id, id) DO UPDATE SET name = items.name, active = true",
		"UPDATE items SET stock_on_hand = "+decimal()+where,
		"UPDATE items SET selling_price = "+decimal()+where,
		"UPDATE items SET track_stock = "+one("true", "true", "false")+", reorder_point = "+one("NULL", decimal(), decimal())+where,
		"UPDATE items SET "+one("sku", "description", "unit")+" = "+text()+where,
		"UPDATE items SET name = "+one("'x'", "'y'", "'é'", "repeat('x', 5000)")+where,
		"UPDATE items SET type = "+one("'GOODS'", "'SERVICE'")+", created_at = "+at()+where,
		"UPDATE items SET active = NOT active"+where,
		"UPDATE items SET workspace_id = "+workspace()+" WHERE id = "+id()+" AND NOT EXISTS (SELECT FROM items i WHERE i.id = items.id AND i.workspace_id <> items.workspace_id)",
		"DELETE FROM items"+where)
}

// For random writes: each row that a change names is as the database has it, and each row whose
// listing changed is named.
func TestRowsAreAsTheDatabaseHasThem(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t, server())
	w.exec("ALTER TABLE items ALTER description SET STORAGE EXTERNAL, ALTER name SET STORAGE EXTERNAL") // so that large values are stored apart
	w.awaitFollowing(w.follow())
	before := w.listings()
	for range 400 {
		sql := []string{"BEGIN"}
		for range 1 + r.IntN(3) {
			switch r.IntN(10) {
			case 0:
				sql = append(sql, "SAVEPOINT s", randomWrite(r), "ROLLBACK TO s")
			case 1:
				sql = append(sql, "SAVEPOINT s", randomWrite(r), "RELEASE s")
			default:
				sql = append(sql, randomWrite(r))
			}
		}
		if r.IntN(40) == 0 {
			sql = append(sql, "SELECT pg_logical_emit_message(true, 'listedge', 'purge "+number(1+r.IntN(2)).String()+"')")
		}
		sql = append(sql, "SELECT pg_logical_emit_message(true, 'listedge', 'purge "+number(9).String()+"')", "COMMIT") // so that each transaction publishes a change
		for _, s := range sql {
			if _, err := w.db.Exec(context.Background(), s); err != nil {
				t.Fatalf("%v\n%s", err, s)
			}
		}
		change, after := w.newChange(), w.listings()
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("%s\nof %s\n%s", fmt.Sprintf(format, args...), named(change), strings.Join(sql, "\n"))
		}
		rows := map[listedRow]lists.Row{}
		unnamed := map[changefeed.List]bool{}
		for i, list := range change.Lists {
			unnamed[list] = change.RowsOf(i) == nil
			for _, row := range change.RowsOf(i) {
				if _, twice := rows[listedRow{list, row.ID}]; twice {
					fail("%s is named twice", row.ID)
				}
				rows[listedRow{list, row.ID}] = row
			}
		}
		for _, all := range []map[listedRow]listing{before, after} {
			for row := range all {
				was, there := before[row]
				is, stays := after[row]
				if _, named := rows[row]; !named && !unnamed[row.list] && (was != is || there != stays) {
					fail("%+v is not named", row)
				}
			}
		}
		for row, as := range rows {
			is, there := after[row]
			switch gone := as.Flags&lists.Gone != 0; {
			case gone == there:
				fail("%+v is named as %+v", row, as)
			case gone:
			case as.Flags&^lists.NameUnknown != is.flags || as.CreatedAt != is.createdAt:
				fail("%+v is named as %+v: %+v", row, as, is)
			}
		}
		before = after
	}
}
