package edge

import (
	"compress/gzip"
	"io"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// ask sends the server a request on a connection of its own, with the headers' names and values.
func ask(t *testing.T, s *Server, method, target string, headers ...string) answered {
	t.Helper()
	request := method + " " + target + " HTTP/1.1\r\nHost: a\r\n"
	for i := 0; i < len(headers); i += 2 {
		request += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	return readAnswer(t, converse(s, &spoken{chunks: [][]byte{[]byte(request + "\r\n")}}), method)
}

// stopGuard stops the clock by which clients without a valid key are limited, until the test moves it.
func stopGuard(s *Server) (move func(time.Duration)) {
	now := time.Now()
	s.guard.now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

const theBundle = "/docs/swagger-ui-bundle.js"

// The two forms of a document are the same text, and Content-Length is right for each.
func TestADocumentIsServedInTwoForms(t *testing.T) {
	s, _ := hitServer(t, "")
	for path := range documents(s.Lists) {
		plain, compressed := ask(t, s, "GET", path), ask(t, s, "GET", path, "Accept-Encoding", "br, gzip")
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

// All requests that need no key take tokens from one bucket of their client's address, which a trusted
// proxy names.
func TestPublicResponsesAreLimited(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/nowhere", 404},
		{"GET", "/openapi.json", 200},
		{"GET", theBundle, 200},
	} {
		s, _ := hitServer(t, "")
		move := stopGuard(s)
		tokens := 1 + len(ask(t, s, c.method, c.path).Body)>>16 // one for each 64 KiB
		move(time.Hour)
		answers := 0
		got := ask(t, s, c.method, c.path)
		for ; got.Status == c.status && answers <= publicBurst; got = ask(t, s, c.method, c.path) {
			answers++
		}
		if answers != publicBurst/tokens {
			t.Errorf("%s %s: %d answers at once, want %d", c.method, c.path, answers, publicBurst/tokens)
		}
		retry, err := time.ParseDuration(got.Header("Retry-After") + "s")
		if got.Status != 429 || !strings.Contains(got.Body, `"RATE_LIMITED"`) || err != nil || retry < time.Second {
			t.Errorf("%s %s: %+v (%v)", c.method, c.path, got, err)
		}
		for range publicBurst / tokens { // refused requests take no tokens
			ask(t, s, c.method, c.path)
		}
		if got := ask(t, s, "GET", theTarget, "X-API-Key", aKey); got.Status != 200 {
			t.Errorf("the same client with a key: %+v", got)
		}
		for trusted, want := range map[string]int{"192.0.2.0/24": 429, "127.0.0.0/8": c.status} { // the peer is 127.0.0.1
			s.networks = []netip.Prefix{netip.MustParsePrefix(trusted)}
			if got := ask(t, s, c.method, c.path, "X-Forwarded-For", "198.51.100.7"); got.Status != want {
				t.Errorf("%s %s for another client, from %s: %d, want %d", c.method, c.path, trusted, got.Status, want)
			}
		}
		if move(retry); ask(t, s, c.method, c.path).Status != c.status {
			t.Errorf("%s %s: still refused after %s", c.method, c.path, retry)
		}
	}
}

// A browser that opens the page again and again is not limited, nor is a monitor that runs
// for years.
func TestBrowsersAndMonitorsAreNotLimited(t *testing.T) {
	s, _ := hitServer(t, "")
	move := stopGuard(s)
	for i := range 20 {
		for path := range documents(s.Lists) {
			if got := ask(t, s, "GET", path, "Accept-Encoding", "gzip"); got.Status != 200 {
				t.Fatalf("load %d, %s: %d", i, path, got.Status)
			}
		}
		move(time.Second)
	}
	for i := range 2000 {
		if got := ask(t, s, "GET", "/openapi.json"); got.Status != 200 {
			t.Fatalf("look %d: %d", i, got.Status)
		}
		move(200 * time.Millisecond)
	}
}

func TestDocsCanBeTurnedOff(t *testing.T) {
	s, _ := hitServer(t, "")
	off := New(Options{Lists: s.Lists, Limiter: s.Limiter, Metrics: s.Metrics, Logger: s.Logger, NoDocs: true})
	defer off.Keys.Close()
	for _, path := range []string{"/docs", theBundle} {
		if got := ask(t, off, "GET", path); got.Status != 404 || !strings.Contains(got.Body, `"NOT_FOUND"`) {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := ask(t, off, "GET", "/openapi.json"); got.Status != 200 || got.Body != ask(t, s, "GET", "/openapi.json").Body {
		t.Errorf("/openapi.json: %d", got.Status)
	}
}

// asset finds the addresses that the page loads.
var asset = regexp.MustCompile(`(?:src|href|action)\s*=\s*["']?([^"'\s>]+)`)

// The page of the reference loads what it shows from this node alone.
func TestServeDocs(t *testing.T) {
	s, _ := hitServer(t, "")
	page := ask(t, s, "GET", "/docs")
	if page.Status != 200 || page.Header("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(page.Body, `url: "openapi.json"`) {
		t.Fatalf("%+v", page)
	}
	const closed = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
	if policy := page.Header("Content-Security-Policy"); !strings.HasPrefix(policy, closed) || strings.Contains(policy, "unsafe") {
		t.Errorf("the browser may load from elsewhere: %s", policy)
	}
	if !strings.Contains(page.Body, "persistAuthorization: remembersKey()") {
		t.Error("a key is stored, or never is")
	}
	found := asset.FindAllStringSubmatch(page.Body, -1)
	if len(found) < 5 {
		t.Errorf("it loads only %d things", len(found))
	}
	base := &url.URL{Scheme: "http", Host: "node", Path: "/docs"}
	for _, f := range found {
		at, err := base.Parse(f[1])
		if err != nil || at.Host != "node" || f[1][0] == '/' || !strings.HasPrefix(at.Path, "/docs/") {
			t.Errorf("it loads %s from elsewhere (%v)", f[1], err)
			continue
		}
		got := ask(t, s, "GET", at.Path, "Range", "bytes=0-1", "If-Match", `"other"`)
		etag, kind := got.Header("ETag"), got.Header("Content-Type")
		if got.Status != 200 || !strings.HasPrefix(etag, `W/"`) || etag[len(etag)-1] != '"' || got.Header("Vary") == "" && strings.HasSuffix(at.Path, "s") {
			t.Errorf("%s in part: %d, validator %s", at.Path, got.Status, etag)
		}
		if strings.HasSuffix(at.Path, ".js") != strings.Contains(kind, "javascript") || strings.HasSuffix(at.Path, ".css") != strings.Contains(kind, "css") {
			t.Errorf("%s: %s", at.Path, kind)
		}
		if again := ask(t, s, "GET", at.Path, "If-None-Match", etag); again.Status != 304 || again.Body != "" || again.Header("Cache-Control") == "" {
			t.Errorf("%s again: %d, %d bytes", at.Path, again.Status, len(again.Body))
		}
		if got := ask(t, s, "HEAD", at.Path); got.Status != 200 || got.Body != "" {
			t.Errorf("HEAD %s: %d, %d bytes", at.Path, got.Status, len(got.Body))
		}
	}
}
