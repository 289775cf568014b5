package edge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/metrics"
)

func readAnswer(t testing.TB, r *bufio.Reader, method string) answered {
	t.Helper()
	got := must(http.ReadResponse(r, &http.Request{Method: method}))
	body := must(io.ReadAll(got.Body))
	if got.Header.Get("X-Content-Type-Options") != "nosniff" || got.Header.Get("X-Request-Id") == "" {
		t.Errorf("%d without a header of every response: %v", got.StatusCode, got.Header)
	}
	return answered{got.StatusCode, got.Header, string(body), got.Close}
}

// Each request of a pipeline gets its own response, complete, whatever the size of the
// response and the way in which it is written.
func TestPipelinedResponsesMatchTheirRequests(t *testing.T) {
	for _, size := range []int{10, 5 << 10, writeBuffer - 200, writeBuffer + 1, 1 << 20} {
		row := strings.Repeat("x", size)
		body := bodyOf(row)
		s, _ := hitServer(t, row)
		c, r := listening(t, s)
		etag := cache.TagOf([]byte(body)).String()
		steps := []struct {
			request string
			status  int
		}{
			{thePage, 200},
			{"HEAD" + thePage[3:], 200},
			{thePage + "If-None-Match: " + etag + "\r\n", 304},
			{"GET /nowhere HTTP/1.1\r\nHost: a\r\n", 404},
			{"GET /docs HTTP/1.1\r\nHost: a\r\n", 200},
			{"HEAD /openapi.json HTTP/1.1\r\nHost: a\r\n", 200},
			{"GET /openapi.json HTTP/1.1\r\nHost: a\r\n", 200},
			{thePage + "Accept-Encoding: gzip\r\n", 200},
			{thePage, 200},
		}
		var all bytes.Buffer
		for i, step := range steps {
			fmt.Fprintf(&all, "%sX-Request-Id: r%d\r\n\r\n", step.request, i)
		}
		go func() { _, _ = c.Write(all.Bytes()) }()
		for i, step := range steps {
			got := readAnswer(t, r, step.request[:strings.IndexByte(step.request, ' ')])
			id := fmt.Sprintf("r%d", i)
			if got.Status != step.status || got.Header("X-Request-Id") != id {
				t.Fatalf("%d bytes, %s: %d %v", size, id, got.Status, got.Head)
			}
			if want := body + `,"requestId":"` + id + `"}`; step.request == thePage && got.Body != want {
				t.Fatalf("%d bytes, %s: a body of %d bytes, want %d", size, id, len(got.Body), len(want))
			}
			if step.status == 304 && got.Header("Content-Length") != "" {
				t.Errorf("a 304 with Content-Length %s", got.Header("Content-Length"))
			}
		}
	}
}

// Responses that fasthttp makes itself may fill its buffer to any point. The headers of a
// page then come in parts.
func TestHeadersInPartsAreJoined(t *testing.T) {
	s, ctx := hitServer(t, "")
	for room := range 1200 {
		sent := ctx.Conn().(*conn).Conn.(*wire)
		sent.written = sent.written[:0]
		w := bufio.NewWriterSize(ctx.Conn(), writeBuffer)
		before := strings.Repeat("b", writeBuffer-room)
		must(w.WriteString(before))
		serveInto(t, s, ctx, w)
		rest, whole := strings.CutPrefix(string(sent.written), before)
		if !whole {
			t.Fatalf("%d bytes of room: what was written before is damaged", room)
		}
		if got := readAnswer(t, bufio.NewReader(strings.NewReader(rest)), "GET"); got.Status != 200 ||
			!strings.HasPrefix(got.Body, bodyOf("")+`,"requestId":"`) || !strings.HasSuffix(got.Body, `"}`) || got.Header("ETag") == "" {
			t.Fatalf("%d bytes of room: %q", room, rest)
		}
	}
}

// A response that fasthttp does not write leaves nothing behind.
func TestADroppedResponseIsNotSent(t *testing.T) {
	s, ctx := hitServer(t, "")
	s.handle(ctx)
	ctx.Response.Reset()
	sent := ctx.Conn().(*conn).Conn.(*wire)
	if sent.written = nil; ctx.Conn().(*conn).response.pending {
		t.Error("still to be sent")
	}
	if _, err := ctx.Conn().Write([]byte("raw")); err != nil || string(sent.written) != "raw" {
		t.Errorf("%q %v", sent.written, err)
	}
}

