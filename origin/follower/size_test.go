package follower

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/load"
)

// What the log takes in Redis for each row that a change names, of the sample data; -v
// prints it.
func TestWhatARowTakesInRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	const rows = 120
	must2(load.Seed(w.ctx(), w.url, load.SeedSpec{Workspaces: 1, Items: rows, Contacts: rows, Seed: 1}, nil))
	w.awaitFollowing(w.follow())
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'a')"))
	w.newChange()
	w.eventually("the order of names is known", func() bool {
		w.exec("UPDATE items SET name = name || 'b' WHERE name ~ '^ab*$'")
		return w.newChange().NameOrder != 0
	})
	w.exec("DELETE FROM items WHERE name ~ '^ab*$'")
	w.newChange()
	client := redis.NewClient(&redis.Options{Addr: sandboxtest.Redis(t).Addr()})
	t.Cleanup(func() { must(client.Close()) })
	in := changefeed.NewRedis(client, &changefeed.Followed{})
	size := func(entries []changefeed.Entry) int {
		must(client.FlushAll(w.ctx()).Err())
		must(in.Append(w.ctx(), "a", entries...))
		keys := must2(client.Keys(w.ctx(), "*").Result())
		if len(keys) != 1 {
			t.Fatal(keys)
		}
		return int(must2(client.MemoryUsage(w.ctx(), keys[0], 0).Result()))
	}
	for _, table := range []string{"items", "contacts"} {
		all := must2(pgx.CollectRows(must2(w.db.Query(w.ctx(), "SELECT id::text FROM "+table)), pgx.RowTo[string]))
		for _, c := range []struct {
			what, sql string
			each      int
		}{
			{"one a change", "UPDATE %s SET created_at = created_at + interval '1 s' WHERE id IN (%s)", 1},
			{"ten a change", "UPDATE %s SET created_at = created_at + interval '1 s' WHERE id IN (%s)", 10},
			{"60 a change", "UPDATE %s SET created_at = created_at + interval '1 s' WHERE id IN (%s)", 60},
			{"listed as before, one a change", "UPDATE %s SET active = active WHERE id IN (%s)", 1},
			{"gone, one a change", "DELETE FROM %s WHERE id IN (%s)", 1},
		} {
			var entries []changefeed.Entry
			var bare []changefeed.Entry // as they were without rows
			names, n := 0, 0
			for at := 0; at < rows; at += c.each {
				w.exec(fmt.Sprintf(c.sql, table, "'"+strings.Join(all[at:at+c.each], "', '")+"'"))
				change := w.newChange()
				for _, row := range change.RowsOf(0) {
					names, n = names+len(row.NameKey), n+1
				}
				entries = append(entries, changefeed.Entry{Position: changefeed.Position{Term: 1, N: uint64(len(entries) + 1)}, Change: &change})
				without := change
				without.Rows, without.NameOrder = nil, 0
				bare = append(bare, changefeed.Entry{Position: entries[len(entries)-1].Position, Change: &without})
			}
			if n != rows {
				t.Fatalf("%s, %s: %d rows are named", table, c.what, n)
			}
			takes, before := size(entries)/rows, size(bare)/rows
			t.Logf("%s, %s: %d bytes a row in Redis, of which %d are for naming it; the key of its name has %d", table, c.what, takes, takes-before, names/rows)
			if takes-before > 120 || takes > 300 {
				t.Errorf("%s, %s: %d bytes a row, of which %d are for naming it", table, c.what, takes, takes-before)
			}
		}
	}
}
