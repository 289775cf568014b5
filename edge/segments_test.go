package edge

import (
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
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
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := readAnswer(t, r, "GET"); got.status != 200 {
			t.Errorf("after %d: %+v", before, got)
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after %d: %q, %v", before, rest, err)
		}
	}
}

// Requests are answered in order, however they are cut into segments, whether or not the
// client waits for responses in between.
func TestRequestsInAnySegments(t *testing.T) {
	body := `{"data":["` + strings.Repeat("x", 9000) + `"]`
	s, _ := hitServer(t, body)
	c, r := listening(t, s)
	if err := c.SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 3))
	for sent, received := 0, 0; sent < 2000; {
		var segments []byte
		for range 1 + random.IntN(3)*random.IntN(3) {
			segments = append(segments, thePage+"\r\n"...)
			sent++
		}
		for len(segments) > 0 {
			n := len(segments)
			if random.IntN(3) == 0 {
				n = 1 + random.IntN(n)
			}
			send(c, string(segments[:n]))
			segments = segments[n:]
		}
		if random.IntN(4) > 0 {
			for ; received < sent; received++ {
				got := readAnswer(t, r, "GET")
				id := got.header("X-Request-Id")
				if !strings.HasSuffix(id, "-"+strconv.FormatInt(int64(received+1), 36)) || got.body != body+`,"requestId":"`+id+`"}` {
					t.Fatalf("answer %d: %+v", received, got)
				}
			}
		}
	}
}

func send(c net.Conn, s string) { _, _ = io.WriteString(c, s) }
