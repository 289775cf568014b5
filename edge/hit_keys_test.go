//go:build !race

package edge

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unique"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/metrics"
	"listedge/origin"
	"listedge/origin/apikey"
)

// BenchmarkHitKeys measures a hit while this many keys send requests in turn. Each key has a workspace
// and a page of its own, so most of them are not in the processor's cache.
func BenchmarkHitKeys(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, texts := hitServerOf(b, n)
			ctx := &fasthttp.RequestCtx{}
			ctx.Init2(newConn(&wire{}, s), nil, false)
			ctx.Request.SetRequestURI("/v1/items")
			w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
			i := 0
			hit := func() {
				ctx.Request.Header.SetBytesV("X-Api-Key", texts[i])
				if i++; i == len(texts) {
					i = 0
				}
				sent.written = sent.written[:0]
				serveInto(b, s, ctx, w)
			}
			for range 2 * n { // until caches are in their usual state
				hit()
			}
			runtime.GC()
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				hit()
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.StopTimer()
			for _, text := range texts[:10] { // all pages come from memory
				ctx.Request.Header.SetBytesV("X-Api-Key", text)
				if got := answerTo(b, s, ctx); !strings.HasPrefix(got.header("Cache-Status"), "listedge; hit; detail=memory; proof-ms=") {
					b.Fatalf("no hit: %+v", got)
				}
			}
		})
	}
}

// processorTime is the CPU time of the process, with all its goroutines.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// hitServerOf returns a server that follows changes and has a page in memory for each of n
// keys, and the keys in random order.
func hitServerOf(b *testing.B, n int) (*Server, [][]byte) {
	pages, err := cache.New(cache.Options{Memory: 1 << 30, TTL: time.Hour, MaxStale: time.Hour, FillTimeout: time.Second, Bound: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	const run = "2026-01-01 00:00:00+00"
	runHandle := unique.Make(run)
	keys := make(map[apikey.Hash]apikey.Key, n)
	s := serverOf(b, pages, metrics.New("test", "").Edge, func(_ context.Context, hashes []apikey.Hash, _ string) (map[apikey.Hash]apikey.Key, error) {
		found := make(map[apikey.Hash]apikey.Key, len(hashes))
		for _, h := range hashes {
			k := keys[h]
			k.Run = runHandle
			found[h] = k
		}
		return found, nil
	})
	for _, l := range []changefeed.Listener{pages, s.Keys()} { // as if there were no changes
		l.Reset("e", changefeed.ResetJoin)
		l.ValidThrough(changefeed.Proof{Moment: time.Now().Add(time.Hour), Server: "s/1", Run: run})
	}

	random := rand.New(rand.NewPCG(1, 2))
	texts := make([][]byte, n)
	for i := range n {
		texts[i] = []byte(apikey.Generate())
		hash, ok := apikey.HashOf(texts[i])
		if !ok {
			b.Fatalf("BUG: %s is no key", texts[i])
		}
		keys[hash] = apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Items: true, Limit: apikey.Limit{Set: true, Rate: 1e6, Burst: 1e6}}
	}
	fill := cache.Fill{Primary: func(context.Context, string) (cache.FillResult, error) {
		return cache.FillResult{Body: []byte(`{"data":[],"nextCursor":null`), Snapshot: "100:100:", Run: run}, nil
	}}
	var loading sync.WaitGroup
	const workers = 64 // look-ups and pages are stored in batches
	for w := range workers {
		loading.Go(func() {
			for i := w; i < n; i += workers {
				known, err := s.keys.Authenticate(b.Context(), texts[i], func() bool { return false })
				if err != nil {
					b.Error(err)
					return
				}
				q := origin.Query{Workspace: known.Key.Workspace, Limit: defaultLimit}
				if _, err := pages.Forward(appendPageKey(nil, &q, nil), changefeed.List{Workspace: q.Workspace}, fill); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	loading.Wait()
	random.Shuffle(n, func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	return s, texts
}
