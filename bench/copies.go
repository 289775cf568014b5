package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	copies "listedge/docs/clients/go"
)

const (
	copiedItems = 100_000          // of the list of which clients keep a copy
	copiedAfter = 10 * time.Second // how long rows change at a steady rate before a round
)

// copiedItem is what the client keeps of an item.
type copiedItem struct {
	ID, Name, StockOnHand string
	CreatedAt             time.Time
}

// measureCopies prints what it costs to keep a copy of a list in step after changes of several kinds: by rounds, as the
// client of docs/clients does it, and by a walk that sends the ETag of each page.
func measureCopies(ctx context.Context, s *subject, r *report) error {
	i := slices.IndexFunc(s.sizes, func(size sized) bool { return size.items == copiedItems })
	if i < 0 {
		return fmt.Errorf("no workspace has %d items", copiedItems)
	}
	workspace := s.sizes[i].workspace
	key := must1(s.newKey(ctx, workspace))
	node := must1(s.startFollower(ctx))
	defer func() { node.end() }()

	wire := newWire()
	tracking := &copies.Client{Key: key, HTTP: &http.Client{Transport: wire}}
	items := copies.NewMemory(func(i copiedItem) string { return i.ID })
	walk := &walkedCopy{key: key, wire: wire, etags: map[string]string{}, next: map[string]string{}}
	t := r.table(fmt.Sprintf("A copy of %d items: what a round costs, and a walk with the ETag of each page", copiedItems),
		"change", "requests of a round", "kB", "statements", "CPU of the node, ms", "requests of a walk", "kB", "statements", "CPU of the node, ms")
	const (
		update = "UPDATE items SET stock_on_hand = stock_on_hand + 1 WHERE workspace_id = $1 AND id = ANY($2)"
		remove = "UPDATE items SET active = false WHERE workspace_id = $1 AND id = ANY($2)"
		insert = "INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'New, after ' || id, " +
			"clock_timestamp() + interval '50 years' FROM unnest($2::uuid[]) id"
	)
	for _, c := range []struct {
		what, statement string
		rows            int
		every           time.Duration // 0 = all rows change in one transaction
		restart         bool
	}{
		{what: "the first"},
		{what: "none"},
		{what: "10 rows, anywhere", statement: update, rows: 10},
		{what: "10 rows removed, anywhere", statement: remove, rows: 10},
		{what: "10 new rows", statement: insert, rows: 10},
		{what: fmt.Sprintf("10 rows a second, for %s", copiedAfter), statement: update, rows: 100, every: time.Second / 10},
		{what: fmt.Sprintf("1,000 rows a second, for %s", copiedAfter), statement: update, rows: 10_000, every: time.Second / 1000},
		{what: "none, after a restart of the node", restart: true},
	} {
		rows := must1(s.db.Query(ctx, "SELECT id FROM items WHERE workspace_id = $1 AND active ORDER BY md5(id::text) LIMIT $2", workspace, c.rows))
		ids := must1(pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]))
		at, began := len(ids), time.Now()
		if c.every > 0 {
			at = max(1, int(100*time.Millisecond/c.every)) // ten transactions a second
		}
		if c.restart {
			node.end()
			node = must1(s.startFollower(ctx))
		}
		for n := 0; n < len(ids); n += at {
			time.Sleep(time.Until(began.Add(time.Duration(n) * c.every)))
			must1(s.db.Exec(ctx, c.statement, workspace, ids[n:min(n+at, len(ids))]))
		}
		time.Sleep(time.Second) // the node has the change
		tracking.URL, walk.url = "http://"+node.address, "http://"+node.address
		cells := []string{c.what}
		for _, bring := range []func() error{
			func() error { return copies.Sync(ctx, tracking, "/v1/items", items) },
			func() error { return walk.bring(ctx) },
		} {
			statements := node.metric(fetched)
			wire.received.Store(0)
			wire.requests.Store(0)
			used := must1(node.spent(bring))
			cells = append(cells, strconv.FormatInt(wire.requests.Load(), 10), fmt.Sprintf("%.1f", float64(wire.received.Load())/1000),
				fmt.Sprint(node.metric(fetched)-statements), fmt.Sprintf("%.1f", used.Seconds()*1000))
		}
		t.add(cells...)
	}
	return nil
}

// walkedCopy is a copy that is kept in step by walks. It keeps ETags and cursors, which decide what a walk costs.
type walkedCopy struct {
	url, key    string
	wire        *wire
	etags, next map[string]string // by the cursor of a page
}

func (w *walkedCopy) bring(ctx context.Context) error {
	for cursor, more := "", true; more; more = cursor != "" {
		query := url.Values{"limit": {"100"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		request := must1(http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/items?"+query.Encode(), nil))
		request.Header.Set("X-API-Key", w.key)
		if w.etags[cursor] != "" {
			request.Header.Set("If-None-Match", w.etags[cursor])
		}
		response, err := (&http.Client{Transport: w.wire}).Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		switch response.StatusCode {
		case http.StatusNotModified:
		case http.StatusOK:
			var said struct {
				Page struct{ NextCursor string }
			}
			if err := json.Unmarshal(body, &said); err != nil {
				return err
			}
			w.etags[cursor], w.next[cursor] = response.Header.Get("ETag"), said.Page.NextCursor
		default:
			return fmt.Errorf("%s: %s", response.Status, body)
		}
		cursor = w.next[cursor]
	}
	return nil
}

// wire sends a client's requests and counts them, and the bytes that come back.
type wire struct {
	*http.Transport
	received, requests atomic.Int64
}

func newWire() *wire {
	w := &wire{}
	w.Transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &counter{conn, &w.received}, err
	}}
	return w
}

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	w.requests.Add(1)
	return w.Transport.RoundTrip(request)
}
