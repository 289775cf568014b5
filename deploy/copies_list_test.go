package deploy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
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

	mu        sync.Mutex          // guards what follows
	disturbed map[string]bool     // rows that came, went or moved since the round began
	held      map[string][]string // names that rows have had since then
}

func newWatchedList(t *testing.T, f *fleet, rows int) *watchedList {
	t.Helper()
	db := must1(pgxpool.New(t.Context(), f.postgres.URL("postgres")))
	t.Cleanup(db.Close)
	l := &watchedList{db: db, node: f.nodes[0], disturbed: map[string]bool{}, held: map[string][]string{}}
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

// names are those of the active rows in the database, by id.
func (l *watchedList) names(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	rows := must1(l.db.Query(t.Context(), "SELECT id::text, name FROM items WHERE workspace_id = $1 AND active", l.workspace))
	var id, name string
	must1(pgx.ForEachRow(rows, []any{&id, &name}, func() error { names[id] = name; return nil }))
	return names
}

// somewhere picks rows of the list: $2 is a random number below one.
const somewhere = `workspace_id = $1 AND created_at < (SELECT created_at FROM items WHERE workspace_id = $1
	ORDER BY created_at OFFSET floor($2::float8 * (SELECT count(*) FROM items WHERE workspace_id = $1)) LIMIT 1)`

// disturb makes one change at random.
func (l *watchedList) disturb(t *testing.T, random *rand.Rand) {
	one := `id = (SELECT id FROM items WHERE ` + somewhere + ` ORDER BY created_at DESC, id LIMIT 1)`
	few := `id IN (SELECT id FROM items WHERE ` + somewhere + ` ORDER BY created_at DESC, id LIMIT 7)`
	back := "timestamptz '2020-01-01' - $2 * interval '60 days'"
	insert := "INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'new', "
	kinds := []string{ // $3 is a new name
		"UPDATE items SET name = $3 WHERE " + one, "UPDATE items SET name = $3 WHERE " + few,
		insert + "now() WHERE $2::float8 >= 0", insert + "now() FROM generate_series(1, 12) WHERE $2::float8 >= 0",
		insert + back, insert + back + " FROM generate_series(1, 12)",
		"UPDATE items SET active = NOT active WHERE " + one, "UPDATE items SET active = NOT active WHERE " + few,
		"UPDATE items SET active = true WHERE NOT active AND workspace_id = $1 AND $2::float8 >= 0",
		"DELETE FROM items WHERE " + one, "DELETE FROM items WHERE " + few,
		"UPDATE items SET created_at = now() WHERE " + one, "UPDATE items SET created_at = created_at - interval '20 days' WHERE " + few,
	}
	kind := kinds[random.IntN(len(kinds))]
	named := strings.Contains(kind, "$3")
	l.mu.Lock()
	defer l.mu.Unlock()
	name, arguments := fmt.Sprint("name ", random.Int64()), []any{l.workspace, random.Float64()}
	if named {
		arguments = append(arguments, name)
	}
	for _, id := range l.change(t, kind, arguments...) {
		if named {
			l.held[id] = append(l.held[id], name)
		} else {
			l.disturbed[id] = true
		}
	}
}

// keepsInStep: after a round without changes the copy is the list. In a round with changes
// between its requests, each row that was active throughout is in the copy
// once, as it was at some moment of the round.
func keepsInStep(t *testing.T, f *fleet, start starter) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	list := newWatchedList(t, f, 60)
	between := startBetween(t, f)
	sync := start(t, copied{address: between.URL, key: list.key, list: pagesOf5})
	rows := func() map[string]item {
		t.Helper()
		r := sync(t)
		if r.Problem != nil {
			t.Fatalf("%+v", *r.Problem)
		}
		return r.byID(t)
	}
	for range 12 {
		for range random.IntN(4) {
			list.disturb(t, random)
		}
		if random.IntN(4) == 0 { // the whole list
			listedge(t, f.env, "purge", "--workspace", list.workspace)
		}
		list.awaitVisible()
		before := list.names(t)
		list.mu.Lock()
		clear(list.disturbed)
		clear(list.held)
		list.mu.Unlock()
		between.mu.Lock()
		between.answer = func(_ int, w http.ResponseWriter) bool {
			if random.IntN(4) == 0 {
				list.disturb(t, random)
			}
			return false
		}
		between.mu.Unlock()
		copied := rows()
		for id, name := range before {
			if row, there := copied[id]; !list.disturbed[id] && (!there || row.Name != name && !slices.Contains(list.held[id], row.Name)) {
				t.Errorf("row %s was active throughout as %q, then %q; the copy has %v %q", id, name, list.held[id], there, row.Name)
			}
		}

		between.mu.Lock()
		between.answer = nil
		between.mu.Unlock()
		list.awaitVisible()
		if !reflect.DeepEqual(rows(), list.rows(t)) {
			t.Error("after a round without changes the copy is not the list")
		}
		between.requests()
		rows()
		if n := len(between.requests()); n != 1 {
			t.Errorf("a round without a change takes %d requests", n)
		}
		if t.Failed() {
			return
		}
	}
}
