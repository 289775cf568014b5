package edge

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/apikey"
)

// followedPages is a cache that follows a log of changes, which the test writes.
type followedPages struct {
	*cache.Cache
	xid   atomic.Uint64 // of the next transaction
	fills map[string]*atomic.Int64
}

func (p *followedPages) change(list changefeed.List) {
	xid := p.xid.Add(1) - 1
	p.Changed(changefeed.Position{Term: 1, N: xid}, &changefeed.Change{XID: xid, Lists: []changefeed.List{list}})
}

// fill is a fill whose statement sees all changes up to now.
func (p *followedPages) fill(key []byte) cache.Fill {
	return cache.Fill{Primary: func(context.Context, string) (cache.FillResult, error) {
		p.fills[string(key)].Add(1)
		return cache.FillResult{Body: []byte(`{"data":[]`), Snapshot: fmt.Sprintf("%d:%d:", p.xid.Load(), p.xid.Load())}, nil
	}}
}

// A request that the limiter refuses does not keep a page hot: it would be read again
// after every change, for a client that is served nothing.
func TestRefusedRequestsAreNotPopularity(t *testing.T) {
	pages := &followedPages{fills: map[string]*atomic.Int64{}}
	pages.Cache = must(cache.New(cache.Options{Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, FillTimeout: time.Hour, Bound: time.Hour}))
	pages.xid.Store(100)
	pages.Reset("e", changefeed.ResetJoin)
	pages.ValidThrough(changefeed.Proof{Moment: time.Now(), At: changefeed.Position{Term: 1, N: 1}, First: changefeed.Position{Term: 1, N: 1}})

	hash, _ := apikey.HashOf([]byte(aKey))
	k := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Scopes: 1 << lists.Items, Limit: apikey.Limit{Set: true, Rate: 0, Burst: 1}}
	s := serverOf(t, pages.Cache, metrics.New("test", "").Edge, func(context.Context, []apikey.Hash, string) (map[apikey.Hash]apikey.Key, error) {
		return map[apikey.Hash]apikey.Key{hash: k}, nil
	})
	refused, served := origin.Query{Workspace: k.Workspace, Limit: 20}, origin.Query{Workspace: k.Workspace, Limit: 21}
	list := listOf(&refused)
	request := func(q *origin.Query) {
		t.Helper()
		key := appendPageKey(nil, q, nil)
		if r, ok := pages.Hit(key, time.Now()); ok {
			r.CountRequest()
		} else if _, err := pages.Forward(key, list, pages.fill(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []*origin.Query{&refused, &served} {
		pages.fills[string(appendPageKey(nil, q, nil))] = &atomic.Int64{}
		for range 100 {
			request(q)
		}
	}
	pages.change(list)
	request(&refused) // both are hot from here on
	request(&served)
	for range 100 {
		request(&served)
	}
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(newConn(&wire{}, s), nil, false)
	ctx.Request.SetRequestURI("/v1/items?limit=20")
	ctx.Request.Header.Set("X-API-Key", aKey)
	ctx.Request.Header.Set("If-None-Match", cache.TagOf([]byte(`{"data":[]`)).String())
	for range 100 {
		if got := answerTo(t, s, ctx); got.status != 429 {
			t.Fatalf("%+v", got)
		}
	}
	pages.change(list)
	sandboxtest.Within(t, time.Minute, "the page that is served is refreshed", func() bool { return pages.Stats().Refreshes > 0 })
	if err := pages.Close(context.Background()); err != nil { // waits for refreshes
		t.Fatal(err)
	}
	for q, want := range map[*origin.Query]int64{&refused: 2, &served: 3} {
		if n := pages.fills[string(appendPageKey(nil, q, nil))].Load(); n != want {
			t.Errorf("limit %d: %d queries, not %d", q.Limit, n, want)
		}
	}
}
