package edge

import (
	"io"
	"net"
	"testing"
)

// A client that closes its half of the connection right after a request gets the response,
// and then the end of the connection.
func TestARequestThatEndsItsConnection(t *testing.T) {
	for before := range 3 { // requests
		s, _ := hitServer(t, `{"data":[]`)
		c, r := listening(t, s)
		for range before {
			send(c, thePage+"\r\n")
			readAnswer(t, r, "GET")
		}
		send(c, thePage+"\r\n")
		must(0, c.CloseWrite())
		if got := readAnswer(t, r, "GET"); got.status != 200 {
			t.Errorf("after %d: %+v", before, got)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after %d: %q, %v", before, rest, err)
		}
	}
}

func send(c net.Conn, s string) { _, _ = io.WriteString(c, s) }
