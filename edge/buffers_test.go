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
		s, _ := edge.HitServer(t, "")
		conn, r := edge.Listening(t, s)
		send(conn, c.method+edge.TheRequest[3:]+c.rest)
		got := edge.ReadAnswer(t, r, c.method)
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
		"header":  edge.TheRequest + edge.HeaderLines(90, 160),
		"cookies": edge.TheRequest + "Cookie: a=b\r\n",
		"HEAD":    "HEAD" + edge.TheRequest[3:] + edge.HeaderLines(90, 160),
	} {
		s, _ := edge.HitServer(t, "")
		conn, r := edge.Listening(t, s)
		for i, request := range []string{edge.TheRequest, large, edge.TheRequest, large + "X-Request-Id: mine\r\n", edge.TheRequest} {
			send(conn, request+"\r\n")
			method, _, _ := strings.Cut(request, " ")
			got := edge.ReadAnswer(t, r, method)
			if got.Status != 200 || method == "GET" && !strings.HasPrefix(got.Body, edge.BodyOf("")+`,"requestId":"`) ||
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
		s, _ := edge.HitServer(t, "")
		c, r := edge.Listening(t, s)
		for range before {
			send(c, edge.TheRequest+"\r\n")
			edge.ReadAnswer(t, r, "GET")
		}
		send(c, edge.TheRequest+"\r\n")
		_ = c.CloseWrite()
		if got := edge.ReadAnswer(t, r, "GET"); got.Status != 200 {
			t.Errorf("after %d: %+v", before, got)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after %d: %q, %v", before, rest, err)
		}
	}
}
