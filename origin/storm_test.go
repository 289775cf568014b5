package origin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// While connections fail in many ways, a caller gets its own page, complete, or a temporary
// error. Afterwards everything works as before.
func TestNoPageIsMixedUpUnderLoad(t *testing.T) {
	t.Parallel()
	const workspaces, callers, each = 8, 8, 40
	url := newDatabase(t)
	conn := connect(t, url)
	exec(t, conn, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = debug1', current_database()); END $$")
	want := map[page.Query][]list.Row{}
	var queries []page.Query
	for w := range workspaces {
		exec(t, conn, `INSERT INTO items (workspace_id, name, description)
			SELECT $1, 'Item ' || n || ' of ' || $2::int, repeat('d', n * $2::int) FROM generate_series(1, 60) n`, number(w), w)
	}
	calm := openDatabase(t, postgres.Options{URL: url})
	quiet := New(calm, list.BuiltIn(), nil)
	for w := range workspaces {
		for _, q := range []page.Query{{Limit: 100}, {Limit: 7, Order: listtest.ByName}, {Limit: 100, Search: "item"}} {
			q.List, q.Tenant = listtest.Items, number(w)
			rows := must1(quiet.Fetch(within(t, patience), q, ""))
			queries, want[q] = append(queries, q), rows.Rows
		}
	}
	must(calm.Close(within(t, patience)))
	db := openDatabase(t, postgres.Options{URL: url, Connections: 4})
	o := New(db, list.BuiltIn(), nil)

	over := make(chan struct{})
	var weather, all sync.WaitGroup
	mine := "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listedge' ORDER BY random() LIMIT 1"
	weather.Go(func() {
		conn := connect(t, url)
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			sql := []string{
				"SELECT pg_cancel_backend(pid) " + mine, "ALTER TABLE items ALTER COLUMN sku TYPE varchar", "ALTER TABLE items ALTER COLUMN sku TYPE text",
				fmt.Sprintf("ALTER TABLE items ADD COLUMN extra_%d int", i), "SELECT pg_reload_conf()",
			}[rand.IntN(5)]
			if rand.IntN(12) == 0 { // the breaker keeps callers from a server that fails more often
				sql = "SELECT pg_terminate_backend(pid) " + mine
			}
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	for range callers {
		all.Go(func() {
			for range each {
				q := queries[rand.IntN(len(queries))]
				ctx, leave := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(50))*time.Millisecond)
				if rand.IntN(2) == 0 {
					ctx, leave = context.WithTimeout(context.Background(), patience)
				}
				rows, err := o.Fetch(ctx, q, "")
				switch {
				case err == nil && !slices.Equal(rows.Rows, want[q]):
					t.Errorf("%s: %d rows, want %d, or others", describe(q), len(rows.Rows), len(want[q]))
				case err != nil && !errors.Is(err, page.ErrTimeout) && !errors.Is(err, page.ErrUnavailable) && !errors.Is(err, page.ErrOverloaded) &&
					postgres.Code(err) != "0A000":
					t.Errorf("%s: %v", describe(q), err)
				case err != nil && strings.Contains(err.Error(), postgres.ErrProtocol.Error()):
					t.Errorf("%s: %v", describe(q), err)
				}
				leave()
			}
		})
	}
	all.Wait()
	close(over)
	weather.Wait()
	eventually(t, "rest", func() bool { return atRest(t, o, db, conn) })
	for _, q := range queries {
		var rows page.Read
		eventually(t, "fair weather", func() (ok bool) {
			var err error
			rows, err = o.Fetch(within(t, patience), q, "")
			return err == nil
		})
		if !slices.Equal(rows.Rows, want[q]) {
			t.Errorf("afterwards: %s: %d rows", describe(q), len(rows.Rows))
		}
	}
}
