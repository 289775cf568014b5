//go:build !race

package edge

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"listedge/cache"
)

// A hit allocates nothing, with key, two limits, parameters, metrics and all
// headers on, until its last byte is written. (The race detector allocates, so this is for `go test` without.)
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
		if got := answerTo(t, s, ctx); got.status != c.status {
			t.Fatalf("%s: %+v", c.name, got)
		}
		w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
		run := func() {
			sent.written = sent.written[:0]
			serveInto(t, s, ctx, w)
		}
		if n := testing.AllocsPerRun(1000, run); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	s, ctx := hitServer(b, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
	b.ReportAllocs()
	for b.Loop() {
		sent.written = sent.written[:0]
		serveInto(b, s, ctx, w)
	}
}
