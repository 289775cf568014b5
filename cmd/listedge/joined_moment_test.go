package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A page that is joined of pages from several moments must show one state of the table. One
// writer changes two rows in each transaction, near and far from each other, and records the
// state after it. Each page must be that of one recorded state, and of a recent one.
func TestAJoinedPageIsOfOneMoment(t *testing.T) {
	t.Parallel()
	const transactions, least = 250, 200
	db := database(t)
	workspace, key := workspaceWithKey(t, db)
	node := startNode(t, db)
	within(t, patience, "followed", func() bool { return node.mode() == "followed" })
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	w := &momentWriter{random: rand.New(rand.NewPCG(seed, 1)), workspace: uuid.MustParse(workspace)}
	conn := connect(t, db)
	w.write(t, conn, func(state []momentRow) []momentRow {
		for i := range 60 {
			state = append(state, momentRow{ID: uuid.New(), Created: int64(i)})
		}
		return state
	})
	writing := make(chan struct{})
	var joined atomic.Int64
	var readers sync.WaitGroup
	for i := range uint64(4) {
		readers.Go(func() {
			r := &momentReader{momentWriter: w, node: node, key: key, random: rand.New(rand.NewPCG(seed, 2+i))}
			for {
				select {
				case <-writing:
					return
				default:
				}
				status, err := r.read()
				if err != nil {
					t.Error(err)
					return
				}
				if strings.Contains(status, "joined") {
					joined.Add(1)
				}
			}
		})
	}
	for n := 0; n < transactions || joined.Load() < least && n < 20*transactions && !t.Failed(); n++ {
		w.write(t, conn, w.change)
		time.Sleep(time.Duration(w.random.IntN(40)) * time.Millisecond)
	}
	close(writing)
	readers.Wait()
	t.Logf("%d pages were joined, among %d transactions", joined.Load(), len(w.states))
	if joined.Load() < least {
		t.Error("too few")
	}
}

type momentRow struct {
	ID      uuid.UUID
	Created int64 // milliseconds
	Version int
}

type momentWriter struct {
	random    *rand.Rand
	workspace uuid.UUID

	mu     sync.RWMutex // guards all below
	states [][]momentRow
	ended  []time.Time // of the transactions that led to the states; zero = under way
}

// momentZero is the createdAt of Created 0.
var momentZero = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// change changes two rows: their versions or their positions, or it inserts one and deletes
// another.
func (w *momentWriter) change(state []momentRow) []momentRow {
	a, b := w.random.IntN(len(state)), w.random.IntN(len(state))
	n := len(w.states)
	switch w.random.IntN(6) {
	case 0: // one is inserted at the head, one is deleted
		state = slices.Delete(state, b, b+1)
		return append(state, momentRow{ID: uuid.New(), Created: int64(1000 + n), Version: n})
	case 1:
		state[a].Created, state[b].Created = state[b].Created, state[a].Created
	}
	state[a].Version, state[b].Version = n, n
	return state
}

func (w *momentWriter) write(t *testing.T, conn *pgx.Conn, change func([]momentRow) []momentRow) {
	t.Helper()
	var before []momentRow
	if n := len(w.states); n > 0 {
		before = w.states[n-1]
	}
	after := change(slices.Clone(before))
	w.mu.Lock()
	w.states, w.ended = append(w.states, after), append(w.ended, time.Time{})
	w.mu.Unlock()
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range after {
		if !slices.Contains(before, row) {
			if _, err := tx.Exec(ctx, `INSERT INTO items (workspace_id, id, name, created_at, stock_on_hand) VALUES ($1, $2, 'x', $3, $4)
				ON CONFLICT (workspace_id, id) DO UPDATE SET created_at = EXCLUDED.created_at, stock_on_hand = EXCLUDED.stock_on_hand`,
				w.workspace, row.ID, momentZero.Add(time.Duration(row.Created)*time.Millisecond), row.Version); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, row := range before {
		if !slices.ContainsFunc(after, func(o momentRow) bool { return o.ID == row.ID }) {
			if _, err := tx.Exec(ctx, "DELETE FROM items WHERE workspace_id = $1 AND id = $2", w.workspace, row.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.ended[len(w.ended)-1] = time.Now()
	w.mu.Unlock()
}

// momentReader requests pages anywhere in the list.
type momentReader struct {
	*momentWriter
	node   *testNode
	key    string
	random *rand.Rand
	known  []momentCursor
}

type momentCursor struct {
	text string
	row  momentRow // that it is behind
}

func (r *momentReader) read() (status string, err error) {
	limit := 3 + r.random.IntN(15)
	path := fmt.Sprintf("/v1/items?limit=%d", limit)
	var after *momentRow
	if len(r.known) > 0 && r.random.IntN(10) > 0 {
		c := r.known[r.random.IntN(len(r.known))]
		path, after = path+"&cursor="+url.QueryEscape(c.text), &c.row
	}
	asked := time.Now()
	a, err := r.node.try("GET", path, r.key)
	if err != nil || a.StatusCode != 200 {
		return "", fmt.Errorf("%s: %v, %v", path, a, err)
	}
	status = cacheStatus(a.Header)
	var page struct {
		Data []struct {
			ID          uuid.UUID
			CreatedAt   time.Time
			StockOnHand int `json:",string"`
		}
		Page struct {
			HasMore    bool
			NextCursor string
		}
	}
	if err := json.Unmarshal(a.body, &page); err != nil {
		return "", err
	}
	var got []momentRow
	for _, row := range page.Data {
		got = append(got, momentRow{row.ID, row.CreatedAt.Sub(momentZero).Milliseconds(), row.StockOnHand})
	}
	if page.Page.HasMore {
		if r.known = append(r.known, momentCursor{page.Page.NextCursor, got[len(got)-1]}); len(r.known) > 30 {
			r.known = slices.Delete(r.known, 0, 1)
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := len(r.states) - 1; i >= 0; i-- {
		if want, more := momentPage(r.states[i], after, limit); slices.Equal(got, want) && more == page.Page.HasMore {
			return status, nil
		}
		if ended := r.ended[i]; !ended.IsZero() && asked.Sub(ended) > testBound {
			break
		}
	}
	want, _ := momentPage(r.states[len(r.states)-1], after, limit)
	return "", fmt.Errorf("%s: %s\n%v\nis of no moment; now it is\n%v", path, status, got, want)
}

// momentPage is the page of a state.
func momentPage(state []momentRow, after *momentRow, limit int) (rows []momentRow, more bool) {
	order := func(a, b momentRow) int {
		return -cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID.String(), b.ID.String()))
	}
	for _, row := range state {
		if after == nil || order(row, *after) > 0 {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, order)
	if len(rows) > limit {
		return rows[:limit], true
	}
	return rows, false
}
