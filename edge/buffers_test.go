package edge_test

import (
	"io"
	"strings"
	"testing"

	"listedge/edge"
)

// A request has at most 100 header lines.
func TestTooManyHeaders(t *testing.T) {
	for _, c := range []struct {
		name, method, rest string
		status             int
	}{
		{"100", "GET", edge.HeaderLines(98, 8) + "\r\n", 200}, // with Host and key
		{"101", "GET", edge.HeaderLines(99, 8) + "\r\n", 431},
		{"101, HEAD", "HEAD", edge.HeaderLines(99, 8) + "\r\n", 431},
		{"3,200", "GET", edge.HeaderLines(3200, 4) + "\r\n", 431},
	} {
		s, _ := edge.HitServer(t, `{"data":[]`)
		conn, r := edge.Listening(t, s)
		_, _ = io.WriteString(conn, c.method+edge.TheRequest[3:]+c.rest)
		got, text := read(t, r, c.method)
		if got.StatusCode != c.status {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.status == 200 {
			continue
		}
		if named := strings.Contains(text, `"REQUEST_FAILED"`); named != (c.method == "GET") {
			t.Errorf("%s: %q", c.name, text)
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
		"header":  edge.TheRequest + edge.HeaderLines(90, 160),
		"cookies": edge.TheRequest + "Cookie: a=b\r\n",
		"HEAD":    "HEAD" + edge.TheRequest[3:] + edge.HeaderLines(90, 160),
	} {
		s, _ := edge.HitServer(t, `{"data":[]`)
		conn, r := edge.Listening(t, s)
		for i, request := range []string{edge.TheRequest, large, edge.TheRequest, large + "X-Request-Id: mine\r\n", edge.TheRequest} {
			_, _ = io.WriteString(conn, request+"\r\n")
			method, _, _ := strings.Cut(request, " ")
			got, text := read(t, r, method)
			if got.StatusCode != 200 || method == "GET" && !strings.HasPrefix(text, `{"data":[],"requestId":"`) ||
				strings.Contains(request, "mine") != (got.Header.Get("X-Request-Id") == "mine") {
				t.Errorf("%s, request %d: %+v", name, i, got)
			}
		}
	}
}

// A client that closes its half of the connection right after a request gets the response,
// and then the end of the connection.
func TestARequestThatEndsItsConnection(t *testing.T) {
	for before := range 3 { // requests
		s, _ := edge.HitServer(t, `{"data":[]`)
		c, r := edge.Listening(t, s)
		for range before {
			_, _ = io.WriteString(c, edge.TheRequest+"\r\n")
			read(t, r, "GET")
		}
		_, _ = io.WriteString(c, edge.TheRequest+"\r\n")
		_ = c.CloseWrite()
		if got, _ := read(t, r, "GET"); got.StatusCode != 200 {
			t.Errorf("after %d: %+v", before, got)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after %d: %q, %v", before, rest, err)
		}
	}
}
