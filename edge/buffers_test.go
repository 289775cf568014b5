package edge

import (
	"io"
	"strings"
	"testing"
)

// A request has at most 100 header lines.
func TestTooManyHeaders(t *testing.T) {
	for _, c := range []struct {
		name, method, rest string
		status             int
	}{
		{"100", "GET", headerLines(98, 8) + "\r\n", 200}, // with Host and key
		{"101", "GET", headerLines(99, 8) + "\r\n", 431},
		{"101, HEAD", "HEAD", headerLines(99, 8) + "\r\n", 431},
		{"3,200", "GET", headerLines(3200, 4) + "\r\n", 431},
	} {
		s, _ := hitServer(t, "")
		conn, r := listening(t, s)
		send(conn, c.method+thePage[3:]+c.rest)
		got := readAnswer(t, r, c.method)
		if got.Status != c.status {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.status == 200 {
			continue
		}
		if named := strings.Contains(got.Body, `"REQUEST_FAILED"`); named != (c.method == "GET") {
			t.Errorf("%s: %q", c.name, got.Body)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection is still open (%v)", c.name, err)
		}
	}
}

// A request whose buffers are dropped is answered like any other, and so is the
// one after it.
func TestRequestsAfterALargeOne(t *testing.T) {
	for name, large := range map[string]string{
		"header":  thePage + headerLines(90, 160),
		"cookies": thePage + "Cookie: a=b\r\n",
		"HEAD":    "HEAD" + thePage[3:] + headerLines(90, 160),
	} {
		s, _ := hitServer(t, "")
		conn, r := listening(t, s)
		for i, request := range []string{thePage, large, thePage, large + "X-Request-Id: mine\r\n", thePage} {
			send(conn, request+"\r\n")
			method, _, _ := strings.Cut(request, " ")
			got := readAnswer(t, r, method)
			if got.Status != 200 || method == "GET" && !strings.HasPrefix(got.Body, bodyOf("")+`,"requestId":"`) ||
				strings.Contains(request, "mine") != (got.Header("X-Request-Id") == "mine") {
				t.Errorf("%s, request %d: %+v", name, i, got)
			}
		}
	}
}

// A client that closes its half of the connection right after a request gets the response,
// and then the end of the connection.
func TestARequestThatEndsItsConnection(t *testing.T) {
	for before := range 3 { // requests
		s, _ := hitServer(t, "")
		c, r := listening(t, s)
		for range before {
			send(c, thePage+"\r\n")
			readAnswer(t, r, "GET")
		}
		send(c, thePage+"\r\n")
		_ = c.CloseWrite()
		if got := readAnswer(t, r, "GET"); got.Status != 200 {
			t.Errorf("after %d: %+v", before, got)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after %d: %q, %v", before, rest, err)
		}
	}
}