// A connection whose client does not read its response is closed, also if it is a page.
func TestAFailedWriteEndsTheConnection(t *testing.T) {
	s, ctx := hitServer(t, "")
	broken := newConn(brokenWire{&wire{}})
	request := &fasthttp.RequestCtx{}
	request.Init2(broken, nil, false)
	ctx.Request.CopyTo(&request.Request)
	s.handle(request)
	if err := request.Response.Write(bufio.NewWriterSize(broken, writeBuffer)); err == nil {
		t.Error("the failed write is not reported")
	}
	if broken.response.pending {
		t.Error("the answer is still to be sent")
	}
}

type brokenWire struct{ *wire }

func (brokenWire) Write([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// deadlineWire records the deadlines that are set.
type deadlineWire struct {
	wire
	read, write []time.Time
}

func (w *deadlineWire) SetReadDeadline(t time.Time) error {
	w.read = append(w.read, t)
	return nil
}

func (w *deadlineWire) SetWriteDeadline(t time.Time) error {
	w.write = append(w.write, t)
	return nil
}

func (w *deadlineWire) Read([]byte) (int, error) { return 0, io.EOF }

// A deadline expires at its time or up to a second later, whatever it was before. A
// deadline that moves with every request is rarely set on the socket.
func TestDeadlinesExpireOnTime(t *testing.T) {
	w := &deadlineWire{}
	c := &conn{Conn: w}
	start := time.Now()
	for i := range 3000 {
		now := start.Add(time.Duration(i) * time.Millisecond)
		for _, wait := range []time.Duration{idleTimeout, readTimeout} { // of which only the last counts at a Read
			_ = c.SetReadDeadline(now.Add(wait))
		}
		if i%1000 != 0 { // usually the request has already arrived
			_ = c.SetReadDeadline(now.Add(idleTimeout))
		}
		_, _ = c.Read(nil)
		want := now.Add(idleTimeout)
		if i%1000 == 0 {
			want = now.Add(readTimeout)
		}
		if late := w.read[len(w.read)-1].Sub(want); late < 0 || late > deadlineSlack {
			t.Fatalf("request %d: a Read's deadline is %v late", i, late)
		}
		_ = c.SetWriteDeadline(now.Add(writeTimeout))
		if late := w.write[len(w.write)-1].Sub(now.Add(writeTimeout)); late < 0 || late > deadlineSlack {
			t.Fatalf("request %d: a write's deadline is %v late", i, late)
		}
	}
	if len(w.read) > 10 || len(w.write) > 5 {
		t.Errorf("set %d and %d times in 3 s", len(w.read), len(w.write))
	}
	_ = c.SetWriteDeadline(time.Time{})
	_ = c.SetReadDeadline(time.Time{})
	_, _ = c.Read(nil)
	if !w.write[len(w.write)-1].IsZero() || !w.read[len(w.read)-1].IsZero() {
		t.Error("a deadline was not removed")
	}
}

// The response relies on how fasthttp writes a body stream, so a new version must
// be read first: Server.serveConn, Response.Write and writeBodyStream.
func TestFasthttpsVersion(t *testing.T) {
	const read = "v1.77.0"
	list := must(os.ReadFile("../go.mod"))
	if !bytes.Contains(list, []byte("\tgithub.com/valyala/fasthttp "+read+"\n")) {
		t.Errorf("the response in conn.go was written for fasthttp %s: read the new version, then change this test", read)
	}
}

// A long page goes out in parts: a slow client keeps no copy of all of it.
func TestALongPageGoesOutInParts(t *testing.T) {
	const row = 10_000
	for name, test := range map[string]struct{ rows, writes int }{
		"no row": {0, 1}, "as much as is sent at once": {maxCopied / row, 1}, "a row more": {maxCopied/row + 1, 2}, "a hundred": {100, 15},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := hitServer(t, "")
			var rows []list.Row
			for range test.rows {
				rows = append(rows, rowOf(strings.Repeat("x", row)))
			}
			entry := fillWithRows(t, s.Cache, page.Query{List: listtest.Items, Limit: page.MaxLimit}, rows...)
			w := &wire{}
			r := newConn(w).response.start(200)
			r.head, r.body, r.entry = []byte("HEAD\r\n\r\n"), true, entry
			r.setBody([]byte("tail"))
			must(0, r.send())
			body, _ := entry.AppendBody(nil, 0, math.MaxInt)
			if got := string(w.written); got != "HEAD\r\n\r\n"+string(body)+"tail" || len(body) != entry.Size || w.writes != test.writes {
				t.Errorf("%d bytes in %d writes, %.30s", len(got), w.writes, got)
			}
		})
	}
}

