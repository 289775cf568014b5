package edge

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"listedge/metrics"
)

// limited is a server with a limit of connections.
type limited struct {
	server   *Server
	registry *metrics.Registry
	dial     func(testing.TB) net.Conn
}

func serveLimited(t *testing.T, connections int64, secure *tls.Config) *limited {
	t.Helper()
	s, _, registry := hitServerWith(t, "")
	s.MaxConnections = int(connections)
	return &limited{s, registry, served(t, s, secure)}
}

// silent opens a connection and sends nothing on it, not even a handshake.
func (at *limited) silent(t *testing.T) net.Conn {
	t.Helper()
	c := at.dial(t)
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return c
}

// ask opens a connection and sends a request on it.
func (at *limited) ask(t *testing.T) (c net.Conn, got answered) {
	t.Helper()
	c = at.dial(t)
	send(c, "GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n")
	r := bufio.NewReader(c)
	got = readAnswer(t, r, "GET")
	if got.Closes {
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("the connection ends with %v", err) // after a reset the client may lose the response
		}
	}
	return c, got
}

func (at *limited) open() int64 {
	open, _ := at.server.Connections()
	return open
}

func TestConnectionsBeyondTheLimitGetAProblem(t *testing.T) {
	for name, secure := range map[string]*tls.Config{"plain": nil, "TLS": certificate(t)} {
		t.Run(name, func(t *testing.T) {
			at := serveLimited(t, 2, secure)
			first, got := at.ask(t)
			if got.Status != 200 {
				t.Fatal(got.Status)
			}
			if _, got = at.ask(t); got.Status != 200 {
				t.Fatal(got.Status)
			}
			_, got = at.ask(t)
			if got.Status != 503 || !got.Closes || got.Header("Retry-After") == "" || !strings.Contains(got.Body, `"SERVICE_UNAVAILABLE"`) {
				t.Errorf("%+v", got)
			}
			if n := value(t, scrape(t, at.registry), `listedge_http_requests_total{route="none",status="503"}`); n != 1 {
				t.Errorf("%d refusals counted", n)
			}
			if _, limit := at.server.Connections(); limit != 2 {
				t.Errorf("the limit is reported as %d", limit)
			}
			first.Close()
			eventually(t, "the closed connection no longer counts", func() bool { return at.open() <= 1 })
			if _, got = at.ask(t); got.Status != 200 {
				t.Error(got.Status)
			}
		})
	}
}

// A refused client that sends nothing keeps its connection for a while. The number of such
// connections is bounded, and they do not count as open ones.
func TestRefusedSilentClientsAreDisconnected(t *testing.T) {
	for name, secure := range map[string]*tls.Config{"plain": nil, "TLS": certificate(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 3
			at := serveLimited(t, limit, secure)
			var held, refused []net.Conn
			for range limit {
				held = append(held, at.silent(t))
			}
			for range maxRefusals + 20 {
				refused = append(refused, at.silent(t))
			}
			eventually(t, "all are accepted", func() bool { return at.open() == limit })
			ended := make(chan error, len(refused))
			for _, c := range refused {
				go func() {
					_, err := io.Copy(io.Discard, c)
					ended <- err
				}()
			}
			for range refused { // by the node: the clients do nothing
				if err := <-ended; err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
			}
			if n := at.open(); n > limit {
				t.Errorf("%d connections count as open, of %d", n, limit)
			}
			for _, c := range held {
				c.Close()
			}
			eventually(t, "the closed connections no longer count", func() bool { return at.open() == 0 })
			if _, got := at.ask(t); got.Status != 200 {
				t.Error(got.Status)
			}
		})
	}
}
