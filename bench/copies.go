package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	copies "listedge/docs/clients/go"
	"listedge/origin/admin"
)

// copiedItems is how many items the list has of which a client keeps a copy.
const copiedItems = 100_000

// withoutETags is a round of a client that has no copy yet.
const withoutETags = "a walk without ETags, of cached pages"

// measureCopies prints what a client of docs/clients costs that keeps a copy of
// a list in step, after changes of several kinds.
func measureCopies(ctx context.Context, s *subject, r *report) error {
	i := slices.IndexFunc(s.sizes, func(size sized) bool { return size.items == copiedItems })
	if i < 0 {
		return fmt.Errorf("no workspace has %d items", copiedItems)
	}
	workspace := s.sizes[i].workspace
	rate, burst := 1e-3, int32(1_000_000) // so that what is missing of the burst was spent
	key := must1(s.admin.CreateKey(ctx, admin.Key{WorkspaceID: workspace, RatePerSecond: &rate, Burst: &burst}, nil))
	node := must1(s.startFollower(ctx))
	defer node.end()

	wire := newWire()
	reader := &copies.Client{URL: "http://" + node.address, Key: key.Key, HTTP: &http.Client{Transport: wire}}
	items := copies.NewItems(reader)
	t := r.table(fmt.Sprintf("A copy of %d items: what a round costs after a change", copiedItems),
		"change", "rows that changed, were removed", "requests", "of these 304", "tokens", "queries", "kB received", "CPU of the node, against the first walk",
		"time, against the first walk")
	var first [2]time.Duration
	const (
		update = "UPDATE items SET stock_on_hand = stock_on_hand + 1 WHERE workspace_id = $1 AND id = ANY($2)"
		remove = "UPDATE items SET active = false WHERE workspace_id = $1 AND id = ANY($2)"
		insert = "INSERT INTO items (workspace_id, name, created_at) SELECT $1, 'New, after ' || id, " +
			"clock_timestamp() + interval '50 years' FROM unnest($2::uuid[]) id"
	)
	for n, c := range []struct {
		what, statement string
		rows, at        int // rows that change, and how many of them in a transaction
	}{
		{"a first walk, of a list that is not cached", "", 0, 1},
		{"none", "", 0, 1},
		{"10 rows, anywhere", update, 10, 10},
		{"1,000 rows, anywhere, one after the other", update, 1000, 1},
		{"1,000 rows, anywhere, in one transaction", update, 1000, 1000},
		{"10 new rows", insert, 10, 10},
		{"10 rows removed, anywhere", remove, 10, 10},
		{"none, after all of these", "", 0, 1},
		{withoutETags, "", 0, 1},
	} {
		rows := must1(s.db.Query(ctx, "SELECT id FROM items WHERE workspace_id = $1 AND active ORDER BY md5(id::text) LIMIT $2", workspace, c.rows))
		ids := must1(pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]))
		for some := range slices.Chunk(ids, c.at) {
			must1(s.db.Exec(ctx, c.statement, workspace, some))
		}
		if c.what == withoutETags {
			items = copies.NewItems(reader)
		}
		time.Sleep(time.Second) // the node has the change
		const fetched = `listedge_origin_fetches_total{outcome="ok"}`
		queries, began := node.metric(fetched), time.Now()
		wire.received.Store(0)
		left := wire.left.Load()
		var found copies.Round[copies.Item]
		var took time.Duration
		used, err := node.spent(func() (err error) {
			found, err = items.Round(ctx)
			took = time.Since(began)
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			first, left = [2]time.Duration{used, took}, int64(burst)
		}
		t.add(c.what, fmt.Sprintf("%d, %d", len(found.Changed), len(found.Removed)), strconv.Itoa(found.Requests), strconv.Itoa(found.Unchanged),
			strconv.FormatInt(left-wire.left.Load(), 10), fmt.Sprint(node.metric(fetched)-queries), strconv.FormatInt(wire.received.Load()/1000, 10),
			fmt.Sprintf("%.2f", used.Seconds()/first[0].Seconds()), fmt.Sprintf("%.2f", took.Seconds()/first[1].Seconds()))
	}
	return nil
}

// wire sends a client's requests and notes what comes back.
type wire struct {
	*http.Transport
	received atomic.Int64 // bytes
	left     atomic.Int64 // tokens of the key
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
	response, err := w.Transport.RoundTrip(request)
	if err == nil {
		if left, err := strconv.ParseInt(response.Header.Get("X-RateLimit-Remaining"), 10, 64); err == nil {
			w.left.Store(left)
		}
	}
	return response, err
}
