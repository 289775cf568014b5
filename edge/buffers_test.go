package edge

import (
	"io"
	"strconv"
	"strings"
	"testing"
)

// A request has at most 100 header lines.
func TestTooManyHeaders(t *testing.T) {
	for _, c := range []struct {
		name, method, rest string
		status             int
	}{
		{"100", "GET", headerLines(maxHeaders-2, 8) + "\r\n", 200}, // with Host and key
		{"101", "GET", headerLines(maxHeaders-1, 8) + "\r\n", 431},
		{"101, HEAD", "HEAD", headerLines(maxHeaders-1, 8) + "\r\n", 431},
		{"3,200", "GET", headerLines(3200, 4) + "\r\n", 431},
	} {
		s, _ := hitServer(t, `{"data":[]`)
		conn, r := listening(t, s)
		_, _ = io.WriteString(conn, c.method+thePage[3:]+c.rest)
		got := readAnswer(t, r, c.method)
		if got.status != c.status {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.status == 200 {
			continue
		}
		if named := strings.Contains(got.body, `"REQUEST_FAILED"`); named != (c.method == "GET") {
			t.Errorf("%s: %q", c.name, got.body)
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
		s, _ := hitServer(t, `{"data":[]`)
		conn, r := listening(t, s)
		for i, request := range []string{thePage, large, thePage, large + "X-Request-Id: mine\r\n", thePage} {
			_, _ = io.WriteString(conn, request+"\r\n")
			method, _, _ := strings.Cut(request, " ")
			got := readAnswer(t, r, method)
			if got.status != 200 || method == "GET" && !strings.HasPrefix(got.body, `{"data":[],"requestId":"`) ||
				strings.Contains(request, "mine") != (got.header("X-Request-Id") == "mine") {
				t.Errorf("%s, request %d: %+v", name, i, got)
			}
		}
	}
}

// headerLines are header lines, each of so many bytes.
func headerLines(n, bytes int) string {
	var all strings.Builder
	for i := range n {
		name := strconv.Itoa(i%10) + ":"
		all.WriteString(name + strings.Repeat("x", bytes-len(name)-len("\r\n")) + "\r\n")
	}
	return all.String()
}
