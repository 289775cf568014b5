package edge

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"

	"listedge/internal/boottime/boottimetest"
	"listedge/metrics"
)

// limited is a server with a limit of connections.
type limited struct {
	registry *metrics.Registry
	dial     func(testing.TB) net.Conn
}

func serveLimited(t *testing.T, connections int64, secure *tls.Config) *limited {
	t.Helper()
	s, _, registry := hitServerWith(t, `{"data":[]`)
	s.MaxConnections = int(connections)
	return &limited{registry, served(t, s, secure)}
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

func (at *limited) open(t *testing.T) int {
	return value(t, scrape(t, at.registry), "listedge_http_connections")
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
			if limit := value(t, scrape(t, at.registry), "listedge_http_connections_limit"); limit != 2 {
				t.Errorf("the limit is reported as %d", limit)
			}
			first.Close()
			eventually(t, "the closed connection no longer counts", func() bool { return at.open(t) <= 1 })
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
			eventually(t, "all are accepted", func() bool { return at.open(t) == limit })
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
			if n := at.open(t); n > limit {
				t.Errorf("%d connections count as open, of %d", n, limit)
			}
			for _, c := range held {
				c.Close()
			}
			eventually(t, "the closed connections no longer count", func() bool { return at.open(t) == 0 })
			if _, got := at.ask(t); got.Status != 200 {
				t.Error(got.Status)
			}
		})
	}
}

// failingListener fails a given number of times, then accepts, and so on.
type failingListener struct {
	net.Listener
	failures []int // before each connection
	tries    []time.Time
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.tries = append(l.tries, time.Now())
	switch {
	case len(l.failures) == 0:
		return nil, &net.OpError{Op: "accept", Err: net.ErrClosed}
	case l.failures[0] > 0:
		l.failures[0]--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	l.failures = l.failures[1:]
	return &wire{}, nil
}

// If Accept fails, the node tries again. Only a closed listener ends the node.
func TestAcceptIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Server{http: &fasthttp.Server{}, Options: Options{Metrics: metrics.New("test", "").Edge, MaxConnections: 100,
			Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		failing := &failingListener{failures: []int{3, 0, 2}}
		l := &limitedListener{Listener: failing, server: s, shortage: rate.Sometimes{Interval: shortageLog}}
		for i := range 3 {
			if _, err := l.Accept(); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("of a closed listener: %v", err)
		}
		var waits []time.Duration
		for i := range failing.tries[1:] {
			waits = append(waits, failing.tries[i+1].Sub(failing.tries[i]).Round(time.Millisecond))
		}
		want := []time.Duration{acceptRetry, acceptRetry, acceptRetry, 0, 0, acceptRetry, acceptRetry, 0}
		if !slices.Equal(waits, want) {
			t.Errorf("tried again after %v, want %v", waits, want)
		}
		// The second failure follows at once, so it is not logged again.
		if said := strings.Count(log.String(), "accept"); strings.Count(log.String(), "\n") != 1 || said == 0 {
			t.Errorf("logged: %s", log.String())
		}
		boottimetest.Pass(time.Minute)
		failing.failures = []int{3}
		if _, err := l.Accept(); err != nil || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("a minute later: %v, logged: %s", err, log.String())
		}
	})
}
