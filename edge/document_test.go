package edge

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// askKeyless sends the server a request without a key.
func askKeyless(t *testing.T, s *Server, method, path string, header ...string) answered {
	t.Helper()
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(newConn(&wire{}), nil, false)
	ctx.Request.Header.SetMethod(method)
	ctx.Request.SetRequestURI(path)
	for i := 0; i < len(header); i += 2 {
		ctx.Request.Header.Set(header[i], header[i+1])
	}
	return answerTo(t, s, ctx)
}

// stopGuard stops the guard's clock until the test moves it.
func stopGuard(s *Server) (move func(time.Duration)) {
	now := time.Now()
	s.guard.now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

const theBundle = "/docs/swagger-ui-bundle.js"

// The two forms of a document are the same text, and Content-Length is right for each.
func TestADocumentIsServedInTwoForms(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	for path := range documents() {
		plain, compressed := askKeyless(t, s, "GET", path), askKeyless(t, s, "GET", path, "Accept-Encoding", "br, gzip")
		if plain.Status != 200 || plain.Header("Content-Encoding") != "" || plain.Header("ETag") != compressed.Header("ETag") {
			t.Errorf("%s: %d %v, %d %v", path, plain.Status, plain.Head, compressed.Status, compressed.Head)
		}
		r, err := gzip.NewReader(strings.NewReader(compressed.Body))
		if err != nil {
			t.Fatal(path, err)
		}
		const head = 64 // bytes by which the form of an image may be longer
		if text, err := io.ReadAll(r); err != nil || string(text) != plain.Body || len(compressed.Body) > len(plain.Body)+head {
			t.Errorf("%s: %d bytes, of which %d arrive compressed (%v)", path, len(plain.Body), len(text), err)
		}
	}
}

// A document is not copied for a request.
func TestResponsesShareADocumentsBytes(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	c := newConn(&discarding{})
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(c, nil, false)
	ctx.Request.SetRequestURI(theBundle)
	get := func() {
		s.guard = newGuard()
		s.handle(ctx)
		if r := &c.response; r.status != 200 || r.size < 1<<20 {
			t.Fatalf("%d, %d bytes", r.status, r.size)
		}
		must(ctx.Response.WriteTo(c))
		ctx.Response.Reset()
	}
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

// All requests that need no key take tokens from one bucket of their client's address, which a trusted
// proxy names.
func TestPublicResponsesAreLimited(t *testing.T) {
	for _, c := range []struct {
		method, path string
		tokens       int
		status       int
	}{
		{"GET", "/nowhere", 1, 404},
		{"GET", openAPIPath, 1 + len(documents()[openAPIPath].identity)/documentUnit, 200},
		{"GET", theBundle, 1 + len(documents()[theBundle].identity)/documentUnit, 200},
	} {
		s, keyed := hitServer(t, `{"data":[]`)
		move := stopGuard(s)
		answers := 0
		got := askKeyless(t, s, c.method, c.path)
		for ; got.Status == c.status && answers <= publicBurst; got = askKeyless(t, s, c.method, c.path) {
			answers++
		}
		if answers != publicBurst/c.tokens {
			t.Errorf("%s %s: %d answers at once, want %d", c.method, c.path, answers, publicBurst/c.tokens)
		}
		retry, err := time.ParseDuration(got.Header("Retry-After") + "s")
		if got.Status != 429 || !strings.Contains(got.Body, `"RATE_LIMITED"`) || err != nil || retry < time.Second {
			t.Errorf("%s %s: %+v (%v)", c.method, c.path, got, err)
		}
		for range publicBurst / c.tokens { // refused requests take no tokens
			askKeyless(t, s, c.method, c.path)
		}
		if got := answerTo(t, s, keyed); got.Status != 200 {
			t.Errorf("the same client with a key: %+v", got)
		}
		for trusted, want := range map[string]int{"192.0.2.0/24": 429, "127.0.0.0/8": c.status} { // the peer is 127.0.0.1
			s.Proxies = []netip.Prefix{netip.MustParsePrefix(trusted)}
			if got := askKeyless(t, s, c.method, c.path, "X-Forwarded-For", "198.51.100.7"); got.Status != want {
				t.Errorf("%s %s for another client, from %s: %d, want %d", c.method, c.path, trusted, got.Status, want)
			}
		}
		if move(retry); askKeyless(t, s, c.method, c.path).Status != c.status {
			t.Errorf("%s %s: still refused after %s", c.method, c.path, retry)
		}
	}
}

// A browser that opens the page again and again is not limited, nor is a monitor that runs
// for years.
func TestBrowsersAndMonitorsAreNotLimited(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	move := stopGuard(s)
	for i := range 20 {
		for path := range documents() {
			if got := askKeyless(t, s, "GET", path, "Accept-Encoding", "gzip"); got.Status != 200 {
				t.Fatalf("load %d, %s: %d", i, path, got.Status)
			}
		}
		move(time.Second)
	}
	for i := range 2000 {
		if got := askKeyless(t, s, "GET", "/openapi.json"); got.Status != 200 {
			t.Fatalf("look %d: %d", i, got.Status)
		}
		move(200 * time.Millisecond)
	}
}

func TestDocsCanBeTurnedOff(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	off := New(Options{Limiter: s.Limiter, Metrics: s.Metrics, Logger: s.Logger, NoDocs: true})
	defer off.Keys.Close()
	for _, path := range []string{"/docs", theBundle} {
		if got := askKeyless(t, off, "GET", path); got.Status != 404 || !strings.Contains(got.Body, `"NOT_FOUND"`) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := askKeyless(t, off, "GET", "/openapi.json"); got.Status != 200 || !bytes.Equal([]byte(got.Body), documents()[openAPIPath].identity) {
		t.Errorf("/openapi.json: %d", got.Status)
	}
}
