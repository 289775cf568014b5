//go:build !race

package edge

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/tracing"
	"listedge/origin/apikey"
)

// A hit allocates nothing until its last byte is written, with key, two limits, a quota,
// parameters, metrics and all headers. (The race detector allocates, hence the build tag.)
func TestAHitAllocatesNothing(t *testing.T) {
	body := `{"data":[` + strings.Repeat(" ", 20_000) + `]`
	s, ctx := hitServer(t, body)
	giveQuota(t, s, apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Month})
	for _, c := range []struct {
		name, header, value string
		status              int
	}{
		{"identity", "Accept", "*/*", 200},
		{"gzip", "Accept-Encoding", "gzip, br", 200},
		{"not modified", "If-None-Match", cache.TagOf([]byte(body)).String(), 304},
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

// A hit over TCP allocates nothing, from the first byte of the request to the last of the
// response.
func TestAHitOverTCPAllocatesNothing(t *testing.T) {
	s, _ := hitServer(t, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	c, _ := listening(t, s)
	request, end, answer := []byte(thePage+"X-Request-Id: mine\r\n\r\n"), []byte(`"requestId":"mine"}`), make([]byte, 64<<10)
	if n := testing.AllocsPerRun(1000, func() {
		_, err := c.Write(request)
		for n, got := 0, 0; err == nil && !bytes.HasSuffix(answer[:n], end); n += got {
			got, err = c.Read(answer[n:])
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHit(b *testing.B) {
	s, ctx := hitServer(b, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	benchmarkHit(b, s, ctx)
}

func BenchmarkHitTimed(b *testing.B) {
	s, ctx := hitServer(b, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	s.timePhases, s.serverTiming = true, true
	benchmarkHit(b, s, ctx)
}

// With tracing on: all hits are sampled, or one in a hundred.
func BenchmarkHitTraced(b *testing.B) {
	for _, ratio := range []string{"1", "0.01"} {
		b.Run(ratio, func(b *testing.B) {
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			defer collector.Close()
			b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
			b.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
			b.Setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
			tracer, err := tracing.New(b.Context(), "test", slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = tracer.Close(context.Background()) }()
			s, ctx := hitServer(b, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
			s.timePhases, s.tracer = true, tracer
			benchmarkHit(b, s, ctx)
		})
	}
}

func benchmarkHit(b *testing.B, s *Server, ctx *fasthttp.RequestCtx) {
	w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
	b.ReportAllocs()
	for b.Loop() {
		sent.written = sent.written[:0]
		serveInto(b, s, ctx, w)
	}
}
