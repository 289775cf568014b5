package edge

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	"listedge/stream"
)

// aKey is well-formed; no database knows it.
const aKey = "lk_00000000000000000000000000000000000iqUEf"

// hitServer answers from memory alone: its keys come from a function and its
// one page is already there.
func hitServer(t testing.TB, body string) (*Server, *fasthttp.RequestCtx) {
	t.Helper()
	s, ctx, _ := hitServerWith(t, body)
	return s, ctx
}

func hitServerWith(t testing.TB, body string) (*Server, *fasthttp.RequestCtx, *metrics.Registry) {
	t.Helper()
	registry := metrics.New("test")
	key := []byte(aKey)
	hash, ok := origin.HashKey(key)
	if !ok {
		t.Fatal("the test's key has a wrong checksum")
	}
	pages, err := cache.New(cache.Options{Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, FillTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	limits := limiter.New(limiter.Options{})
	k := origin.Key{ID: uuid.New(), Workspace: uuid.New(), Items: true, Contacts: true,
		Limit: origin.Limit{Set: true, Rate: 1e6, Burst: 1e6}, WorkspaceLimit: origin.Limit{Set: true, Rate: 1e6, Burst: 1e6}}
	s := New(Options{
		Cache: pages, Limiter: limits, Metrics: registry.Edge, Logger: slog.New(slog.DiscardHandler), Grace: time.Hour,
		Lookup: func(context.Context, []origin.KeyHash) (map[origin.KeyHash]origin.Key, error) {
			return map[origin.KeyHash]origin.Key{hash: k}, nil
		},
	})
	t.Cleanup(func() {
		_ = s.Shutdown(context.Background())
		_ = pages.Close(context.Background())
		_ = limits.Close(context.Background())
	})
	ctx := &fasthttp.RequestCtx{}
	ctx.Request.SetRequestURI("/v1/items?limit=20&sort=name&type=goods&stock=low")
	ctx.Request.Header.Set("X-API-Key", string(key))

	q := origin.Query{Workspace: k.Workspace, Limit: 20, Sort: origin.ByName, Type: origin.Goods, Stock: origin.Low}
	if _, err := pages.Forward(appendPageKey(nil, &q), stream.Pair{}, cache.Fill{Primary: func(context.Context, string) (cache.Filled, error) {
		return cache.Filled{Body: []byte(body), Next: "next"}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; { // the memory tier stores asynchronously
		s.handle(ctx)
		if status := string(ctx.Response.Header.Peek("Cache-Status")); status == string(statusByAge) {
			ctx.Response.Reset()
			return s, ctx, registry
		} else if time.Now().After(deadline) {
			t.Fatalf("no hit: %d %s %s", ctx.Response.StatusCode(), status, ctx.Response.Body())
		}
		ctx.Response.Reset()
	}
}
