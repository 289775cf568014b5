package edge

import (
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// BenchmarkHit prints the CPU time of a hit beside the kernel's work: from the bytes of a request to those of its response,
// on a connection in memory. The floor is a fasthttp handler that sends status, type, length and body. The two take turns in
// short rounds. x-floor is the median of the rounds' ratios, which a noisy machine leaves alone.
//
//	go test -run '^$' -bench Hit ./edge
func BenchmarkHit(b *testing.B) {
	for _, c := range []struct {
		name, header string // of the request
		rows         int
	}{{"22kB", "", 50}, {"4kB", "", 10}, {"gzip", "Accept-Encoding: gzip\r\n", 50}, {"304", "If-None-Match: *\r\n", 50}} {
		b.Run(c.name, func(b *testing.B) {
			s, _ := hitServer(b, "")
			q, _ := parseText(listtest.Items, "limit="+strconv.Itoa(c.rows))
			q.Tenant = listtest.ID(7)
			text := `{"name":"` + strings.Repeat("A name of an item. ", 20) + `"}`
			entry := fillWithRows(b, s.Cache, q, slices.Repeat([]list.Row{rowOf(text)}, c.rows)...)
			size := entry.Size
			if c.name == "gzip" {
				size = len(entry.Deflate())
			}
			body, floor := make([]byte, size), &fasthttp.Server{ReadBufferSize: readBuffer, MaxRequestBodySize: 1,
				NoDefaultServerHeader: true, NoDefaultDate: true, LazyRequestTime: true}
			floor.Handler = func(ctx *fasthttp.RequestCtx) {
				if c.name == "304" {
					ctx.SetStatusCode(fasthttp.StatusNotModified)
					return
				}
				ctx.SetContentType("application/json")
				ctx.SetBody(body)
			}
			request := "GET /v1/items?limit=" + strconv.Itoa(c.rows) + " HTTP/1.1\r\nHost: a\r\nX-API-Key: " + aKey + "\r\n" + c.header + "\r\n"
			var ours, bare, ratios []float64
			for b.Loop() {
				o, f := cpuOf(b, s.http, request, true), cpuOf(b, floor, request, false)
				ours, bare, ratios = append(ours, o), append(bare, f), append(ratios, o/f)
			}
			for unit, of := range map[string][]float64{"ns/hit": ours, "ns/floor": bare, "x-floor": ratios} {
				slices.Sort(of)
				b.ReportMetric(of[len(of)/2], unit)
			}
			b.ReportMetric(0, "ns/op") // of a round: it says nothing
		})
	}
}

// cpuOf is the CPU time, in nanoseconds, that a server takes for a request: the mean of a round on one connection.
func cpuOf(b *testing.B, s *fasthttp.Server, request string, ours bool) float64 {
	const requests = 2000
	feed := &feed{request: request, left: requests}
	var c net.Conn = feed
	if ours {
		c = newConn(feed)
	}
	var before, after syscall.Rusage
	must(0, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
	if err := s.ServeConn(c); err != nil || feed.answers != requests {
		b.Fatalf("%v: %d answers", err, feed.answers)
	}
	must(0, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	return float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / requests
}

// feed is a connection on which the request comes so many times, each when the one before it is answered.
type feed struct {
	net.Conn
	request       string
	left, answers int
}

func (f *feed) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	f.left--
	return copy(p, f.request), nil
}

func (f *feed) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p[:min(len(p), 10)]), "HTTP/1.1 ") {
		f.answers++
	}
	return len(p), nil
}

func (*feed) Close() error                     { return nil }
func (*feed) LocalAddr() net.Addr              { return loopback }
func (*feed) RemoteAddr() net.Addr             { return loopback }
func (*feed) SetReadDeadline(time.Time) error  { return nil }
func (*feed) SetWriteDeadline(time.Time) error { return nil }
func (*feed) SetDeadline(time.Time) error      { return nil }
