package deploy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watchedList is the items of a workspace of its own, which a test changes.
type watchedList struct {
	db             *pgxpool.Pool
	node           *node
	workspace, key string
	seeded         []string // ids as inserted, newest first
}

func newWatchedList(t *testing.T, f *fleet, rows int) *watchedList {
	t.Helper()
	db := must1(pgxpool.New(t.Context(), f.postgres.URL("postgres")))
	t.Cleanup(db.Close)
	l := &watchedList{db: db, node: f.nodes[0]}
	var made struct{ ID string }
	must(json.Unmarshal([]byte(listedge(t, f.env, "workspaces", "create", "--name", t.Name(), "--json")), &made))
	l.workspace = made.ID
	l.key = listedge(t, f.env, "keys", "create", "--workspace", l.workspace, "--rate", "100000", "--burst", "100000")
	l.seeded = l.change(t, `INSERT INTO items (workspace_id, name, created_at)
		SELECT $1, 'Item ' || n, timestamptz '2020-01-01' - n * interval '1 day' FROM generate_series(1, $2) n`, l.workspace, rows)
	return l
}

// change runs a statement and returns the ids of the rows that it touched.
func (l *watchedList) change(t *testing.T, statement string, arguments ...any) (ids []string) {
	t.Helper()
	rows := must1(l.db.Query(t.Context(), statement+" RETURNING id::text", arguments...))
	return must1(pgx.CollectRows(rows, pgx.RowTo[string]))
}

// visibleAfter is the node's --freshness-bound: no page that inTime returns omits a commit of
// longer ago, however slow the machine.
const visibleAfter = 200 * time.Millisecond

// awaitVisible waits until each page shows all changes.
func (l *watchedList) awaitVisible() { time.Sleep(visibleAfter) }

// rows are the active rows by id, by the plainest walk.
func (l *watchedList) rows(t *testing.T) map[string]item {
	t.Helper()
	rows := map[string]item{}
	for next := new(string); next != nil; {
		r := must1(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.node.public+"/v1/items?limit=100"+*next, nil))
		r.Header.Set("X-API-Key", l.key)
		answer, body, err := inTime(r)
		must(err)
		var page struct {
			Data []item
			Page struct{ NextCursor *string }
		}
		if answer.StatusCode != http.StatusOK || json.Unmarshal(body, &page) != nil {
			t.Fatalf("%s: %s", answer.Status, body)
		}
		for _, row := range page.Data {
			rows[row.Id] = row
		}
		if next = page.Page.NextCursor; next != nil {
			*next = "&cursor=" + *next
		}
	}
	return rows
}

var passOn = &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: patience}

// inTime sends a request until the answer came in time for the node. A busy machine may not read a page, or look up a
// key, in time: then the node answers 503, or with an older page that it marks as stale.
func inTime(r *http.Request) (answer *http.Response, body []byte, err error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // the machine has others to serve
		if answer, err = passOn.Do(r); err != nil {
			return nil, nil, err
		}
		body, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		late := answer.StatusCode == http.StatusServiceUnavailable || strings.Contains(answer.Header.Get("Cache-Status"), "stale-if-error")
		if err != nil || !late || time.Since(began) > patience {
			return answer, body, err
		}
	}
}
