package edge

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"os"
	"strings"
	"testing"
)

// start begins thePage's request with another target and version, and its
// header lines.
func start(target, version string) string {
	return "GET " + target + " " + version + "\r\nHost: a\r\nX-API-Key: " + aKey + "\r\n"
}

const goodEnd = "\r\n"

// refusals are requests that are not valid HTTP, or not clearly. Each gets one response with
// this status, and then its connection is closed.
var refusals = []struct {
	name, request string
	status        int
}{
	{"LF ends all lines", strings.ReplaceAll(thePage+goodEnd, "\r\n", "\n"), 400},
	{"LF ends a header line", strings.Replace(thePage, "Host: a\r\n", "Host: a\n", 1) + goodEnd, 400},
	{"LF ends the head, and another request follows", thePage + "\n" + thePage + goodEnd, 400},
	{"LF before the request", "\n" + thePage + goodEnd, 400},
	{"bare CR in the request line", strings.Replace(thePage+goodEnd, " HTTP", "\r HTTP", 1), 400},
	{"bare CR in a value", thePage + "X-A: a\rb\r\n" + goodEnd, 400},
	{"NUL in a value", thePage + "X-A: a\x00b\r\n" + goodEnd, 400},
	{"folded value, space", thePage + "X-A: a\r\n b\r\n" + goodEnd, 400},
	{"space before the first header line", strings.Replace(thePage, "\r\n", "\r\n ", 1) + goodEnd, 400},
	{"space before the colon", thePage + "X-A : a\r\n" + goodEnd, 400},
	{"space in a name", thePage + "X A: a\r\n" + goodEnd, 400},
	{"8-bit byte in a name", thePage + "X\xe4: a\r\n" + goodEnd, 400},
	{"no colon", thePage + "X-A\r\n" + goodEnd, 400},

	{"length and chunked", thePage + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 413},
	{"length 0 and chunked", thePage + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 413},
	{"length and chunked on a POST", "POST" + thePage[3:] + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 405},
	{"length and identity", thePage + "Content-Length: 5\r\nTransfer-Encoding: identity\r\n" + goodEnd, 413},
	{"length 0 and identity", thePage + "Content-Length: 0\r\nTransfer-Encoding: identity\r\n" + goodEnd, 400},
	{"identity and length 0", thePage + "Transfer-Encoding: identity\r\nContent-Length: 0\r\n" + goodEnd, 400},
	{"identity", thePage + "Transfer-Encoding: identity\r\n" + goodEnd + thePage + goodEnd, 400},
	{"identity in another case, first", strings.Replace(thePage, "Host", "transfer-ENCODING:Identity \r\nHost", 1) + goodEnd, 400},
	{"identity on a POST", "POST" + thePage[3:] + "transfer-encoding: identity\r\n" + goodEnd, 400},
	{"identity nowhere", "GET /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n" + goodEnd, 400},
	{"identity among names like it", thePage + "TE: a\r\nTransfer-Encodings: x\r\nTransfer-Encoding: identity\r\nTran: x\r\n" + goodEnd, 400},
	{"chunked and length", thePage + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n" + goodEnd + "0\r\n\r\n", 413},
	{"CHUNKED", thePage + "TRANSFER-ENCODING: CHUNKED \r\n" + goodEnd + "0\r\n\r\n" + thePage + goodEnd, 413},
	{"chunked, identity", thePage + "Transfer-Encoding: chunked, identity\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"xchunked", thePage + "Transfer-Encoding: xchunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"no coding", thePage + "Transfer-Encoding:\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"space before the colon of a coding", thePage + "Transfer-Encoding : chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"folded coding", thePage + "Transfer-Encoding:\r\n chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"chunked and identity", thePage + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"identity and chunked", thePage + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"identity in HTTP/1.0", start(theTarget, "HTTP/1.0") + "Transfer-Encoding: identity\r\n" + goodEnd, 400},
	{"length +5", thePage + "Content-Length: +5\r\n" + goodEnd + "12345", 400},
	{"list of lengths", thePage + "Content-Length: 5, 5\r\n" + goodEnd + "12345", 400},
	{"length 005", thePage + "Content-Length: 005\r\n" + goodEnd + "12345", 413},
	{"empty length", thePage + "Content-Length:\r\n" + goodEnd, 400},
	{"space before the colon of a length", thePage + "Content-Length : 5\r\n" + goodEnd + "12345", 400},
	{"gzip, chunked", thePage + "Transfer-Encoding: gzip, chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"chunked twice", thePage + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"chunked in HTTP/1.0", start(theTarget, "HTTP/1.0") + "Transfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 400},
	{"length -1", thePage + "Content-Length: -1\r\n" + goodEnd, 400},
	{"length 0x1", thePage + "Content-Length: 0x1\r\n" + goodEnd + "x", 400},
	{"lengths that differ", thePage + "Content-Length: 0\r\nContent-Length: 1\r\n" + goodEnd + "x", 400},
	{"lengths that agree", thePage + "Content-Length: 0\r\nContent-Length: 0\r\n" + goodEnd, 400},
	{"length beyond 64 bits", thePage + "Content-Length: 18446744073709551616\r\n" + goodEnd, 400},
	{"huge length", thePage + "Content-Length: 1000000000000\r\n" + goodEnd, 413},
	{"body on a GET", thePage + "Content-Length: 5\r\n" + goodEnd + "0\r\n\r\n", 413},
	{"body of one byte", thePage + "Content-Length: 1\r\n" + goodEnd + "x", 413},
	{"body that does not come", thePage + "Content-Length: 1\r\n" + goodEnd, 413},
	{"chunked body", thePage + "Transfer-Encoding: chunked\r\n" + goodEnd + "0\r\n\r\n", 413},
	{"chunked body that does not come", thePage + "Transfer-Encoding: chunked\r\n" + goodEnd, 413},
	{"body of lines on a POST", "POST" + thePage[3:] + "Content-Length: 5\r\n" + goodEnd + "{\n }\n", 405},
	{"body on a DELETE, nowhere", "DELETE /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 404},
	{"chunked POST", "POST" + thePage[3:] + "Transfer-Encoding: chunked\r\n" + goodEnd + "5\r\n{\n }\n\r\n0\r\n\r\n", 405},
	{"expectation of a body", thePage + "Expect: 100-continue\r\nContent-Length: 5\r\n" + goodEnd, 413},
	{"expectation of a POST", "POST" + thePage[3:] + "Expect: 100-continue\r\nContent-Length: 5\r\n" + goodEnd, 405},

	{"HTTP/0.9", start(theTarget, "HTTP/0.9") + goodEnd, 400},
	{"HTTP/1.2", start(theTarget, "HTTP/1.2") + goodEnd, 505},
	{"HTTP/9.9", start(theTarget, "HTTP/9.9") + goodEnd, 505},
	{"HTTP/2", start(theTarget, "HTTP/2") + goodEnd, 400},
	{"http/1.1", start(theTarget, "http/1.1") + goodEnd, 400},
	{"no version", "GET " + theTarget + "\r\n\r\n", 400},
	{"two spaces before the target", start(" "+theTarget, "HTTP/1.1") + goodEnd, 400},
	{"space in the target", start("/v1/items?search=a b", "HTTP/1.1") + goodEnd, 400},
	{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
	{"not HTTP", "\x16\x03\x01\x00\xa5\r\n\r\n", 400},

	{"fragment", start("/v1/items?limit=1#&sort=bad", "HTTP/1.1") + goodEnd, 400},
	{"control character", start("/v1/items?search=\x01", "HTTP/1.1") + goodEnd, 400},
	{"8-bit byte", start("/v1/items?search=\x80", "HTTP/1.1") + goodEnd, 400},
	{"UTF-8 in a long target", start("/v1/items?search=aaaaaaaaaaaaaaaaaa\u00e4", "HTTP/1.1") + goodEnd, 400},
	{"empty target", start("", "HTTP/1.1") + goodEnd, 400},
	{"target without a slash", start("v1/items", "HTTP/1.1") + goodEnd, 400},
	{"asterisk", start("*", "HTTP/1.1") + goodEnd, 400},
	{"ftp target", start("ftp://a/v1/items", "HTTP/1.1") + goodEnd, 400},
	{"scheme and path", start("http:/v1/items", "HTTP/1.1") + goodEnd, 400},
	{"no authority", start("http:///v1/items", "HTTP/1.1") + goodEnd, 400},
	{"userinfo", start("http://user:password@a/v1/items", "HTTP/1.1") + goodEnd, 400},
	{"backslash in the authority", start(`http://a\b/v1/items`, "HTTP/1.1") + goodEnd, 400},
	{"authority of a CONNECT", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 400},

	{"no Host", "GET " + theTarget + " HTTP/1.1\r\nX-API-Key: " + aKey + "\r\n\r\n", 400},
	{"empty Host", strings.Replace(thePage, "Host: a", "Host:", 1) + goodEnd, 400},
	{"Host twice", thePage + "Host: a\r\n" + goodEnd, 400},
	{"userinfo in Host", strings.Replace(thePage, "Host: a", "Host: a@b", 1) + goodEnd, 400},
	{"path in Host", strings.Replace(thePage, "Host: a", "Host: a/v1", 1) + goodEnd, 400},
	{"two ports in Host", strings.Replace(thePage, "Host: a", "Host: a:1:2", 1) + goodEnd, 400},
}

// oneRefusal reads responses to the end of the connection. It expects this many pages, then
// the refusal, and nothing after it.
func oneRefusal(t *testing.T, r *bufio.Reader, pages, status int) {
	t.Helper()
	for range pages {
		if got := readAnswer(t, r, "GET"); got.Status != 200 {
			t.Errorf("the good request: %+v", got)
		}
	}
	got := readAnswer(t, r, "GET")
	code := "REQUEST_FAILED"
	if status == 404 {
		code = "NOT_FOUND"
	}
	if got.Status != status || !strings.Contains(got.Body, `"code":"`+code+`"`) || !strings.Contains(got.Body, got.Header("X-Request-Id")) || !got.Closes {
		t.Errorf("%+v, want %d %s", got, status, code)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

// An invalid request gets one response, at once (after the read timeout it would be a 408),
// and its connection is closed.
func TestInvalidRequestsAreRefused(t *testing.T) {
	s, _ := hitServer(t, "")
	for kind, secure := range map[string]*tls.Config{"plain": nil, "TLS": certificate(t)} {
		dial := served(t, s, secure)
		for _, c := range refusals {
			for name, before := range map[string]string{"alone": "", "pipelined": thePage + goodEnd} {
				t.Run(kind+"/"+c.name+"/"+name, func(t *testing.T) {
					conn := dial(t)
					send(conn, before+c.request)
					oneRefusal(t, bufio.NewReader(conn), strings.Count(before, "GET"), c.status)
				})
			}
		}
	}
}

// The same holds wherever the client's bytes are cut into segments.
func TestInvalidRequestsInTwoSegmentsAreRefused(t *testing.T) {
	s, _ := hitServer(t, "")
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			s.guard = newGuard() // which limits 404s
			for _, before := range []string{"", thePage + goodEnd} {
				all := before + c.request
				for cut := range all {
					w := &spoken{chunks: [][]byte{[]byte(all[:cut]), []byte(all[cut:])}, end: os.ErrDeadlineExceeded}
					if cut == 0 {
						w.chunks = w.chunks[1:]
					}
					oneRefusal(t, converse(s, w), strings.Count(before, "GET"), c.status)
					if t.Failed() {
						t.Fatalf("cut at %d of %q", cut, all)
					}
				}
			}
		})
	}
}

// An unusual but valid request is answered like any other, and the connection stays open.
func TestUnusualButValidRequests(t *testing.T) {
	s, _ := hitServer(t, "")
	conn, r := listening(t, s)
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"an empty line before the request", "\r\n" + thePage + goodEnd, 200},
		{"absolute target", start("http://a"+theTarget, "HTTP/1.1") + goodEnd, 200},
		{"absolute target of another host", start("HTTPS://b:8443"+theTarget, "HTTP/1.1") + goodEnd, 200},
		{"two slashes and an address within", start("//a"+theTarget+"&search=://", "HTTP/1.1") + goodEnd, 404},
		{"an address within", start(theTarget+"&search=http://b/c", "HTTP/1.1") + "Cache-Control: only-if-cached\r\n" + goodEnd, 504},
		{"question marks", start(theTarget+"&search=?", "HTTP/1.1") + "Cache-Control: only-if-cached\r\n" + goodEnd, 504},
		{"percent-encoded number sign", start(theTarget+"&search=%23", "HTTP/1.1") + "Cache-Control: only-if-cached\r\n" + goodEnd, 504},
		{"HTTP/1.0", start(theTarget, "HTTP/1.0") + "Connection: keep-alive\r\n" + goodEnd, 200},
		{"IPv6 in Host", strings.Replace(thePage, "Host: a", "Host: [::1]:8080", 1) + goodEnd, 200},
		{"length 0", thePage + "Content-Length: 0\r\n" + goodEnd, 200},
		{"no space behind a colon", thePage + "X-A:a\r\n" + goodEnd, 200},
		{"8-bit bytes in a value", thePage + "X-A: \u00e4\xff\r\n" + goodEnd, 200},
		{"empty value", thePage + "X-A:\r\n" + goodEnd, 200},
		{"names that begin like a coding's", thePage + "TE: trailers\r\nTran: x\r\nTransfer-Encodings: x\r\n" + goodEnd, 200},
		{"upgrade", thePage + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" + goodEnd, 200},
		{"TRACE", "TRACE" + thePage[3:] + goodEnd, 405},
	} {
		send(conn, c.request)
		if got := readAnswer(t, r, "GET"); got.Status != c.status || got.Closes {
			t.Fatalf("%s: %+v, want %d", c.name, got, c.status)
		}
	}
}

// A request with Expect: 100-continue and without a body gets 100, and then its page.
func TestAnExpectationWithoutABody(t *testing.T) {
	s, _ := hitServer(t, "")
	for _, length := range []string{"", "Content-Length: 0\r\n"} {
		conn, r := listening(t, s)
		send(conn, thePage+length+"Expect: 100-continue\r\n"+goodEnd)
		interim, err := r.ReadString('\n')
		if err != nil || interim != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q %v", interim, err)
		}
		must(r.ReadString('\n'))
		if got := readAnswer(t, r, "GET"); got.Status != 200 || got.Closes {
			t.Fatalf("%q: %+v", length, got)
		}
	}
}

// A client that is still sending when it is refused gets the response: the connection is
// not reset.
func TestARefusalReachesASendingClient(t *testing.T) {
	s, _ := hitServer(t, "")
	dial := served(t, s, nil)
	for range 20 {
		conn := dial(t)
		body := bytes.Repeat([]byte("line\r\n"), 5000)
		go func() {
			send(conn, "POST"+thePage[3:]+"Content-Length: 30000\r\n"+goodEnd)
			_, _ = conn.Write(body)
		}()
		oneRefusal(t, bufio.NewReader(conn), 0, 405)
	}
}