// failingListener fails a given number of times, then accepts, and so on.
type failingListener struct {
	net.Listener
	failures []int // before each connection
	tries    []time.Time
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.tries = append(l.tries, time.Now())
	switch {
	case len(l.failures) == 0:
		return nil, &net.OpError{Op: "accept", Err: net.ErrClosed}
	case l.failures[0] > 0:
		l.failures[0]--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	l.failures = l.failures[1:]
	return &wire{}, nil
}

// If Accept fails, the node tries again. Only a closed listener ends the node.
func TestAcceptIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Server{http: &fasthttp.Server{}, Options: Options{Metrics: metrics.New("test", "").Edge, MaxConnections: 100,
			Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		failing := &failingListener{failures: []int{3, 0, 2}}
		l := &limitedListener{Listener: failing, server: s, shortage: rate.Sometimes{Interval: shortageLog}}
		for i := range 3 {
			if _, err := l.Accept(); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("of a closed listener: %v", err)
		}
		var waits []time.Duration
		for i := range failing.tries[1:] {
			waits = append(waits, failing.tries[i+1].Sub(failing.tries[i]).Round(time.Millisecond))
		}
		want := []time.Duration{acceptRetry, acceptRetry, acceptRetry, 0, 0, acceptRetry, acceptRetry, 0}
		if !slices.Equal(waits, want) {
			t.Errorf("tried again after %v, want %v", waits, want)
		}
		// The second failure follows at once, so it is not logged again.
		if said := strings.Count(log.String(), "accept"); strings.Count(log.String(), "\n") != 1 || said == 0 {
			t.Errorf("logged: %s", log.String())
		}
		boottimetest.Pass(time.Minute)
		failing.failures = []int{3}
		if _, err := l.Accept(); err != nil || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("a minute later: %v, logged: %s", err, log.String())
		}
	})
}

// A document is not copied for a request.
func TestResponsesShareADocumentsBytes(t *testing.T) {
	s, _ := hitServer(t, "")
	c := newConn(&discarding{})
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(c, nil, false)
	ctx.Request.SetRequestURI("/docs/swagger-ui-bundle.js")
	get := func() {
		s.guard = newGuard()
		s.handle(ctx)
		if r := &c.response; r.status != 200 || r.size < 1<<20 {
			t.Fatalf("%d, %d bytes", r.status, r.size)
		}
		must(ctx.Response.WriteTo(c))
		ctx.Response.Reset()
	}
	get() // the first request has the document made
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const requests = 20
	for range requests {
		get()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / requests; each > 256<<10 { // the guard's own table included
		t.Errorf("%d bytes are allocated for a request", each)
	}
}

type discarding struct{ wire }

func (*discarding) Write(p []byte) (int, error) { return len(p), nil }

// However the bytes are cut, the line checker finds the same fault at the same byte.
func FuzzLines(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 3)
	f.Add("GET / HTTP/1.1\nHost: a\r\n\r\n", 14)
	f.Add("a\r\n b\r\n", 3)
	f.Add("Transfer-Encoding: x\r\n", 1)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		if cut < 0 || cut > len(text) {
			return
		}
		want := len(text)
		for i := range text {
			bare := text[i] == '\n' && (i == 0 || text[i-1] != '\r')
			folded := i > 0 && text[i-1] == '\n' && (text[i] == ' ' || text[i] == '\t')
			if bare || folded {
				want = i
				break
			}
		}
		var l lineChecker
		got := len(text)
		if n := l.check([]byte(text[:cut])); n < cut {
			got = n
		} else if n := l.check([]byte(text[cut:])); n < len(text)-cut {
			got = cut + n
		}
		if got != want {
			t.Errorf("%q cut at %d: good up to %d, want %d", text, cut, got, want)
		}
		if want == len(text) && strings.Contains(strings.ToLower(text), "\ntransfer-encoding:") && !l.encoding {
			t.Errorf("%q cut at %d: the coding is overlooked", text, cut)
		}
	})
}
