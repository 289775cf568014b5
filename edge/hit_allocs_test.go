//go:build !race

package edge

import (
	"strings"
	"testing"
)

// A hit allocates nothing, with key, two limits, parameters, metrics and all
// headers on. (The race detector allocates, so this is for `go test` without.)
func TestAHitAllocatesNothing(t *testing.T) {
	s, ctx := hitServer(t, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	for name, set := range map[string]func(){
		"identity":     func() {},
		"gzip":         func() { ctx.Request.Header.Set("Accept-Encoding", "gzip, br") },
		"not modified": func() { ctx.Request.Header.Set("If-None-Match", string(ctx.Response.Header.Peek("ETag"))) },
	} {
		set()
		run := func() {
			ctx.Response.Reset()
			s.handle(ctx)
		}
		run()
		if status := ctx.Response.StatusCode(); status != 200 && status != 304 {
			t.Fatalf("%s: %d %s", name, status, ctx.Response.Body())
		}
		if n := testing.AllocsPerRun(1000, run); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	s, ctx := hitServer(b, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	b.ReportAllocs()
	for b.Loop() {
		ctx.Response.Reset()
		s.handle(ctx)
	}
}
