//go:build !race

package edge

import (
	"strings"
	"testing"
	"time"

	"listedge/cache"
)

// A hit allocates nothing, with key, two limits, parameters, metrics and all
// headers on. (The race detector allocates, so this is for `go test` without.)
func TestAHitAllocatesNothing(t *testing.T) {
	body := `{"data":[` + strings.Repeat(" ", 20_000) + `]`
	s, ctx := hitServer(t, body)
	for _, c := range []struct {
		name, header, value string
		status              int
	}{
		{"identity", "Accept", "*/*", 200},
		{"gzip", "Accept-Encoding", "gzip, br", 200},
		{"not modified", "If-None-Match", cache.NewPage([]byte(body), "", time.Now()).ETag, 304},
	} {
		ctx.Request.Header.Set(c.header, c.value)
		run := func() {
			ctx.Response.Reset()
			s.handle(ctx)
		}
		run()
		if status := ctx.Response.StatusCode(); status != c.status {
			t.Fatalf("%s: %d %s", c.name, status, ctx.Response.Body())
		}
		if n := testing.AllocsPerRun(1000, run); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
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
