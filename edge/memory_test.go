//go:build !race

package edge

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// The memory that a connection takes, with about 1 kB for the client's end in this process:
// `go test -v -run MemoryOfAConnection ./edge` prints it. (The race detector takes memory,
// too, hence the build tag.)
func TestMemoryOfAConnection(t *testing.T) {
	const (
		connections = 300
		idle        = 48 << 10
		most        = 80 << 10 // cmd/listedge reckons with it
	)
	end := "\r\n"
	for _, c := range []struct {
		name, request string
		complete      bool // and answered
		most          int64
		left          string // the request of a client that has left; empty = none
	}{
		{"nothing sent yet", "", false, most, ""},
		{"a quarter of a head of 100 lines", "GET /v1/items HTTP/1.1\r\nHost: a\r\n" + headerLines(100, 150)[:4<<10], false, most, ""},
		{"nearly all of one of 3,200 lines", "GET /v1/items HTTP/1.1\r\nHost: a\r\n" + headerLines(3200, 4), false, most, ""},
		{"idle after a page", thePage + end, true, idle, ""},
		{"idle after a 404", "GET /nowhere HTTP/1.1\r\nHost: a\r\n" + end, true, idle, ""},
		{"idle after 15 kB of header", "GET /nowhere HTTP/1.1\r\nHost: a\r\n" + headerLines(90, 165) + end, true, idle, ""},
		{"idle after 15 kB of address", "GET /" + strings.Repeat("x", 15<<10) + " HTTP/1.1\r\nHost: a\r\n" + end, true, idle, ""},
		{"idle after 15 kB of parameters", strings.Replace(thePage, "limit=20", "search=%41"+strings.Repeat("x", 15<<10), 1) + end, true, idle, ""},
		{"idle after 5,000 cookies", "GET /nowhere HTTP/1.1\r\nHost: a\r\nCookie: " + strings.Repeat("a; ", 5000) + "a\r\n" + end, true, idle, ""},
		{"idle after another's 431", thePage + end, true, idle, "GET /nowhere HTTP/1.1\r\nHost: a\r\n" + headerLines(3000, 4) + end},
		{"idle after another's 400", thePage + end, true, idle, "GET /nowhere HTTP/1.1\r\nHost: a\r\n" + headerLines(3000, 4) + "broken\r\n" + end},
		{"idle after the bundle", "GET " + "/docs/swagger-ui-bundle.js" + " HTTP/1.1\r\nHost: a\r\n" + end, true, idle, ""},
		{"idle after the page of the reference", "GET /docs HTTP/1.1\r\nHost: a\r\n" + end, true, idle, ""},
	} {
		for _, secure := range []*tls.Config{nil, certificate(t)} {
			name, bound := c.name, c.most
			if secure != nil {
				name, bound = name+", TLS", most+16<<10 // the client's end may hold a record
			}
			t.Run(name, func(t *testing.T) {
				s, _ := hitServer(t, strings.Repeat("x", 20_000))
				dial := served(t, s, secure)
				var all []net.Conn
				open := func() {
					if c.left != "" {
						other := dial(t)
						must(io.WriteString(other, c.left))
						must(io.Copy(io.Discard, other))
						other.Close()
					}
					conn := dial(t)
					must(io.WriteString(conn, c.request))
					if c.complete {
						s.guard = newGuard()
						a := must(http.ReadResponse(bufio.NewReader(conn), nil))
						must(io.Copy(io.Discard, a.Body))
					}
					all = append(all, conn)
				}
				open() // allocates what all connections share
				before := inUse()
				for range connections {
					open()
				}
				each := (inUse() - before) / connections
				t.Logf("%6d bytes", each)
				if each > bound {
					t.Errorf("%d bytes a connection, want at most %d", each, bound)
				}
				runtime.KeepAlive(all)
			})
		}
	}
}

// inUse are the bytes in use, in heap and stacks. A later call may return less, because
// memory of earlier tests is freed.
func inUse() int64 {
	var m runtime.MemStats
	for range 3 { // pools are emptied by two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
